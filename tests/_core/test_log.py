import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from datetime import UTC, datetime
from errno import ENOSPC, EPIPE
from functools import partial
from typing import Any, NoReturn, TextIO, cast

import pytest
import structlog
import trio

from ergo_py import PID, Actor, Alias, Caller, MetaProcess, Reason, TargetDownError, open_node
from ergo_py._core.log import Log
from ergo_py._core.vocabulary.errors import BadInputError
from ergo_py._core.vocabulary.messages import LogRecord
from ergo_py._core.vocabulary.options import LEVELS, Output
from ergo_py.info import NodeInfo
from tests.actors import Puppet

ME = PID("demo@localhost", 7, 1)
METHODS = ["debug", "info", "warning", "error", "critical"]


def never(record: LogRecord) -> None:
    raise AssertionError(f"nobody listens, and yet there is {record}")


def make(output: Output = "console", level: str = "debug") -> Log:
    return Log("demo@localhost", level, output, never)


@pytest.fixture
def host_structlog() -> Iterator[list[dict[str, Any]]]:
    """The host program has configured structlog: this list is its log."""
    lines: list[dict[str, Any]] = []

    def keep(_logger: object, method: str, event: Any) -> Any:
        lines.append({"method": method, **event})
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    yield lines
    structlog.reset_defaults()


