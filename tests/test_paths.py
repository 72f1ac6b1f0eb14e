"""The ways of a message from a verb to the mailbox, and of a call to its answer. The page
docs/design/fast-paths.md draws them, and this file knows each of them.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import statements

KERNEL = Path(__file__).parent.parent / "ergo_py" / "_core"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def classes(path: Path) -> list[ast.ClassDef]:
    """The classes of a module that have code: interfaces have none."""
    return [
        each
        for each in statements(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(each, ast.ClassDef)
        and not any(isinstance(base, ast.Name) and base.id == "Protocol" for base in each.bases)
    ]


def ways(verb: str, *parameters: str) -> list[str]:
    """The methods of the kernel with this verb in their names that take these parameters."""
    return sorted(
        {
            f"{owner.name}.{method.name}"
            for path in KERNEL.rglob("*.py")
            for owner in classes(path)
            for method in owner.body
            if isinstance(method, Function)
            and method.name.strip("_").split("_")[0] == verb
            and {each.arg for each in method.args.args} >= set(parameters)
            and not {each.arg for each in method.args.args} & {"delay", "period"}
        }
    )


def test_a_message_has_fourteen_known_ways_from_the_verb_to_the_mailbox() -> None:
    assert ways("send", "to", "message") == [
        "Behaviour.send",
        "Behaviour.send_wait",
        "HookedRouter.send",
        "HookedRouter.send_traced",
        "Meta.send",
        "Meta.send_wait",
        "MetaProcess.send",
        "MetaProcess.send_wait",
        "Node.send",
        "Node.send_wait",
        "Router._send",
        "Router._send_from_thread",
        "Router.send",
        "Router.send_wait",
    ]


def test_a_call_has_six_known_ways_from_the_verb_to_the_answer() -> None:
    assert ways("call", "to", "request") == [
        "Behaviour.call",
        "Calls.call",
        "Calls.call_from_thread",
        "HookedCalls.call",
        "Node.call",
        "Node.call_from_thread",
    ]


def test_a_node_has_a_plain_and_a_hooked_kind_of_router_and_calls() -> None:
    kinds = {
        owner.name
        for path in KERNEL.rglob("*.py")
        for owner in classes(path)
        for base in [owner.name, *(base.id for base in owner.bases if isinstance(base, ast.Name))]
        if base in ("Router", "Calls", "Publisher")
    }

    assert kinds == {"Router", "HookedRouter", "Calls", "HookedCalls", "Publisher"}


PATH = [
    ("verbs/node.py", "Node.send"),
    ("verbs/behaviour.py", "Behaviour.send"),
    ("messaging/hooked.py", "HookedRouter.send"),
    ("messaging/hooked.py", "HookedRouter.send_traced"),
    ("messaging/router.py", "Router.send"),
    ("messaging/router.py", "Router._send"),
    ("messaging/router.py", "Router._send_from_thread"),
    ("messaging/router.py", "Router.post"),
    ("messaging/router.py", "Router.arrive"),
    ("messaging/addresses.py", "Addresses.resolve"),
    ("tables/mailbox.py", "Mailbox.admit"),
    ("tables/mailbox.py", "Mailbox.push"),
    ("processes/addressee.py", "Addressee.wake"),
    ("processes/addressee.py", "Addressee.wake_from_any_thread"),
    ("runtime/parking.py", "TrioTurns.wake"),
    ("processes/message_loop.py", "serve"),
    ("processes/process.py", "Handlers.handle_message"),
]


@pytest.mark.parametrize("module, name", PATH, ids=[name for _, name in PATH])
def test_types_lead_from_send_to_handle_message(module: str, name: str) -> None:
    tree: ast.Module | ast.ClassDef | Function = ast.parse(
        (KERNEL / module).read_text(encoding="utf-8")
    )
    for part in name.split("."):
        tree = next(
            each
            for each in statements(tree.body)
            if isinstance(each, ast.ClassDef | Function) and each.name == part
        )

    untyped = [
        each.lineno for each in ast.walk(tree) if isinstance(each, ast.Name) and each.id == "Any"
    ]

    assert untyped == []
