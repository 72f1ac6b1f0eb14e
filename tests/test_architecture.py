"""The rules of the house that neither ruff nor import-linter can express."""

import ast
import re
from configparser import ConfigParser
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.syntax import statements

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ergo_py"

# Data and decisions: driven by plain calls, so that a state machine can compare each with a naive
# model.
PURE = [
    *(PACKAGE / "_core" / "vocabulary").glob("*.py"),
    *(PACKAGE / "_core" / "tables").glob("*.py"),
    *(PACKAGE / "supervision" / name for name in ("child.py", "start_order.py", "strategies.py")),
    *(PACKAGE / "meta" / "parsing" / name for name in ("decoder.py", "framing.py")),
    *(PACKAGE / "web" / "parsing").glob("*.py"),
    PACKAGE / "schedules" / "cron.py",
    *(PACKAGE / "control" / name for name in ("protocol.py", "rendering.py")),
]


class Module(NamedTuple):
    """The parts of a module that the rules look at. Each module is parsed a single time."""

    imports: list[tuple[str, ast.Import | ast.ImportFrom]]
    large_classes: list[str]
    long_functions: list[str]
    appends: list[tuple[str, int]]
    """The functions that append to the main lane of a mailbox, and the lines where they do."""


@cache
def read(path: Path) -> Module:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    may_append = MAYBE_APPENDS.search(source)
    module = Module([], [], [], [])
    for node in statements(ast.parse(source).body):
        match node:
            case ast.Import() | ast.ImportFrom():
                module.imports.append((f"{path.relative_to(ROOT)}:{node.lineno}", node))
            case ast.ClassDef(name=name):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                names = set(MAYBE_ATTRIBUTE.findall(text))
                if len(names) >= LARGE and len(attributes_of(node)) >= LARGE:
                    module.large_classes.append(f"{path.relative_to(PACKAGE)}: {name}")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                where = f"{path.relative_to(PACKAGE)}: {name}"
                if (node.end_lineno or 0) - node.lineno >= LONG:
                    module.long_functions.append(where)
                if may_append:
                    module.appends.extend((where, line) for line in appends_to_a_main_lane(node))
    return module


def absolute_imports(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module]
    return []


def test_inside_the_package_imports_of_the_package_are_relative() -> None:
    wrong = [
        where
        for path in PACKAGE.rglob("*.py")
        for where, node in read(path).imports
        if any(name.split(".")[0] == "ergo_py" for name in absolute_imports(node))
    ]

    assert wrong == []


def test_no_module_imports_from_the_package_root() -> None:
    wrong = [
        where
        for path in PACKAGE.rglob("*.py")
        for where, node in read(path).imports
        # From a/b.py a single dot is a/; so the root is as many dots up as the file has directories
        # above it, plus 1. `from . import actor` would be a module, but the rule is to import from
        # the module that defines a thing.
        if isinstance(node, ast.ImportFrom)
        and node.module is None
        and node.level == len(path.relative_to(PACKAGE).parts)
        and path != PACKAGE / "__init__.py"
    ]

    assert wrong == []


def test_the_tables_and_the_strategies_neither_await_nor_know_trio() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in PURE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
        or any(name.split(".")[0] == "trio" for name in absolute_imports(node))
    ]

    assert wrong == []


NOUNS = {
    "blocking",
    "framing",
    "parking",
    "rendering",
    "testing",
    "parsing",
    "messaging",
    "opening",
    "outgoing",
    "incoming",
}


def test_no_module_is_named_after_an_activity() -> None:
    wrong = [
        str(path.relative_to(PACKAGE))
        for path in [
            *PACKAGE.rglob("*.py"),
            *(path.parent for path in PACKAGE.rglob("__init__.py")),
        ]
        if path.stem.endswith("ing") and path.stem not in NOUNS
    ]

    assert wrong == []


def test_no_folder_has_more_modules_than_a_reader_can_keep_in_mind() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    counts = {
        str(one.relative_to(PACKAGE)): sum(1 for path in one.glob("*.py") if path.stem[0] != "_")
        for one in folders
    }

    assert {folder: count for folder, count in counts.items() if count > 14} == {}


INLINED_SEND = "# inlined copy of Router.send"


MAYBE_APPENDS = re.compile(r"\bmain\s*\.\s*(?:append|extend)\b")
"""Saves walks in the modules without any."""


def appends_to_a_main_lane(function: ast.AST) -> list[int]:
    """The lines where a function appends to the main lane of a mailbox."""
    return [
        call.lineno
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("append", "extend")
        and isinstance(call.func.value, ast.Attribute)
        and call.func.value.attr == "main"
    ]


APPENDS_OF_A_MAILBOX = ["push", "push_many"]
APPENDS_PAST_A_MAILBOX = [
    "_core/messaging/publisher.py: deliver",
    "_core/messaging/router.py: send",
    "_core/verbs/behaviour.py: send",
]
"""The hot paths that save the call of `Mailbox.push`."""