class Terminal:
    """Just enough of a standard error that is a terminal, or says nothing about it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


class ColourTerminal(Terminal):
    def isatty(self) -> bool:
        return True


# -- outputs ---------------------------------------------------------------------------------------


def test_the_console_gets_a_readable_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make("console").logger(ME, name="db").warning("queue is long", depth=5)

    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line.count("\n") == 1
    for part in (
        "[warning",
        "queue is long",
        f"pid='{ME}'",
        "node=demo@localhost",
        "name=db",
        "depth=5",
    ):
        assert part in line
    assert "\x1b[" not in line


def test_the_console_shows_an_exception_below_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    make("console").logger(ME).error("failed", exception="Traceback …\nValueError: five")

    first, *rest = capsys.readouterr().err.splitlines()
    assert "failed" in first
    assert rest == ["  Traceback …", "  ValueError: five"]


@pytest.mark.parametrize("terminal, coloured", [(ColourTerminal(), True), (Terminal(), False)])
def test_the_console_has_colours_on_a_terminal_only(
    terminal: Terminal, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)

    make("console").logger(ME).info("hello")

    assert "hello" in terminal.text
    assert ("\x1b[" in terminal.text) is coloured


def test_lines_go_to_the_current_standard_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = make("console").logger(ME)
    later = Terminal()

    monkeypatch.setattr(sys, "stderr", later)
    logger.info("hello")

    assert "hello" in later.text


def test_json_output_has_an_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    logger = make("json").logger(ME, behaviour="Counter")

    logger.info("hello", depth=5, target=ME, text='with "quotes"\nand lines')
    logger.error("goodbye")

    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert list(first)[:3] == ["timestamp", "level", "event"]
    first.pop("timestamp")
    assert first == {
        "level": "info",
        "event": "hello",
        "pid": str(ME),
        "node": "demo@localhost",
        "behaviour": "Counter",
        "depth": 5,
        "target": str(ME),
        "text": 'with "quotes"\nand lines',
    }
    assert (second["level"], second["event"]) == ("error", "goodbye")


def test_json_output_has_the_time_in_utc_as_iso_8601_writes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = datetime.now(UTC)

    make("json").logger(ME).info("hello")

    stamp = json.loads(capsys.readouterr().err)["timestamp"]
    assert stamp.endswith("Z")
    assert before <= datetime.fromisoformat(stamp) <= datetime.now(UTC)


@pytest.mark.parametrize("output", ["console", "stdlib"])
def test_a_text_output_names_the_error_of_a_traceback_once(
    output: Output, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    make(output).logger(ME).error(
        "crashed", error="five", exception="Traceback …\nValueError: five"
    )
    make(output).logger(ME).error("refused", error="six")

    written = capsys.readouterr().err + "".join(record.getMessage() for record in caplog.records)
    assert written.count("five") == 1
    assert written.count("six") == 1


def test_json_output_keeps_the_error_beside_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make("json").logger(ME).error("crashed", error="five", exception="Traceback …")

    assert json.loads(capsys.readouterr().err)["error"] == "five"


@pytest.mark.parametrize("output", ["console", "json"])
def test_a_value_of_the_context_that_is_none_is_left_out(
    output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    make(output).logger(ME, name=None, behaviour="Counter").info("hello", result=None)

    line = capsys.readouterr().err
    assert "name" not in line.replace("result", "")
    assert "result" in line


def test_a_line_has_the_context_variables_of_structlog(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records: list[LogRecord] = []
    log = Log("demo@localhost", "debug", "json", records.append)
    log.watched = True

    with structlog.contextvars.bound_contextvars(order=5, depth=1, pid="elsewhere"):
        log.logger(ME).info("hello", depth=2)
    log.logger(ME).info("goodbye")

    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (first["order"], first["depth"], first["pid"]) == (5, 2, str(ME))
    assert "order" not in second
    assert (records[0].fields["order"], records[0].fields["depth"]) == (5, 2)


def test_the_stdlib_gets_a_text_and_the_fields_beside_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    make("stdlib").logger(ME).warning("queue is long", depth=5, exception="Traceback …")

    (record,) = caplog.records
    assert record.name == "ergo_py"
    assert record.levelno == logging.WARNING
    assert (
        record.getMessage()
        == f"queue is long pid='{ME}' node='demo@localhost' depth=5\n  Traceback …"
    )
    assert record.__dict__["ergo"] == {
        "pid": str(ME),
        "node": "demo@localhost",
        "depth": 5,
        "exception": "Traceback …",
    }


def test_a_text_with_percent_signs_reaches_the_stdlib_unchanged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)

    make("stdlib").logger(ME).info("100% of %s")

    assert caplog.records[0].getMessage().startswith("100% of %s pid=")


def test_structlog_gets_the_line_as_an_event_of_the_host(
    host_structlog: list[dict[str, Any]],
) -> None:
    make("structlog").logger(ME).error("failed", depth=5)

    assert host_structlog == [
        {"method": "error", "event": "failed", "pid": str(ME), "node": "demo@localhost", "depth": 5}
    ]


def test_the_output_none_writes_no_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    make("none").logger(ME).critical("failed")

    assert capsys.readouterr() == ("", "")
    assert caplog.records == []


def test_auto_is_the_console_if_the_host_has_configured_no_logging(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # pytest itself has set up the stdlib, for as long as a test runs.
        patch.setattr(logging.getLogger(), "handlers", [])
        make("auto").logger(ME).info("hello")

    assert "[info" in capsys.readouterr().err


def test_auto_is_the_stdlib_if_the_host_has_configured_it(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    make("auto").logger(ME).info("hello")

    assert [record.name for record in caplog.records] == ["ergo_py"]
    assert capsys.readouterr().err == ""


def test_auto_is_structlog_if_the_host_has_configured_it_even_beside_the_stdlib(
    host_structlog: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)

    make("auto").logger(ME).info("hello")

    assert [line["event"] for line in host_structlog] == ["hello"]
    assert caplog.records == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("output", ["syslog", "", None, 5])
def test_an_unknown_output_is_refused_with_the_known_outputs(output: Any) -> None:
    with pytest.raises(
        BadInputError, match="one of auto, console, json, stdlib, structlog, none"
    ) as caught:
        make(output)

    assert caught.value.given is output


@pytest.mark.parametrize("level", ["loud", None, 20])
def test_an_unknown_level_is_refused_with_the_known_levels(level: Any) -> None:
    with pytest.raises(BadInputError, match="one of debug, info, warning, error, critical, off"):
        make(level=level)


# -- the host's configuration ----------------------------------------------------------------------


@pytest.mark.parametrize("output", ["auto", "console", "json", "stdlib", "structlog", "none"])
@pytest.mark.usefixtures("capsys")
def test_no_global_configuration_is_changed(output: Output) -> None:
    def state() -> tuple[object, ...]:
        root, ours = logging.getLogger(), logging.getLogger("ergo_py")
        return (
            (structlog.is_configured(), structlog.get_config()),
            (
                root.level,
                list(root.handlers),
                ours.level,
                list(ours.handlers),
                ours.propagate,
                ours.disabled,
            ),
        )

    before = state()

    log = make(output)
    log.logger(ME, "info").error("failed")

    assert state() == before


@pytest.mark.parametrize("output", ["console", "json", "stdlib", "none"])
@pytest.mark.usefixtures("capsys")
def test_the_hosts_structlog_is_not_used_unless_it_is_the_output(
    output: Output,
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("somebody used the host's configuration")

    structlog.configure(processors=[refuse], logger_factory=refuse, wrapper_class=refuse)  # type: ignore[arg-type,list-item]  # pyright: ignore[reportArgumentType]
    try:
        make(output).logger(ME).error("failed")
    finally:
        structlog.reset_defaults()


# -- levels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_a_line_is_written_if_its_level_is_high_enough(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make("json", level)
    logger = log.logger(ME)

    for method in METHODS:
        getattr(logger, method)("hello")

    written = [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()]
    assert written == [method for method in METHODS if LEVELS[method] >= LEVELS[level]]
    assert written == [method for method in METHODS if log.wants(method)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_process_may_have_its_own_log_level(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = make("json", "warning")
    ours, theirs = log.logger(ME, level), log.logger(ME)

    for method in METHODS:
        getattr(ours, method)("ours")
        getattr(theirs, method)("theirs")

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines if line["event"] == "ours"] == [
        method for method in METHODS if LEVELS[method] >= LEVELS[level]
    ]
    assert [line["level"] for line in lines if line["event"] == "theirs"] == [
        "warning",
        "error",
        "critical",
    ]


# -- lines -----------------------------------------------------------------------------------------


def test_the_other_names_of_the_levels_mean_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    logger = make("json").logger(ME)

    logger.warn("hello")
    logger.fatal("hello")
    logger.msg("hello")
    logger.log(logging.ERROR, "hello")

    assert [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()] == [
        "warning",
        "critical",
        "info",
        "error",
    ]


@pytest.mark.parametrize("output", ["console", "json", "stdlib"])
def test_an_exception_in_flight_is_written_as_text_by_every_output(
    output: Output, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    try:
        raise ValueError("five")
    except ValueError:
        make(output).logger(ME).exception("failed")

    written = capsys.readouterr().err + caplog.text
    assert "Traceback (most recent call last)" in written
    assert "ValueError: five" in written
    assert "exc_info" not in written


def test_a_field_does_not_replace_the_process_the_level_or_the_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records: list[LogRecord] = []
    log = Log("demo@localhost", "debug", "json", records.append)
    log.watched = True

    log.logger(ME).info("hello", source="elsewhere", level="high", timestamp="yesterday")

    line = json.loads(capsys.readouterr().err)
    assert (line["pid"], line["source"], line["level"]) == (str(ME), "elsewhere", "info")
    assert line["timestamp"] != "yesterday"
    assert (records[0].source, records[0].level) == (ME, "info")


def test_fields_bound_to_a_logger_are_in_each_of_its_lines_and_in_no_other_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = make("json").logger(ME)
    bound = logger.bind(request=7)

    bound.info("hello")
    logger.info("hello")

    with_request, without = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert with_request["request"] == 7
    assert "request" not in without


# -- logger processes ------------------------------------------------------------------------------


def test_a_record_is_offered_while_a_logger_listens(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[LogRecord] = []
    log = Log("demo@localhost", "info", "none", records.append)
    logger = log.logger(ME, name="db")

    logger.info("too early")
    log.watched = True
    logger.debug("too light")
    logger.warning("heard", depth=5)
    log.watched = False
    logger.info("too late")

    (record,) = records
    assert (record.level, record.event, record.node, record.source) == (
        "warning",
        "heard",
        "demo@localhost",
        ME,
    )
    assert record.fields == {"node": "demo@localhost", "name": "db", "depth": 5}


def test_a_listener_that_changes_a_record_does_not_change_the_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def spoil(record: LogRecord) -> None:
        assert isinstance(record.fields, dict)
        record.fields.clear()

    log = Log("demo@localhost", "info", "json", spoil)
    log.watched = True

    log.logger(ME).info("hello", depth=5)

    assert json.loads(capsys.readouterr().err)["depth"] == 5


# -- outputs that fail -----------------------------------------------------------------------------


class Failing(Terminal):
    """A standard error that cannot be written to, until it can."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


