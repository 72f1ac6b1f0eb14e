"""State has one owner: a module changes the attributes of objects of its own classes only.

A method of an object changes the object's attributes, so that its class tells all that can happen
to it. Hot paths are excepted, where the call of a method would cost measurable time: such a write
copies a rule of the owner, and a comment names the rule.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.syntax import statements

PACKAGE: Final = Path(__file__).parent.parent / "ergo_py"
MARK: Final = "# hot path: "
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
UNKNOWN: Final = frozenset({"Any", "object", "Self", "type"})
"""Annotations that do not tell the class of an object."""

MARKED: Final = {
    "_core/messaging/calls.py": 2,
    "_core/processes/inline_calls.py": 10,
    "_core/processes/message_loop.py": 2,
    "_core/processes/process.py": 1,
    "_core/processes/spawn.py": 1,
    "_core/verbs/behaviour.py": 3,
    "meta/sockets/datagrams.py": 1,
    "network/protocol/session.py": 1,
}
"""How many writes each module marks as copies on a hot path. Lower a number if there are fewer."""

FOREIGN: Final = {
    # trio
    "_core/messaging/clock.py": {"self._scope.deadline"},
    "_core/runtime/handoff.py": {
        "context.task",
        "runner.runq",
        "task._abort_func",
        "task._cancel_points",
        "task._cancel_status",
        "task._next_send",
        "task._next_send_fn",
        "task._schedule_points",
        "task.custom_sleep_data",
    },
    "_core/processes/last_callback.py": {"self.scope.deadline"},
    "_core/processes/message_loop.py": {"self.scope.deadline"},
    "_core/runtime/abandonable.py": {"task.coro", "task._next_send_fn"},
    "_core/runtime/cancel_scopes.py": {"status._scope.shield"},
    "_core/runtime/parking.py": {
        "sleeping._abort_func",
        "task._abort_func",
        "task.custom_sleep_data",
    },
    "_core/runtime/time_limit.py": {"self._scope.deadline"},
    # A started program that outlives this one: subprocess would warn about it.
    "handover/next_version.py": {"process.returncode"},
    "meta/programs/port.py": {"scope.deadline"},
    "web/task_pool.py": {"pooled.task.context"},
    "testing/task_order.py": {"run._ALLOW_DETERMINISTIC_SCHEDULING", "run._r"},
    "testing/world/clock.py": {"self._runner.deadlines"},
    "testing/world/crash.py": {
        "status._scope.deadline",
        "task._abort_func",
        "task.custom_sleep_data",
    },
    "testing/world/tasks.py": {"status._scope.shield"},
    # paho-mqtt
    "devices/mqtt_topics.py": {
        "client.on_connect",
        "client.on_message",
        "client.on_publish",
        "client.on_subscribe",
    },
    "pipelines/brokers/mqtt.py": {
        "client.on_connect",
        "client.on_message",
        "client.on_publish",
        "client.on_subscribe",
        "client.on_unsubscribe",
        "labels.UserProperty",
        "wishes.ReceiveMaximum",
        "wishes.SessionExpiryInterval",
    },
    # Classes, once, when the C extension is installed
    "_core/speed/installation.py": {
        "Behaviour.call",
        "Behaviour.send",
        "Calls.short_cut",
        "Clock.arm_timer",
        "Handoff.end_asleep",
        "Handoff.serve",
        "Mailbox.main_type",
        "Outbox.deliver",
        "Publisher.deliver",
        "Router.send",
        "Timer.cancel",
        "Timers.heap_type",
        "Turn.begin_batch",
    },
    "meta/sockets/streams/installation.py": {
        "BufferedReads._has_bytes",
        "SocketPoller._read_some",
        "StreamReader._read_once",
        "Writer.flush",
        "Writer.serve",
    },
    # Python
    "facades/rows.py": {
        "made.__module__",
        "made.__name__",
        "made.__qualname__",
        "made.__signature__",
    },
    "_core/vocabulary/public_names.py": {
        "value.__module__",
        "member.__name__",
        "member.__qualname__",
        "member.__module__",
    },
    # Before it loads the program that it runs: nothing else has begun in this process.
    "shell/local_node.py": {"sys.dont_write_bytecode"},
    "shell/program_loader.py": {"sys.argv"},
    "shell/prompt.py": {"_compiler.compiler.flags"},
    "meta/sockets/tls.py": {
        "context.minimum_version",
        "context.num_tickets",
        "context.options",
        "context.verify_flags",
        "context.verify_mode",
        "each.sni_callback",
        "secured.context",
    },
}
"""Writes to classes, and to objects of Python itself, trio and ssl, which have no other way to be
set up.
"""


def test_no_module_writes_an_attribute_of_a_foreign_object() -> None:
    found = [
        f"ergo_py/{module}:{line} {target}"
        for module, line, target, is_marked in _all_writes()
        if not is_marked and target not in FOREIGN.get(module, ())
    ]

    assert found == [], "\n".join(found)


def test_writes_on_hot_paths_are_marked_and_counted() -> None:
    marked = Counter(module for module, _line, _target, is_marked in _all_writes() if is_marked)

    assert dict(marked) == MARKED


def test_each_mark_of_a_hot_path_stands_at_a_write() -> None:
    marks = sum(
        path.read_text(encoding="utf-8").count(MARK) for path in sorted(PACKAGE.rglob("*.py"))
    )

    assert marks <= sum(MARKED.values())


def test_each_exempt_write_exists() -> None:
    exempt = {(module, target) for module, targets in FOREIGN.items() for target in targets}

    assert exempt <= {(module, target) for module, _line, target, _is_marked in _all_writes()}


def test_a_write_counts_unless_the_module_defines_the_class_or_marks_the_write() -> None:
    source = """
