"""The words that a completion offers: commands, options, their values, running nodes and their
processes.
"""

from collections.abc import Iterator

import pytest

from ergo_py import Actor, ChildSpec
from ergo_py.blocking.loop_thread import OwnedNode, open_node
from ergo_py.shell.arguments import make_parser
from ergo_py.shell.cli import main
from ergo_py.shell.completion.words import FILES, complete
from tests.control.rig import runtime_directory

__all__ = ["runtime_directory"]


def offered(*typed: str) -> list[str]:
    return [word for word, _ in complete(make_parser(), list(typed))]


@pytest.fixture
def node() -> Iterator[OwnedNode]:
    with open_node("shop@localhost", control="look", log_output="none", watchdog=None) as node:
        node.run(lambda inner: inner.supervise([ChildSpec("till", Actor)], name="root"))
        node.run(lambda inner: inner.spawn(Actor))
        yield node


@pytest.mark.parametrize(
    "typed, expected",
    [
        (["cr"], ["crashes"]),
        (["res"], ["resume"]),
        (["--v"], ["--version"]),
        (["ps", "--so"], ["--sort"]),
        (["ps", "--sort", "lo"], ["load"]),
        (["ps", "--sort=lo"], ["--sort=load"]),
        (["ps", "--sort", "=", "lo"], ["load"]),
        (["ps", "--sort=load", "--s"], []),
        (["ps", "--sort", "load", "--s"], []),
        (["trace", "--type", "Add", "--ty"], ["--type"]),
        (["run", "--control", "look,a"], ["look,act", "look,attach"]),
        (["run", "--log-level", "w"], ["warning"]),
        (["run", "--name", ""], []),
        (["run", ""], [FILES]),
        (["run", "shop.py", ""], [FILES]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["new", ""], []),
        (["no-such-command", ""], []),
    ],
)
def test_a_command_line_is_completed(typed: list[str], expected: list[str]) -> None:
    assert offered(*typed) == expected


def test_an_equals_sign_of_bash_is_not_a_value() -> None:
    assert offered("ps", "--sort", "=") == offered("ps", "--sort", "")
    assert offered("ps", "--sort", "=") != []


def test_the_first_word_is_a_command() -> None:
    words = dict(complete(make_parser(), [""]))

    assert {"run", "ps", "attach", "new", "completion"} < words.keys()
    assert words["ps"] == "list processes and meta-processes"
    assert offered() == offered("") == list(words)


def test_running_nodes_and_their_processes_are_offered(node: OwnedNode) -> None:
    assert offered("ps", "") == ["shop"]
    assert offered("ps", "--find", "till", "sh") == ["shop"]
    assert offered("inspect", "shop", "t") == ["till"]
    unnamed = [word for word in offered("info", "shop", "") if word.isdecimal()]
    assert len(unnamed) == 1
    assert offered("inspect", "no-such-node", "") == []


def test_nodes_with_the_same_first_part_are_offered_by_their_whole_names(node: OwnedNode) -> None:
    with open_node("shop@elsewhere", control="look", log_output="none", watchdog=None):
        assert sorted(offered("ps", "")) == ["shop@elsewhere", "shop@localhost"]


def test_the_command_prints_each_word_and_its_explanation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completion", "--words", "dea"]) == 0

    assert capsys.readouterr().out == "dead-letters\tlist the last undeliverable messages\n"
