"""``ergo demo`` as a program: its page answers, and Ctrl-C ends it. The plant: a killed intake
takes its devices along, and a device that fails comes back. The gateway: a serial line and its
pipeline come back, too.
"""

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ergo_py import Backoff, ChildSpec, Node, Strategy, Supervisor
from ergo_py.control.views.log_lines import LogLines
from ergo_py.shell.cli import main
from ergo_py.shell.demo import plant
from ergo_py.shell.demo.command import open_page
from ergo_py.shell.demo.plant import Device, Intake, Ledger, Reading, gateway
from ergo_py.shell.exit_codes import Status
from tests.control.rig import runtime_directory
from tests.meta.wires import until
from tests.support import running_node

__all__ = ["runtime_directory"]


def test_the_page_of_the_demonstration_answers_until_ctrl_c(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "ergo_py", "demo", "--no-browser"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            address = program.stdout.readline().strip()
            page, secret = address.split("#token=")
            with urllib.request.urlopen(page) as answer:
                text = answer.read().decode()
            story = ""
            while "Ctrl-C" not in story:
                story += program.stdout.readline()
        finally:
            program.send_signal(signal.SIGINT)
        assert program.stderr is not None
        err = program.stderr.read()

    assert urlsplit(page).hostname == "127.0.0.1"
    assert len(secret) >= 16
    assert "<title>ergo observe</title>" in text
    assert "press Kill" in story
    assert (program.returncode, err) == (Status.DONE, "")


def test_the_demonstration_opens_its_page_with_the_key_in_the_browser(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    class Browser:
        def open(self, url: str) -> None:
            opened.append(url)
            raise KeyboardInterrupt  # the user has seen it, and presses Ctrl-C

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("webbrowser.get", Browser)
    # Without entities and worker nodes, which are programs of their own.
    monkeypatch.setattr("ergo_py.shell.demo.command.find_spec", lambda _: None)

    main(["demo"])

    address = capsys.readouterr().out.splitlines()[0]
    assert opened == [address]
    assert len(address.partition("#token=")[2]) >= 16


def test_the_demonstration_opens_no_browser_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr("webbrowser.get", lambda: pytest.fail("a browser opens"))

    open_page("http://127.0.0.1:9911")


async def test_the_page_of_the_demonstration_has_the_lines_of_later_crashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("ergo_py.shell.demo.command.find_spec", lambda _: None)
    monkeypatch.setattr(
        "ergo_py.shell.demo.command.run", lambda _, **options: given.update(options)
    )
    main(["demo", "--no-browser"])
    options = {key: value for key, value in given.items() if key.startswith("log_")}
    async with running_node(**options) as node:
        log = LogLines(node)
        first = log.look("error", "", 10)
        pid = await node.spawn(Ledger)

        node.send(pid, "no reading")
        await node.wait_ended(pid)
        (line,) = log.look("error", "", 10)["lines"]
        log.close()

    assert first == {"lines": []}
    assert line["text"] == "process crashed"


async def test_a_killed_intake_starts_again_with_its_devices() -> None:
    heard: list[Reading] = []
    plant = [
        ChildSpec("intake", Intake, lambda _, reading: heard.append(reading)),
        ChildSpec("pump", Device, "pump", False),
    ]
    async with running_node() as node:
        await node.supervise(plant, strategy=Strategy.REST_FOR_ONE)
        before = [node.whereis(name) for name in ("intake", "pump")]
        await until(lambda: bool(heard))

        node.kill("intake")
        await until(
            lambda: not {node.whereis(name) for name in ("intake", "pump")} & {None, *before}
        )
        heard.clear()
        await until(lambda: bool(heard))

        assert {reading.device for reading in heard} == {"pump"}


async def test_a_moody_device_fails_and_comes_back() -> None:
    async with running_node() as node:
        await node.supervise(
            [
                ChildSpec("intake", Intake, lambda _, reading: reading),
                ChildSpec("moody", Device, "moody", True),
            ]
        )
        first = node.whereis("moody")

        for _ in range(20):
            node.send("moody", "measure")
        await until(lambda: node.whereis("moody") not in (None, first))

        (crash,) = node.crashes()
        assert "the sensor does not answer" in str(crash.reason)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant without pauses, and a cable that is loose after ten frames."""
    monkeypatch.setattr(plant, "PERIOD", 0.001)
    monkeypatch.setattr(plant, "FRAMES", 10)
    monkeypatch.setattr(plant, "REOPEN", Backoff(0.001, 0.001))


async def start_gateway(node: Node) -> None:
    parts = [ChildSpec("ledger", Ledger), ChildSpec("gateway", Supervisor, gateway("ledger"))]
    await node.supervise(parts)


async def wait_stored(node: Node, more: int) -> None:
    """Wait until the ledger has so many further readings of the press."""
    counts: list[int] = []
    while not counts or counts[-1] < counts[0] + more:
        counts.append(int((await node.inspect("ledger")).get("press", "0")))


@pytest.mark.usefixtures("quick")
async def test_a_serial_line_goes_on_after_its_cable_was_loose() -> None:
    async with running_node() as node:
        await start_gateway(node)

        await wait_stored(node, 25)
        # Others may end before they answer: the pipeline has some of its own.
        (line,) = [a for a in node.metas() if node.meta_info(a).behaviour == "SerialLine"]

        assert int((await node.inspect_meta(line))["openings"]) >= 3
        assert node.crashes() == []


@pytest.mark.usefixtures("quick")
async def test_a_killed_pipeline_starts_again_while_the_press_waits() -> None:
    async with running_node() as node:
        await start_gateway(node)
        press, readings = node.whereis("press"), node.whereis("readings")
        await node.suspend("ledger")
        # The press waits for the pipeline, which waits for the ledger.
        await until(lambda: any(node.process_info("ledger").lanes.values()))

        node.kill("readings")
        await until(lambda: node.whereis("readings") not in (None, readings))
        await node.resume("ledger")
        await wait_stored(node, 5)

        assert node.whereis("press") == press