def closed_file() -> Any:
    file = open(os.devnull, "w")  # noqa: SIM115
    file.close()
    return file


def full_disk() -> Failing:
    return Failing(OSError(ENOSPC, "No space left on device"))


BROKEN_STREAMS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "closed": closed_file,
    "full disk": full_disk,
    "broken pipe": lambda: Failing(BrokenPipeError(EPIPE, "Broken pipe")),
}


def break_stderr(patch: pytest.MonkeyPatch, how: str) -> Any:
    stream = BROKEN_STREAMS[how]()
    patch.setattr(sys, "stderr", stream)
    patch.setattr(sys, "__stderr__", stream)
    return stream


@pytest.fixture
def our_stdlib_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("ergo_py")
    filters, handlers = list(logger.filters), list(logger.handlers)
    yield logger
    logger.filters[:], logger.handlers[:] = filters, handlers


def fail(*args: object) -> Any:
    raise KeyError("request_id")


class FailingHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fail()


def host_fails(how: str, stdlib: logging.Logger) -> Output:
    """Let the host program's logging raise. Returns the output to log to."""
    match how:
        case "filter":
            stdlib.addFilter(fail)
            return "stdlib"
        case "handler":
            stdlib.addHandler(FailingHandler())
            return "stdlib"
        case "processor":
            structlog.configure(processors=[fail])
        case _:
            printer = structlog.PrintLogger(cast(TextIO, full_disk()))
            structlog.configure(logger_factory=lambda *_: printer)
    return "structlog"


