"""Every command of ``ergo`` answers a misspelt command, option, choice, node or process with the
word that was meant.
"""

import io
import re
import socket
from contextlib import redirect_stdout, suppress

import pytest

from ergo_py.blocking.loop_thread import open_node
from ergo_py.shell.arguments import make_parser
from ergo_py.shell.cli import main
from ergo_py.shell.completion.words import complete
from ergo_py.shell.exit_codes import Status
from tests.actors import Puppet


def help_of(command: str) -> str:
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        main([command, "--help"])
    return out.getvalue()


COMMANDS = [word for word, _ in complete(make_parser(), [""]) if not word.startswith("-")]
HELP = {command: help_of(command) for command in COMMANDS}
USAGE = {
    command: " ".join(text.partition("\n\n")[0].split()).partition(f"ergo {command} ")[2]
    for command, text in HELP.items()
}


def misspelt(word: str) -> str:
    """With its last letter twice: argparse takes a shorter word for an abbreviation."""
    return word + word[-1]


def needed(command: str, **known: str) -> list[str]:
    """A word for each argument that the command needs, and the known words in their places."""
    words = []
    for argument in re.sub(r"\[-[^]]*\]", "", USAGE[command]).split():
        name = argument.strip("[]")
        if name in known:
            words.append(known[name])
        elif not argument.startswith("[") and "..." not in argument:
            words.append(name.strip("{}").partition(",")[0])
    return words


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The status of a command line, and the text on standard error."""
    try:
        status = main([*words])
    except SystemExit as leave:
        status = int(leave.code or 0)
    return status, capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_command_is_answered_with_the_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = said(capsys, misspelt(command))

    assert status == Status.USAGE
    assert f"; did you mean {command}?" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_misspelt_option_of_a_command_is_answered_with_the_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", HELP[command], re.MULTILINE)
    assert "--help" in names
    for name in names:
        status, text = said(capsys, command, misspelt(name), *needed(command))

        assert status == Status.USAGE, name
        assert f"ergo {command}: unrecognized arguments: {misspelt(name)}" in text
        assert f"; did you mean {name}?" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_option_is_answered_also_where_arguments_are_missing(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = said(capsys, command, "--helpp")

    assert status == Status.USAGE
    assert f"ergo {command}: unrecognized arguments: --helpp; did you mean --help?\n" in text


@pytest.mark.parametrize(
    "words, text",
    [
        ("ps --yess", "ergo ps: unrecognized arguments: --yess; --yes is an option of entities, "),
        ("ps --yes=1", "ergo ps: unrecognized arguments: --yes=1; --yes is an option of entities"),
        ("new shop --portt 1", "; --port is an option of demo and observe\n"),
        ("ps --observer", "; --observe is an option of simulate\n"),
        (
            "--json ps",
            "unrecognized arguments: --json; write it behind the command: ergo ps --json",
        ),
        ("--versoin", "ergo: unrecognized arguments: --versoin; did you mean --version?"),
        ("--yess", "ergo: unrecognized arguments: --yess; --yes is an option of "),
        ("ps --xyzzy", "ergo ps: unrecognized arguments: --xyzzy\n"),
        ("ps demo other", "ergo ps: unrecognized arguments: other\n"),
        ("kill", "ergo kill: the following arguments are required: NODE, WHO\n"),
        ("run --reload", "ergo run: the following arguments are required: PROGRAM"),
        ("run --rel", "ergo run: the following arguments are required: PROGRAM"),
    ],
)
def test_an_option_of_another_command_is_answered_with_the_commands_that_have_it(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said_text = said(capsys, *words.split())

    assert status == Status.USAGE
    assert text in said_text


CHOICES = [
    (command, option.split(), choice)
    for command, usage in USAGE.items()
    for option, choices in re.findall(
        r"(--[a-z-]+ |)\{([^}]*)\}", usage.replace(" PERMISSIONS", " {look,act,attach}")
    )
    for choice in choices.split(",")
]


@pytest.mark.parametrize("command, option, choice", CHOICES)
def test_a_misspelt_choice_is_answered_with_the_choice(
    command: str, option: list[str], choice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = needed(command) if option else []

    status, text = said(capsys, command, *option, misspelt(choice), *rest)

    assert status == Status.USAGE
    assert f"did you mean {choice}?" in text


def test_a_misspelt_node_or_process_is_answered_with_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    at_node = [name for name, usage in USAGE.items() if re.search(r"\bNODE\b", usage)]
    at_process = [name for name in at_node if re.search(r"\bWHO\b", USAGE[name])]
    through = [name for name in at_node if "--via" in USAGE[name]]
    assert {"ps", "observe"} < {*at_node}
    assert {"info", "kill", "trace"} < {*at_process}
    assert {"ps", "info"} < {*through}

    with open_node("demo@localhost", control="look,act", log_output="none", watchdog=None) as node:
        node.spawn(Puppet, name="counter")
        for command in at_node:
            if command == "observe":  # it waits for a node that does not run yet
                continue
            status, text = said(capsys, command, *needed(command, NODE="demoo"))
            assert (status, "; did you mean 'demo'?" in text) == (Status.NO_NODE, True), command
        for command in through:
            words = needed(command, NODE="demo@localhost")
            status, text = said(capsys, command, *words, "--via", "demoo")
            assert (status, "; did you mean 'demo'?" in text) == (Status.NO_NODE, True), command
        for command in at_process:
            yes = ["--yes"] if "--yes" in HELP[command] else []
            words = needed(command, NODE="demo", WHO="counterr")
            status, text = said(capsys, command, *words, *yes)
            assert (status, "; did you mean 'counter'?" in text) == (Status.NO_PROCESS, True), text


def test_the_observer_page_waits_for_a_node_and_tells_that_its_name_may_be_misspelt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The port is taken: otherwise the command would serve until Ctrl-C.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ("--port", str(taken.getsockname()[1]))
        with open_node("demo@localhost", control="look", log_output="none", watchdog=None):
            status, text = said(capsys, "observe", "demoo", *words)
            _, right = said(capsys, "observe", "demo", *words)
            _, unlike = said(capsys, "observe", "stock", *words)
            _, unfit = said(capsys, "ps", "stock-*")
        _, alone = said(capsys, "observe", "demo", *words)
        _, nothing = said(capsys, "ps", "stock-*")

    assert "no node with the name 'demoo' is running; did you mean 'demo'?\n" in text
    assert "a free port of 127.0.0.1" in text
    assert status == Status.FAILED
    assert "no node" not in right
    assert "no node with the name 'stock' is running; there are: demo@localhost\n" in unlike
    assert "no node fits 'stock-*'; there are:\n  demo@localhost\n" in unfit
    assert "no node offers a control socket; start one with `ergo run --control look" in alone
    assert "; the page shows 'demo' as soon as it runs\n" in alone
    assert "no node offers a control socket; start one with `ergo run --control look" in nothing