class Own:
    __slots__ = ("slot",)
    declared: int

    def __init__(self):
        self.kept = 1

def change(own, other):
    own.slot = own.declared = own.kept = 2
    other.state = 3
    # hot path: Other.count
    other.count += 1
    other.total += 1  # hot path: Other.count
    (other.first, own.kept), other.last[0] = (1, 2), 3
    with open(other) as other.file:
        del other.gone

class Holder:
    def __init__(self, own: Own, other: "Other | None"):
        self.own, self.other = own, 1
        self.other = other

    def change(self, kept: Other):
        self.own.kept = 1
        self.other.kept = 2
        other, own = self.other, self.own
        kept.kept = own.kept = other.kept = 3
"""

    found = [(target, is_marked) for _line, target, is_marked in _writes(source)]

    assert sorted(found) == [
        ("kept.kept", False),
        ("other.count", True),
        ("other.file", False),
        ("other.first", False),
        ("other.gone", False),
        ("other.kept", False),
        ("other.state", False),
        ("other.total", True),
        ("self.other.kept", False),
    ]


@cache
def _all_writes() -> list[tuple[str, int, str, bool]]:
    return [
        (str(path.relative_to(PACKAGE)), *write)
        for path in sorted(PACKAGE.rglob("*.py"))
        for write in _writes(path.read_text(encoding="utf-8"))
    ]


def _writes(source: str) -> list[tuple[int, str, bool]]:
    """The writes to attributes of objects whose class is defined elsewhere, with their lines; and
    whether each is marked. Where the code does not tell the class, an attribute is foreign that no
    class of this module declares.
    """
    tree, lines = ast.parse(source), source.splitlines()
    stores = list(_stores(tree))
    if not stores:
        return []
    classes = [node for node in statements(tree.body) if isinstance(node, ast.ClassDef)]
    names = {definition.name for definition in classes}
    declared = {name for definition in classes for name in _own(definition)}
    return sorted(
        (node.lineno, ast.unparse(node), _is_marked(lines, node.lineno))
        for node, type_name in stores
        if (type_name not in names if type_name else node.attr not in declared)
    )


def _stores(tree: ast.Module) -> Iterator[tuple[ast.Attribute, str]]:
    """The writes to attributes of other objects than self, each with the class of its object, or
    nothing.
    """
    # Of two scopes around a write, the inner comes later.
    classes = [node for node in statements(tree.body) if isinstance(node, ast.ClassDef)]
    functions = [node for node in statements(tree.body) if isinstance(node, FUNCTIONS)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_foreign_store(node):
            types: dict[str, str] = {}
            for definition in (one for one in classes if _surrounds(one, node)):
                of_self = _types_of_attributes(definition).items()
                types |= {f"self.{name}": kind for name, kind in of_self}
            for function in (one for one in functions if _surrounds(one, node)):
                types |= _types_of_variables(function, types)
            yield node, types.get(ast.unparse(node.value), "")


def _surrounds(
    scope: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, node: ast.expr
) -> bool:
    return scope.lineno <= node.lineno <= (scope.end_lineno or 0)


def _is_foreign_store(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del) and not _is_self(node.value)


@cache
def _types_of_attributes(definition: ast.ClassDef) -> dict[str, str]:
    """The classes of the attributes that the class annotates, or sets to an annotated argument."""
    types = {
        node.target.id: _class_name(node.annotation)
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for function in definition.body:
        if not isinstance(function, FUNCTIONS):
            continue
        arguments = _types_of_arguments(function)
        for node in ast.walk(function):
            match node:
                case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    types[name] = _class_name(node.annotation)
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                    value=ast.Name(id=argument),
                ) if argument in arguments:
                    types.setdefault(name, arguments[argument])
    return {name: kind for name, kind in types.items() if kind}


def _types_of_variables(
    scope: ast.FunctionDef | ast.AsyncFunctionDef, known: Mapping[str, str]
) -> dict[str, str]:
    """The classes of arguments, of annotated variables, and of variables for known attributes."""
    types = _types_of_arguments(scope)
    for node in ast.walk(scope):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                types[name] = _class_name(node.annotation)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value):
                types[name] = known.get(ast.unparse(value), "")
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(
                targets
            ) == len(values):
                for target, each in zip(targets, values, strict=True):
                    types[ast.unparse(target)] = known.get(ast.unparse(each), "")
            case ast.Assign(targets=[ast.Name(id=name)]):
                types[name] = ""
    return types


def _types_of_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    arguments = function.args
    return {
        argument.arg: kind
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if argument.annotation and (kind := _class_name(argument.annotation))
    }


def _class_name(annotation: ast.expr) -> str:
    """The class that an annotation names; nothing for Any, unions and type variables."""
    match annotation:
        case ast.Constant(value=str(text)):
            return _class_name(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=inner, right=ast.Constant(value=None)):
            return _class_name(inner)
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar"), slice=inner):
            return _class_name(inner)
        case ast.Subscript(value=outer):
            return _class_name(outer)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "" if name in UNKNOWN or len(name) == 1 else name
    return ""


def _is_marked(lines: list[str], number: int) -> bool:
    """Whether the mark stands on the line, or alone on the line above."""
    return MARK in lines[number - 1] or lines[number - 2].strip().startswith(MARK)


def _own(definition: ast.ClassDef) -> set[str]:
    """The attributes that a class declares, or sets itself."""
    names = {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and _is_self(node.value)
    }
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == "__slots__":
                    names |= {
                        constant.value
                        for constant in ast.walk(node.value)
                        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
                    }
                elif isinstance(target, ast.Name):
                    names.add(target.id)
    return names


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")