def test_the_append_to_a_mailbox_is_written_in_the_mailbox_and_in_three_hot_paths() -> None:
    past: list[str] = []
    unmarked: list[str] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for where, line in read(path).appends:
            if path.name == "mailbox.py":
                assert where.split(": ")[1] in APPENDS_OF_A_MAILBOX
                continue
            past.append(where)
            if path.name != "router.py" and lines[line - 2].strip() != INLINED_SEND:
                unmarked.append(where)

    assert past == APPENDS_PAST_A_MAILBOX
    assert unmarked == []
    assert (
        sum(path.read_text(encoding="utf-8").count(INLINED_SEND) for path in PACKAGE.rglob("*.py"))
        == len(past) - 1
    )


BRIDGES_USE = {
    "kernel": "the type of the kernel, for the deadline of a session's last callback",
    "messaging.receiver": "the type of a receiver, to check whether it is at rest",
    "messaging.waiters": "`BlockingCalls.run` opens a call that needs no message",
    "metas.shared_state": "the counters and flags that a bridge shares with its owner",
    "metas.meta": "the type of a meta-process; a server tells its connections that it ends",
    "metas.spawn": "a server spawns its connections without waiting, or beside each other",
    "processes.process": "the type of a session, which ends with its connection",
    "processes.spawn": "a server spawns a session for each connection",
    "runtime.bridge": "a thread waits for the loop; locks that survive a fork",
    "runtime.detached_task": "work beside reader and handler that ends with the node",
    "runtime.parking": "the poller wakes thousands of readers without an event for each",
    "runtime.time_slices": "the length of a time slice, the same for the poller as for processes",
    "sources": "the clock of time slices, and the waits of threads, which a seed replaces",
    "speed._speed": "the types of the buffers of reader threads",
    "speed.installation": "reads and writes of sockets in C, and the buffers of reader threads",
    "tables.pending_calls": "`Caller`, which handle_call gets; deadlines on the node's clock",
    "tables.timers": "the type of a timer",
}
"""The kernel modules that the built-in bridges import beyond vocabulary and verbs, each with its
reason. docs/design/decisions.md has the same list.
"""


def test_bridges_import_only_the_listed_modules_of_the_kernel() -> None:
    imports = [
        node
        for path in (PACKAGE / "meta").rglob("*.py")
        for _, node in read(path).imports
        if isinstance(node, ast.ImportFrom) and node.module
    ]
    found = {
        node.module.removeprefix("_core.")
        for node in imports
        if node.module and node.module.startswith("_core.")
    } | {alias.name for node in imports if node.module == "_core" for alias in node.names}
    beyond = {name for name in found if name.partition(".")[0] not in ("vocabulary", "verbs")}

    assert beyond == set(BRIDGES_USE)


def test_a_design_page_lists_the_kernel_modules_of_the_bridges() -> None:
    page = (ROOT / "docs" / "design" / "decisions.md").read_text(encoding="utf-8")

    missing = [name for name, why in BRIDGES_USE.items() if f"| `{name}` | {why} |" not in page]

    assert missing == []


def layers_of_contract(name: str) -> list[str]:
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter", encoding="utf-8")
    return contracts[f"importlinter:contract:{name}"]["layers"].split("\n")[1:]


def layers_of_drawing(folder: str) -> list[str]:
    """The names before the column of explanations; a line that ends in a dot goes on."""
    page = (ROOT / "docs" / "design" / "map.md").read_text(encoding="utf-8")
    drawing = page.partition(f"## `ls {folder}`")[2].partition("```text\n")[2].partition("```")[0]
    names = "\n".join(line[:40].rstrip() for line in drawing.splitlines())
    return names.replace("·\n", "· ").replace(" · ", " | ").splitlines()


@pytest.mark.parametrize("folder, contract", [("ergo_py", "package"), ("ergo_py/_core", "kernel")])
def test_the_map_draws_the_layers_of_the_import_contracts(folder: str, contract: str) -> None:
    assert layers_of_drawing(folder) == layers_of_contract(contract)


def test_the_map_fits_on_a_screen() -> None:
    page = (ROOT / "docs" / "design" / "map.md").read_text(encoding="utf-8")

    assert len(page.splitlines()) <= 64


LARGE = 20
"""A class with so many attributes is more than a reader can keep in mind."""
MOST_LARGE_CLASSES = 8
"""The large classes of the package: kernel, process, meta-process, the options of a node, and
four records that users read.
"""


MAYBE_ATTRIBUTE = re.compile(r"\bself\s*\.\s*\w+|^ *\w+ *:", re.MULTILINE)
"""Saves walks of the classes with few of them."""


