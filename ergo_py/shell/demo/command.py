"""`demo`: runs simulated devices, a gateway, entities, worker nodes and the observer page."""

import argparse
import os
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import trio

from ..._core.vocabulary.errors import BadInputError
from ...actor import Actor
from ...node import Node
from ...observe.embedded_page import Observe
from ...program import run
from ...supervision.specs import ChildSpec, Strategy, SupervisorSpec
from ...supervision.supervisor import Supervisor
from ..exit_codes import Leave, Status
from ..output import is_lost_output
from .plant import Device, Intake, Ledger, Reading, gateway

__all__ = ["demo", "open_page"]

_DEVICES: Final = ("boiler", "pump", "valve", "turbine", "moody")
_STORY: Final = """\
Five devices send readings over UDP; the device moody fails every ten seconds, and its supervisor
starts it again. A press sends its readings over a serial line, whose cable is loose every half
minute, and a pipeline stores them. On the page, open a process in Tree and press Kill: see who
comes back, and who does not notice. Kill intake: the devices, which depend on it, start again, too.
Kill readings: the press waits, and its pipeline goes on.{more}
Ctrl-C ends all of it."""
_DURABLE: Final = """
Kill worker-1: its program ends, and another takes its place. Entities has the stored readings."""
_MISSING: Final = """
`pip install 'ergo_py[network]'` adds entities and worker nodes to it."""


def demo(options: argparse.Namespace) -> None:
    """Run until Ctrl-C.

    Raises:
        Leave: the port is taken.
    """
    with TemporaryDirectory(prefix="ergo-demo-") as folder:
        try:
            _run(options, Path(folder))
        except (BadInputError, OSError) as error:
            if isinstance(error, OSError) and is_lost_output(error):
                raise
            raise Leave(Status.USAGE, str(error)) from None


def _run(options: argparse.Namespace, folder: Path) -> None:
    page = Observe(options.port, permit="look,act")
    settings: dict[str, Any] = {}
    others = [ChildSpec("ledger", Ledger)]
    take, more = _count, _MISSING
    store: str | type[Actor] = "ledger"
    if find_spec("msgspec") is not None:
        from . import durable_part  # noqa: PLC0415 - it needs an extra

        settings["network"] = network = durable_part.make_network(folder)
        others = durable_part.children(network, folder)
        take, more = durable_part.take, _DURABLE
        store = durable_part.DeviceRecord
    devices = SupervisorSpec(
        [ChildSpec(name, Device, name, name == "moody") for name in _DEVICES], intensity=1000
    )
    # A device has the address of its intake from the start: it starts again with the intake.
    plant = SupervisorSpec(
        [ChildSpec("intake", Intake, take), ChildSpec("devices", Supervisor, devices)],
        strategy=Strategy.REST_FOR_ONE,
        intensity=1000,
    )

    async def main(node: Node) -> None:
        _tell(page.url)
        parts = (("gateway", gateway(store)), ("plant", plant))
        others.extend(ChildSpec(name, Supervisor, spec) for name, spec in parts)
        await node.supervise(others, intensity=1000, name="root")
        _tell(_STORY.format(more=more))
        if options.browser:
            await trio.to_thread.run_sync(open_page, page.url)
        await trio.sleep_forever()

    # No line in the terminal, where the story is; the page shows them.
    run(main, name="demo@demo", control="look,act", beside=[page], log_output="none", **settings)


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _count(intake: Intake, reading: Reading) -> None:
    intake.send("ledger", reading)


def open_page(url: str) -> None:
    """Open the page in a browser, if there is a browser, and not in continuous integration. A
    browser of the terminal would hide the story.
    """
    if os.environ.get("CI"):
        return
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return
    if not isinstance(found, webbrowser.GenericBrowser):
        found.open(url)