HOSTS = ["filter", "handler", "processor", "print logger on a full disk"]


@pytest.fixture
def reset_structlog() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Crashing(Actor):
    def handle_message(self, message: object, sender: PID) -> None:
        raise ValueError("five")


class Living(Actor):
    def __init__(self, ended: list[Reason]) -> None:
        self.ended = ended

    def handle_call(self, request: object, caller: Caller) -> object:
        return request

    async def terminate(self, reason: Reason) -> None:
        self.ended.append(reason)


async def crash_beside(output: Output) -> NodeInfo:
    """A process crashes on a node with such a log; all the rest goes on, and ends in order."""
    ended: list[Reason] = []
    infos: list[NodeInfo] = []
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output=output) as node:
            crashing, living = await node.spawn(Crashing), await node.spawn(Living, ended)
            node.send(crashing, 1)
            await node.wait_ended(crashing)
            assert await node.call(living, 7, timeout=20) == 7
            assert node.processes() == [living]
            infos.append(node.info())
    assert [str(reason) for reason in ended] == ["shutdown"]
    assert node.exit_report is not None
    assert not node.exit_report.killed
    return infos[0]


@pytest.mark.parametrize("stream", BROKEN_STREAMS)
@pytest.mark.parametrize("output", ["console", "json"])
async def test_a_node_continues_without_a_standard_error(
    output: Output, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_stderr(patch, stream)
        info = await crash_beside(output)

    assert info.log_lines_lost == 1


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.usefixtures("reset_structlog")
async def test_a_node_continues_when_the_hosts_logging_raises_and_reports_it(
    host: str, our_stdlib_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    info = await crash_beside(host_fails(host, our_stdlib_logger))

    written = capsys.readouterr().err
    assert written.count("a log output raised") == 1
    assert "process crashed" in written
    assert "  ValueError: five" in written
    assert info.log_lines_lost == 0


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.usefixtures("reset_structlog")
async def test_a_node_continues_when_neither_logging_nor_standard_error_works(
    host: str, our_stdlib_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = host_fails(host, our_stdlib_logger)
    with monkeypatch.context() as patch:
        break_stderr(patch, "none")
        info = await crash_beside(output)

    assert info.log_lines_lost == 1


def test_lost_lines_are_reported_once_when_a_line_can_be_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = make("console")
    logger = log.logger(ME)
    with monkeypatch.context() as patch:
        stream = break_stderr(patch, "full disk")
        logger.info("one")
        logger.info("two")
        stream.error = None
        logger.info("three")
        logger.info("four")

    assert log.lost == 2
    three, told, four = stream.text.splitlines()
    assert "three" in three
    assert "log lines could not be written" in told
    assert "lost=2" in told
    assert "four" in four


@pytest.mark.usefixtures("reset_structlog")
def test_an_output_that_loses_a_line_of_its_own_each_time_is_told_once() -> None:
    log = make("structlog")
    logger, written = log.logger(ME), list[str]()

    def ship(_logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
        written.append(event["event"])
        assert len(written) < 10
        log.lost += 1  # a line that it writes meanwhile
        raise structlog.DropEvent

    structlog.configure(processors=[ship])
    logger.info("one")

    assert written == ["one", "log lines could not be written"]


def test_an_error_of_an_output_is_reported_once_and_every_line_is_written(
    our_stdlib_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = make(host_fails("filter", our_stdlib_logger)).logger(ME)

    logger.warning("one")
    logger.warning("two", exception="Traceback …")

    told, one, two, below = capsys.readouterr().err.splitlines()
    assert "[error] a log output raised" in told
    assert "KeyError('request_id')" in told
    assert "[warning] one pid=" in one
    assert "[warning] two pid=" in two
    assert below == "  Traceback …"


def test_a_replaced_standard_error_that_fails_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = make("console")
    original = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full_disk())
        patch.setattr(sys, "__stderr__", original)
        log.logger(ME).info("hello")

    assert "hello" in original.text
    assert log.lost == 0


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("unspeakable")

    __str__ = __repr__


@pytest.mark.parametrize("output", ["console", "json", "stdlib"])
def test_a_value_with_a_failing_str_is_replaced_by_a_remark(
    output: Output, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = make(output)

    unspeakable: Any = Unspeakable()
    log.logger(ME).info(unspeakable, value=unspeakable)

    written = capsys.readouterr().err + caplog.text
    assert "<its __str__ raised>" in written
    assert "value=" in written or '"value"' in written
    assert "a log output raised" not in written


@pytest.mark.parametrize(
    "value", [{(1, 2): 3}, "itself"], ids=["keys that are no text", "a value in itself"]
)
def test_json_shows_the_repr_of_unknown_values(
    value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if value == "itself":
        value = []
        value.append(value)

    make("json").logger(ME).info("hello", value=value)

    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["value"]) == ("hello", repr(value))


def test_an_exception_that_cannot_be_formatted_does_not_raise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Strange(Exception):
        # From Python 3.13 on, traceback copes with notes that raise; no version copes with this
        # attribute.
        @property
        def __suppress_context__(self) -> bool:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
            raise OSError("no context")

    make("json").logger(ME).error("failed", exc_info=Strange())

    line = json.loads(capsys.readouterr().err)
    assert line["event"] == "failed"
    assert line["exc_info"] == "OSError('no context')"


# -- text from elsewhere ---------------------------------------------------------------------------

FORGED = "no\n12:00:00 [error    ] forged\x1b[2J\x9b\u2028end"


@pytest.mark.parametrize("stream", [Terminal, ColourTerminal])
def test_no_text_imitates_a_line_of_the_console_or_moves_the_cursor(
    stream: type[Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Strange:
        def __repr__(self) -> str:
            return FORGED

    with monkeypatch.context() as patch:
        terminal = stream()
        patch.setattr(sys, "stderr", terminal)
        logger = make("console").logger(ME)
        logger.error(
            FORGED, exception=FORGED, stack=FORGED, text=FORGED, bare="\x1b[2J", other=Strange()
        )

    first, *below = terminal.text.removesuffix("\n").split("\n")
    assert all(line.startswith("  ") for line in below)
    assert len(below) == 4
    for line in (first, *below):
        assert not any(sign in line for sign in ("\x1b[2J", "\x9b", "\u2028"))
    assert "no\\n12:00:00" in first


def test_no_text_imitates_a_line_of_the_stdlib(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    make("stdlib").logger(ME).error(FORGED, exception=FORGED, text=FORGED)

    first, *below = caplog.records[0].getMessage().split("\n")
    assert "no\\n12:00:00" in first
    assert below == ["  no", r"  12:00:00 [error    ] forged\x1b[2J\x9b\u2028end"]
    assert caplog.records[0].__dict__["ergo"]["exception"] == FORGED


@pytest.mark.filterwarnings("error")
def test_the_console_does_not_warn_about_a_traceback_given_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = make("console")

    log.logger(ME).error("failed", exception="Traceback …")

    assert "a log output raised" not in capsys.readouterr().err
    assert log.lost == 0


# -- secrets ---------------------------------------------------------------------------------------


class Secret:
    """A message that prints its content wherever it is printed."""

    def __repr__(self) -> str:
        return "swordfish"


class Deaf(Actor):
    """Handles nothing."""


class Clumsy(Actor):
    def handle_message(self, message: object, sender: PID) -> None:
        raise RuntimeError("clumsy")

    def handle_call(self, request: object, caller: Caller) -> object:
        raise RuntimeError("clumsy")

    def handle_inspect(self, *items: str) -> dict[str, str]:
        raise RuntimeError("clumsy")

    def terminate(self, reason: object) -> None:
        raise RuntimeError("clumsy")


class Speaking(MetaProcess):
    """Logs a given text, as each of the processes does in the test below."""

    async def start(self) -> None:
        await trio.sleep_forever()

    async def handle_call(self, request: Any, caller: Caller) -> object:
        return request(self)


async def test_processes_and_meta_processes_may_have_their_own_log_levels(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def speak(me: Any) -> None:
        for method in METHODS:
            getattr(me.log, method)(method)

    levels: list[str | None] = [None, "debug", "critical", "off"]
    said: list[list[str]] = []

    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="json", log_level="error") as node:
            owner = await node.spawn(Puppet)
            speakers: list[PID | Alias] = [
                await node.spawn(Puppet, log_level=level) for level in levels
            ]
            for level in levels:
                meta = partial(Puppet.spawn_meta, behaviour=Speaking(), log_level=level)
                speakers.append(await node.call(owner, lambda me, spawn=meta: spawn(me)))
            for speaker in speakers:
                await node.call(speaker, speak)
                said.append(
                    [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()]
                )

    assert said == 2 * [["error", "critical"], METHODS, ["critical"], []]


async def test_a_line_has_the_current_name_of_its_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def speak(me: Puppet) -> None:
        me.log.warning("anonymous")
        me.register("clerk")
        me.log.warning("named")
        me.unregister()
        me.log.warning("anonymous again")

    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="json") as node:
            await node.call(await node.spawn(Puppet), speak)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line.get("name") for line in lines] == [None, "clerk", None]


async def test_a_rebound_logger_stays_for_the_process_and_names_are_current(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rebind(me: Puppet) -> None:
        me.log = me.log.bind(order=5, step=1)
        me.register("clerk")
        me.log.warning("bound")
        me.log = me.log.unbind("step")
        me.unregister()

    def fail_now(me: Puppet) -> None:
        raise RuntimeError("on purpose")

    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="json") as node:
            pid = await node.spawn(Puppet)
            other = await node.spawn(Puppet)
            await node.call(pid, rebind)
            with pytest.raises(TargetDownError):
                await node.call(pid, fail_now)
            await node.call(other, lambda me: me.log.warning("other"))

            bound, crashed, of_other = (
                json.loads(line) for line in capsys.readouterr().err.splitlines()
            )
            assert (bound["order"], bound["step"], bound["name"]) == (5, 1, "clerk")
            assert (crashed["event"], crashed["order"]) == ("process crashed", 5)
            assert (crashed["pid"], crashed["behaviour"]) == (str(pid), "Puppet")
            assert not {"step", "name"} & crashed.keys()
            assert "order" not in of_other


async def test_the_logger_of_another_process_lends_only_its_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rebind(me: Puppet) -> None:
        me.log = me.node.log.bind(order=5, node="elsewhere", behaviour="Other")
        me.log.warning("bound")

    with trio.fail_after(30):
        async with open_node("demo@localhost", watchdog=None, log_output="json") as node:
            pid = await node.spawn(Puppet)
            await node.call(pid, rebind)

            line = json.loads(capsys.readouterr().err)
            assert (line["order"], line["pid"]) == (5, str(pid))
            assert (line["node"], line["behaviour"]) == ("demo@localhost", "Puppet")


async def test_the_logger_of_a_meta_process_can_be_rebound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rebind(me: Any) -> None:
        me.log = me.log.bind(order=5)

    async def own(me: Puppet) -> None:
        alias = await me.spawn_meta(Speaking())
        await me.call(alias, rebind)
        await me.call(alias, lambda meta: meta.log.warning("bound"))

    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="json") as node:
            await node.call(await node.spawn(Puppet), own)

    line = json.loads(capsys.readouterr().err)
    assert (line["order"], line["behaviour"]) == (5, "Speaking")


@pytest.mark.parametrize(
    "given",
    [None, logging.getLogger("mine"), structlog.get_logger()],
    ids=["none", "stdlib", "own"],
)
async def test_only_a_logger_with_bound_values_can_replace_the_logger_of_a_process(
    given: Any,
) -> None:
    def rebind(me: Puppet) -> object:
        with pytest.raises(BadInputError) as caught:
            me.log = given
        me.log.warning("still here")
        return str(caught.value)

    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output="none") as node:
            text = await node.call(await node.spawn(Puppet), rebind)

            assert "self.log = self.log.bind(order=5)" in text
            assert "`self.logger`" in text


@pytest.mark.parametrize("output", ["console", "json"])
async def test_no_line_holds_the_content_of_a_message(
    output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    with trio.fail_after(30):
        async with open_node(watchdog=None, log_output=output, log_level="debug") as node:
            deaf, clumsy, other = [await node.spawn(cls) for cls in (Deaf, Clumsy, Clumsy)]
            node.send(deaf, Secret())
            node.send("nobody", Secret())
            with pytest.raises(RuntimeError, match="clumsy"):
                await node.inspect(other, "swordfish")
            with pytest.raises(TargetDownError):
                await node.call(other, Secret())
            node.send(clumsy, Secret())
            await node.wait_ended(clumsy)

    written = capsys.readouterr().err
    for event in (
        "unhandled message",
        "process crashed",
        "handle_inspect raised",
        "terminate raised",
        "node down",
    ):
        assert event in written
    assert "Secret" in written
    assert "swordfish" not in written


def test_the_last_lines_are_kept_while_there_are_readers() -> None:
    log = make("none")
    logger = log.logger(ME)
    assert not log.wants("error")
    log.keep_lines(2)
    log.keep_lines(2)
    assert log.wants("error")

    for text in ("first", "second", "third"):
        logger.info(text, order=5)
    log.stop_keeping_lines()
    kept = log.kept_lines()
    log.stop_keeping_lines()

    assert [(number, record.event, record.fields["order"]) for number, record in kept] == [
        (2, "second", 5),
        (3, "third", 5),
    ]
    assert log.kept_lines() == []
    assert not log.wants("error")
