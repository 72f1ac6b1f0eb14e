"""``ergo run``, ``ergo shell`` and ``ergo simulate``: the commands that open nodes in their own
program.

The other commands talk to a running node, and import neither this module nor the kernel.
"""

import argparse
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from .._core.verbs.behaviour import Behaviour
from .._core.vocabulary.errors import BadInputError, ControlSocketError, ErgoError, EscalationError
from .._core.vocabulary.hints import did_you_mean
from .._core.vocabulary.reasons import Crashed, is_failure
from ..blocking.loop_thread import OwnedNode, open_node
from ..control.evaluator import Evaluator
from ..network.errors import NetworkError
from ..node import Node
from ..program import run as run_program
from ..testing.world.plan import Plan
from ..testing.world.simulation import Simulation, SimulationError
from .exit_codes import Leave, Status
from .output import complain, show
from .program_loader import Program, load, load_module, load_test_file
from .prompt import Prompt, write
from .reload.restart import Restart
from .reload.source_files import SourceFiles

__all__ = ["run", "shell", "simulate"]


def _settings(options: argparse.Namespace, program: Program | None) -> dict[str, Any]:
    return {
        "log_level": options.log_level,
        "log_output": options.log_output,
        "control": options.control,
        "network": _network(options, program),
    }


def _network(options: argparse.Namespace, program: Program | None) -> Any:
    """The network of the command line, or else of the environment."""
    where = options.network or os.environ.get("ERGO_NETWORK", "")
    if not where:
        if options.types is not None or options.cluster is not None:
            option = "--types" if options.types is not None else "--cluster"
            raise Leave(Status.USAGE, f"{option} needs --network local or --network nats://host")
        return None
    types = [] if program is None else getattr(program.module, "TYPES", [])
    if options.types is not None:
        types = [load_module(name) for name in options.types]
    try:
        from ..network import NATS  # noqa: PLC0415 - few programs need it
        from ..network import Local as LocalNetwork  # noqa: PLC0415 - few programs need it
        from ..network.carriers.nats.login import without_login  # noqa: PLC0415 - as before
    except ModuleNotFoundError as error:
        raise Leave(Status.USAGE, str(error)) from None
    if where == "local":
        return LocalNetwork(types=types)
    if "://" not in where:
        raise Leave(
            Status.USAGE,
            f"the network {without_login(where)!r} is neither local nor a URL such as nats://host:4222",
        )
    try:
        return NATS(
            where,
            types=types,
            cluster=options.cluster or os.environ.get("ERGO_CLUSTER") or "ergo",
            credentials=os.environ.get("ERGO_CREDENTIALS") or None,
            tls=os.environ.get("ERGO_TLS_CA") or None,
        )
    except BadInputError as error:
        raise Leave(Status.USAGE, str(error)) from None


def run(options: argparse.Namespace) -> Status:
    """Run a program: ``ergo run``. With ``--reload``, run it again when its files change."""
    if not options.reload:
        return _run(options, lambda: None)
    # Python takes a file of the same size, changed within a second, for the one in its cache.
    sys.dont_write_bytecode = True
    files = SourceFiles()
    files.add(options.target.partition(":")[0])
    restart = Restart(files)
    status = restart.run(partial(_run, options))
    if status is None:
        restart.execute()
    return status


def _load(options: argparse.Namespace, *, needs_app: bool) -> Program:
    """Load the program. At a terminal, tell which of its arguments look like options of ours: it
    may have options of the same names, and a mistake would not be noticed.
    """
    late = [word for word in options.arguments if word.partition("=")[0] in options.own]
    if late and sys.stderr.isatty():
        complain(
            f"ergo: {late[0]} stands behind the program, which gets it; for ergo itself, write "
            f"`ergo {options.command} {late[0]} {options.target}`"
        )
    return load(options.target, options.arguments, needs_app=needs_app)


def _run(options: argparse.Namespace, loaded: Callable[[], None]) -> Status:
    program = _load(options, needs_app=True)
    settings = _settings(options, program)
    loaded()
    try:
        result = run_program(
            program.app,
            name=program.name if options.name is None else options.name,
            **settings,
        )
    except ControlSocketError:
        raise
    except NetworkError as error:
        complain(str(error))
        return Status.FAILED
    except EscalationError as error:
        # The log has the errors of the children already.
        complain(str(error))
        return Status.FAILED
    except Exception as error:
        if isinstance(error, BadInputError) and error.what == "name":
            raise Leave(Status.USAGE, str(error)) from None
        _show_traceback(error)
        return Status.FAILED
    if (
        isinstance(program.app, type)
        and issubclass(program.app, Behaviour)
        and result is not None
        and is_failure(result)
    ):
        complain(f"{program.app.__qualname__} ended: {result}")
        return Status.FAILED
    return Status.DONE


def _show_traceback(error: BaseException) -> None:
    """Print the error of a program. If it cannot be written, the exit status alone tells."""
    with suppress(OSError):
        traceback.print_exception(error)


def shell(options: argparse.Namespace) -> Status:
    """Open a prompt with a node of its own: ``ergo shell``."""
    program = None if options.target is None else _load(options, needs_app=False)
    name = options.name
    if name is None:
        name = "shell@localhost" if program is None else program.name
    try:
        node = open_node(name, **_settings(options, program))
    except ControlSocketError:
        raise
    except (BadInputError, OSError) as error:
        raise Leave(Status.USAGE, str(error)) from None
    local = None
    try:
        local = Local(node, program)
        Prompt(
            local,
            f"{name} is up; `node` is the node, `ps()` and `tree()` show it, Ctrl-D stops it",
            is_plain=options.plain,
        ).run()
    except ErgoError as error:
        _show_traceback(error)
        return Status.FAILED
    finally:
        if local is not None:
            local.close()
        else:
            node.close()
    return Status.DONE