def attributes_of(cls: ast.ClassDef) -> set[str]:
    """The attributes that a class sets on ``self``, and those that it declares; types and
    constants that are its members are no attributes.
    """
    on_self = {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    declared = {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and ast.unparse(node.annotation) not in ("TypeAlias", "Final")
    }
    return on_self | declared


def test_no_further_class_has_twenty_attributes() -> None:
    large = [name for path in PACKAGE.rglob("*.py") for name in read(path).large_classes]

    assert len(large) <= MOST_LARGE_CLASSES, "\n".join(sorted(large))


LONG = 60
"""A function with more lines, its documentation included, does not fit on a screen."""
LONG_FUNCTIONS = [
    "_core/messaging/calls.py: call",
    "_core/node_lifecycle.py: open_node",
    "_core/processes/message_loop.py: serve",
    "_core/processes/message_loop.py: serve_batches",
]
"""Hot paths, where a call for each message costs too much, and the options of a node."""


def test_only_hot_paths_and_the_options_of_a_node_are_long_functions() -> None:
    long = [name for path in PACKAGE.rglob("*.py") for name in read(path).long_functions]

    assert sorted(long) == LONG_FUNCTIONS


MOST_ANY = 496
"""Annotations ``: Any`` and ``-> Any``. A further one needs a value of the user that passes
through.
"""


def test_no_further_annotation_is_any() -> None:
    found = [
        annotation
        for path in PACKAGE.rglob("*.py")
        for annotation in re.findall(r"(?::|->) Any\b", path.read_text(encoding="utf-8"))
    ]

    assert len(found) <= MOST_ANY


ROOMS_WITH_REASONS = [
    *(f"_core/{room}" for room in ("messaging", "metas", "processes", "runtime", "speed")),
    "network",
]
"""Where races, the order of two statements and hostile peers decide how a line is written."""
LEAST_REASONS = 5
"""Percent of the lines of each of these rooms that are comments, at least: trio has 15, h11 26."""
TEXTS = re.compile(r'"{3}.*?"{3}', re.DOTALL)
COMMENTS = {
    # A line that begins a section of a class says no why.
    ".py": re.compile(r"^[ ]*#(?! -).*$", re.MULTILINE),
    ".c": re.compile(r"^[ ]*/\*(?! -).*?\*/$", re.MULTILINE | re.DOTALL),
}
"""Comments that share no line with code."""


def comment_lines(source: str, suffix: str) -> int:
    """The lines of Python (`.py`) or of C (`.c`) that are comments, without the lines of texts."""
    code = TEXTS.sub("", source) if suffix == ".py" else source
    return sum(found[0].count("\n") + 1 for found in COMMENTS[suffix].finditer(code))


@pytest.mark.parametrize(
    "source, suffix, count",
    [
        ("# A race is avoided here.\n# By the order.\nx = 1  # not alone\n", ".py", 2),
        ("    # -- the section of a class -----\n", ".py", 0),
        ('TEXT = """\n# a line of a text\n"""\n    # A reason.\n', ".py", 1),
        ("/* A race is\n   avoided here. */\nint x; /* not alone */\n", ".c", 2),
        ("/* ---- a section ---- */\n#define MOST 64\n", ".c", 0),
    ],
)
def test_a_comment_has_its_line_for_itself_and_is_no_section(
    source: str, suffix: str, count: int
) -> None:
    assert comment_lines(source, suffix) == count


@pytest.mark.parametrize("room", ROOMS_WITH_REASONS)
def test_a_twentieth_of_the_lines_are_comments_that_say_why(room: str) -> None:
    lines = comments = 0
    for path in (PACKAGE / room).rglob("*.[pch]*"):
        if path.suffix in (".py", ".c", ".h"):
            source = path.read_text(encoding="utf-8")
            lines += sum(1 for line in source.splitlines() if line.strip())
            comments += comment_lines(source, ".py" if path.suffix == ".py" else ".c")

    assert 100 * comments >= LEAST_REASONS * lines, f"{comments} comments in {lines} lines"


TESTS = ROOT / "tests"
NO_ROOM = {
    "examples": "the programs of examples/",
    "loops": "hosts of asyncio, beside which a node runs",
    "network/nats": "all modules that need a NATS server",
    "observe/page": "the page itself, in a browser",
}
"""The folders of tests that mirror no folder of the package, with their subjects."""
WITHOUT_TESTS_OF_ITS_OWN = {"__init__.py", "__main__.py", "errors.py", "info.py", "node.py"}
"""Tables of public names, the call of `shell`, and the class that joins all rooms."""


def test_each_room_has_its_tests_in_the_same_folder_or_in_that_above() -> None:
    rooms = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*/__init__.py")}
    tested = {path.parent.relative_to(TESTS) for path in TESTS.rglob("*/test_*.py")}

    assert [room for room in rooms if not {room, room.parent, room.parent.parent} & tested] == []
    assert {str(folder) for folder in tested - rooms} <= set(NO_ROOM)


def test_each_module_beside_the_rooms_has_a_test_file_of_its_name() -> None:
    for folder in (PACKAGE, PACKAGE / "_core"):
        tests = TESTS / folder.relative_to(PACKAGE)
        missing = {
            path.name for path in folder.glob("*.py") if not (tests / f"test_{path.name}").exists()
        }

        assert missing <= WITHOUT_TESTS_OF_ITS_OWN