class Local:
    """A node of the prompt itself. Its loop runs in a thread, so that the node runs while the user
    types.
    """

    def __init__(self, node: OwnedNode, program: Program | None) -> None:
        self._node = node
        self._program = program
        self._main = trio.CancelScope()
        self._over: trio.Event | None = None
        module = (
            {}
            if program is None
            else {k: v for k, v in vars(program.module).items() if not k.startswith("__")}
        )
        self._evaluator = Evaluator(node._subject, write, {**module, "node": node._subject})
        if program is not None and program.app is not None:
            node.run(self._start)

    async def _start(self, node: Node) -> None:
        assert self._program is not None
        app = self._program.app
        if isinstance(app, type) and issubclass(app, Behaviour):
            await node.spawn(app)
            return
        self._over = trio.Event()
        node._kernel.start(self._run_main, node, name="main")
        from trio.testing import wait_all_tasks_blocked  # noqa: PLC0415 - it imports pytest

        # Let it start and print its first output before the prompt appears.
        with trio.move_on_after(1.0):
            await wait_all_tasks_blocked(0.02)

    async def _run_main(self, node: Node) -> None:
        assert self._program is not None
        assert self._over is not None
        try:
            with self._main:
                await self._program.app(node)
                write("main has ended; the node keeps running\n")
        except Exception as error:
            # Keep the node: the prompt serves to find the cause.
            write(f"{Crashed(error).traceback}main has failed; the node keeps running\n")
        finally:
            self._over.set()

    def run(self, source: str) -> None:
        """Run an input."""
        self._node.run(lambda _: self._evaluator.run(source))

    def complete(self, text: str) -> list[str]:
        """Completions of a name."""
        return self._evaluator.complete(text)

    def close(self) -> None:
        """Stop ``main``, then the node."""
        if self._over is not None:
            self._node.run(self._stop_main)
        write(f"{self._node.close()}\n")

    async def _stop_main(self, _: Node) -> None:
        self._main.cancel()
        with trio.move_on_after(5.0):
            assert self._over is not None
            await self._over.wait()


def simulate(options: argparse.Namespace) -> None:
    """Run the test that the command line names, and show it on the page with ``--observe``.

    Raises:
        Leave: there is no such test, or it fails.
    """
    simulation = _simulation(options.test)
    plan: Plan | None = None
    failure: SimulationError | None = None
    try:
        if options.plan is not None:
            plan = Plan.read(options.plan)
        _simulate(simulation, plan, options)
    except SimulationError as error:
        failure = error
    except BadInputError as error:  # the plan, or the number of seeds
        raise Leave(Status.USAGE, str(error)) from None
    if options.observe:
        if failure is not None:
            complain(str(failure))
        shown = plan if failure is None else failure.plan
        _observe_world(simulation, shown, options.seed or 0)
    if failure is not None:
        raise Leave(Status.FAILED, "" if options.observe else str(failure)) from None


def _simulate(simulation: Simulation, plan: Plan | None, options: argparse.Namespace) -> None:
    if plan is not None:
        world = simulation.run_plan(plan)
        show(f"it goes well: {world.clock.current_time():g} s, digest {world.history.digest}")
        return
    seeds = None if options.seed is None else [options.seed]
    if options.seeds is not None:
        simulation.choose_seeds(options.seeds)
    passed = simulation.run(seeds, processes=simulation.processes)
    show("1 seed goes well" if passed == 1 else f"{passed} seeds go well")


def _observe_world(simulation: Simulation, plan: Plan | None, seed: int) -> None:
    """Record the world of a plan, or of a seed, and serve the page with the recording."""
    from ..observe.command import ObserveOptions, observe  # noqa: PLC0415 - slow, and seldom needed
    from ..observe.world_recorder import WorldRecorder  # noqa: PLC0415

    recording = WorldRecorder()
    simulation.watch(plan or Plan(seed), recording.look, is_drawn=plan is None)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "world.ergo"
        recording.write(path)
        observe(ObserveOptions(port=0, opens=True, replay=str(path)))


def _simulation(target: str) -> Simulation:
    file, _, name = target.partition("::")
    if not name:
        raise Leave(
            Status.USAGE, f"{target!r} names no test; write tests/test_shop.py::test_orders"
        )
    module = load_test_file(Path(file))
    found: object = module
    for part in name.split("::"):
        found = getattr(found, part, None)
    simulation = getattr(found, "simulation", None)
    if isinstance(simulation, Simulation):
        return simulation
    if inspect.iscoroutinefunction(found) and [*inspect.signature(found).parameters] == ["world"]:
        # The story of a world that a program explores by itself names it, too.
        return Simulation(found, 1)
    tests = [
        each
        for each, value in vars(module).items()
        if isinstance(getattr(value, "simulation", None), Simulation)
    ]
    if callable(found):
        raise Leave(
            Status.USAGE,
            f"{name} of {file} is no test of a world: `@simulated(…)` above a function that takes "
            f"the world makes it one{_in_the_file(tests)}",
        )
    hint = did_you_mean(name, tests) or _in_the_file(tests)
    raise Leave(Status.USAGE, f"{file} has no test {name} with @simulated{hint}")


def _in_the_file(tests: list[str]) -> str:
    return f"; the file has {', '.join(tests)}" if tests else ""
