"""A newcomer's walk, for real: build, install into an empty environment, and follow the tutorial
there. `make walk` takes it.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import pytest

from tests.examples.newcomer import Newcomer
from tests.examples.programs import ROOT
from tests.examples.walk_record import STEPS, Walk
from tests.support import THOROUGH, short_directory
from tests.test_readme import commands, shown

pytestmark = pytest.mark.skipif(not THOROUGH, reason="takes minutes, and needs a package index")

LIMIT = 3000
"""Seconds for a command: an installation with checks takes over ten minutes on a busy machine."""


def environment_variables() -> dict[str, str]:
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "VIRTUAL_ENV", "COV_", "MAKE", "MFLAGS", "HYPOTHESIS"))
    }


def run(*command: object) -> str:
    # Nothing of this checkout, nor of the environment that the tests run in, may help.
    done = subprocess.run(
        list(map(str, command)),
        cwd="/",
        env=environment_variables(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def environment(path: Path, *packages: object) -> Path:
    """A new environment with these packages; returns where its programs are."""
    run(sys.executable, "-m", "venv", path)
    if not packages:
        return path / "bin"
    run(
        path / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *packages,
    )
    return path / "bin"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Short, because a control socket is in it."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="module")
def walk() -> Walk:
    return Walk()


@pytest.fixture(scope="module")
def dist(place: Path, walk: Walk) -> Path:
    """A directory with the wheel and the sdist, built from a copy of the working tree."""
    builder = environment(place / "builder", "hatchling>=1.27")
    run("git", "-C", ROOT, "clone", "--quiet", "--no-hardlinks", ROOT, place / "source")
    # The copy has the committed files; uncommitted changes are tested, too.
    for name in run(
        "git", "-C", ROOT, "ls-files", "--modified", "--others", "--exclude-standard"
    ).splitlines():
        target = place / "source" / name
        if (ROOT / name).is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
        else:
            target.unlink(missing_ok=True)
    with walk.step(STEPS[0]):
        run(
            "sh",
            "-c",
            f"cd '{place}/source' && '{builder}/python' -m hatchling build -d '{place}/dist'",
        )
    return place / "dist"


def test_the_wheel_holds_only_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (
            archive.read(name).decode() for name in names if name.endswith("entry_points.txt")
        )
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("METADATA"))

    tops = {name.split("/")[0] for name in names}

    assert {re.sub(r"-[\d.]+\.dist-info", ".dist-info", top) for top in tops} == {
        "ergo_py",
        "pytest_ergo_py.py",
        "ergo_py.dist-info",
    }
    assert "ergo_py/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(re.search(r"(^|/)test_\w+\.py$|\.(pyc|c|h)$", name) for name in names)
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "ergo_py").rglob("*.py")} < names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "ergo_py").rglob("*.in")} < names
    assert "ergo = ergo_py.shell.cli:main" in entry_points
    assert "[pytest11]\nergo_py = pytest_ergo_py" in entry_points
    assert set(re.findall(r"^Requires-Dist: (\w+)(?!.*extra)", metadata, re.MULTILINE)) == {
        "trio",
        "outcome",
        "structlog",
    }


def test_the_sdist_holds_the_checked_in_files(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = {
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("ergo_py/**/*.[ch]")),
        "hatch_build.py",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Makefile",
        "pyproject.toml",
        "PKG-INFO",
    }

    assert needed < names
    assert {
        "ergo_py/py.typed",
        "tests/conftest.py",
        "examples/counter/main.py",
        "docs/tutorial.md",
    } < names
    assert not any(
        re.search(r"__pycache__|_build/|\.venv|\.hypothesis|dist/", name) for name in names
    )


def test_the_sdist_installs_and_works(place: Path, dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")

    programs = environment(place / "from-sdist", sdist)

    assert run(programs / "ergo", "--version").startswith("ergo_py ")


@pytest.mark.parametrize(
    "setting, tag, build",
    [
        ("PATH=$PATH", "cp3", "with the C extension"),
        ("ERGO_PURE=1", "py3-none-any", "pure Python"),
        ("CC=no-such-compiler", "py3-none-any", "pure Python"),
    ],
)
def test_a_wheel_has_the_extension_if_there_is_a_compiler(
    place: Path, dist: Path, setting: str, tag: str, build: str
) -> None:
    if tag == "cp3" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler here")
    (sdist,) = dist.glob("*.tar.gz")
    wheels = place / f"wheels-{setting.partition('=')[0]}"
    pip = f"'{place}/builder/bin/python' -m pip wheel --quiet --no-deps --wheel-dir '{wheels}'"

    run("sh", "-c", f"{setting} {pip} '{sdist}'")

    (wheel,) = wheels.iterdir()
    assert tag in wheel.name
    programs = environment(wheels / "venv", wheel)
    assert build in run(programs / "ergo", "--version")


def in_source(place: Path, *lines: str) -> str:
    """Run the lines of a script in the copy of the working tree."""
    return run("sh", "-ec", "\n".join([f"cd '{place}/source'", *lines]))


def test_a_checkout_is_installed_as_the_first_steps_say(place: Path, dist: Path) -> None:
    *install, version = commands("install")
    assert install == ["python3 -m venv .venv", ". .venv/bin/activate", "pip install ."]

    out = in_source(place, *install, version, "command -v ergo")

    said, path = out.splitlines()[-2:]
    assert said.startswith("ergo_py ")
    assert path == f"{place}/source/.venv/bin/ergo"


def test_a_checkout_is_installed_with_uv(place: Path, dist: Path) -> None:
    programs = environment(place / "uv", "uv")

    out = in_source(
        place,
        f"'{programs}/uv' venv --quiet --python '{sys.executable}' .venv-uv",
        ". .venv-uv/bin/activate",
        f"'{programs}/uv' pip install --quiet .",
        "ergo --version",
    )

    assert out.startswith("ergo_py ")


def test_the_package_is_installed_from_an_index(place: Path, dist: Path) -> None:
    (place / "simple" / "ergo-py").mkdir(parents=True)
    for file in dist.iterdir():
        shutil.copy(file, place / "simple" / "ergo-py")

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(place))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            index = f"http://127.0.0.1:{server.server_port}/simple"
            programs = environment(place / "from-index", "--extra-index-url", index, "ergo_py")
        finally:
            server.shutdown()
            thread.join()

    assert run(programs / "ergo", "--version").startswith("ergo_py ")


def test_make_demo_works_in_a_fresh_checkout(place: Path, dist: Path) -> None:
    out = in_source(place, "rm -rf .venv", "DEMO_SECONDS=0 make demo")

    assert out.splitlines()[0] == "creating the environment .venv with python3 ..."
    assert "installing ergo_py, trio, outcome and structlog into .venv ..." in out
    assert "demo@localhost" in out


def test_the_commands_of_the_image_run_the_demonstration(place: Path, dist: Path) -> None:
    steps = dict(
        line.split(" ", 1)
        for line in (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith(("RUN", "CMD"))
    )
    programs = environment(place / "image")
    (place / "demo").mkdir()
    shutil.copytree(ROOT / "examples", place / "demo" / "examples")

    run("sh", "-ec", f"'{programs}/python' -m {steps['RUN'].replace('/source', f'{place}/source')}")
    python, *arguments = json.loads(steps["CMD"])
    command = shlex.join([str(programs / python), *arguments])
    out = run("sh", "-ec", f"cd '{place}/demo'; HOME=/nonexistent exec {command}")

    assert "demo@localhost" in out


def test_a_new_project_passes_its_checks_in_a_fresh_environment(place: Path, dist: Path) -> None:
    new, wheel, enter, check, serve = commands("new")
    assert (enter, check, serve) == ("cd shop", "make check", "make run")

    out = in_source(
        place,
        "python3 -m venv .venv-new",
        ". .venv-new/bin/activate",
        "pip install --quiet .",
        new,
        wheel,
        "deactivate",
        enter,
        check,
    )

    assert "4 passed" in out
    assert "no issues found in 5 source files" in out
    with subprocess.Popen(
        [*serve.split(), "ARGS=--port 0"],
        cwd=place / "source" / "shop",
        env={**environment_variables(), "XDG_RUNTIME_DIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        said = [program.stdout.readline() for _ in range(2)]
        os.killpg(program.pid, signal.SIGINT)
        program.communicate(timeout=100)
    assert said[1].startswith("listening at 127.0.0.1:"), said


@contextmanager
def started(newcomer: Newcomer, command: str) -> Iterator["subprocess.Popen[str]"]:
    """A program of the newcomer, until Ctrl-C; it must end well."""
    with subprocess.Popen(
        shlex.split(command),
        cwd=newcomer.place,
        env=newcomer.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=100)
        assert program.returncode == 0, errors


def ask(newcomer: Newcomer, command: str) -> str:
    """The output of a command of the newcomer."""
    done = subprocess.run(
        shlex.split(command),
        cwd=newcomer.place,
        env=newcomer.env,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_first_steps_of_a_newcomer_are_taken_and_timed(dist: Path, walk: Walk) -> None:
    """With nothing but the wheel; the page of the documentation has the times."""
    (wheel,) = dist.glob("*.whl")
    with short_directory() as place:
        with walk.step(STEPS[1]):
            programs = environment(place / ".venv", f"{wheel}[network]")
        (place / "work").mkdir()
        newcomer = Newcomer(place / "work", programs)
        where = ask(newcomer, "python -c 'import ergo_py; print(ergo_py.__file__)'")
        assert str(place) in where
        with walk.step(STEPS[2]):
            assert ask(newcomer, "ergo --version").startswith("ergo_py ")
        with walk.step(STEPS[3]):
            look_at_the_demo(newcomer)
        meet_the_program_of_the_readme(newcomer, walk)
        with walk.step(STEPS[7]):
            ask(newcomer, "ergo new shop")
        with walk.step(STEPS[8]):
            ask(newcomer, "python -m pip install --quiet pytest pytest-trio msgspec")
            passed = ask(newcomer, "sh -c 'cd shop && python -m pytest -q'")
            assert "4 passed" in passed
        with walk.step(STEPS[9]):
            follow_the_tutorial(place / "tutorial", programs)
    walk.write()


def look_at_the_demo(newcomer: Newcomer) -> None:
    """All of it runs from the wheel, and a killed part comes back."""
    with started(newcomer, "ergo demo --no-browser") as demo:
        assert demo.stdout is not None
        address = demo.stdout.readline().split("#")[0].strip()
        with urlopen(address, timeout=60) as page:
            assert b"<title>" in page.read()
        while "Ctrl-C" not in demo.stdout.readline():
            pass
        before = processes_of_the_demo(newcomer)
        names = {"intake", "entities", "worker-1", "worker-2", "worker-3", "pump", "moody"}
        assert names <= before.keys()
        for killed in ("intake", "worker-1"):
            ask(newcomer, f"ergo kill demo {killed} --yes")
        now = before
        while not all(
            now.get(name) not in (None, before[name]) for name in ("intake", "pump", "worker-1")
        ):
            now = processes_of_the_demo(newcomer)
        assert now["entities"] == before["entities"]


def processes_of_the_demo(newcomer: Newcomer) -> dict[str, object]:
    """The numbers of the named processes."""
    listed = json.loads(ask(newcomer, "ergo ps demo --json"))["rows"]
    return {each["name"]: each["id"] for each in listed if each["name"]}


def meet_the_program_of_the_readme(newcomer: Newcomer, walk: Walk) -> None:
    (_, source) = shown("file")[0]
    source = source.replace("port=7777", "port=0")
    (newcomer.place / "sum_server.py").write_text(source, encoding="utf-8")
    command = "ergo run --control look sum_server.py"
    with ExitStack() as stack:
        with walk.step(STEPS[4]):
            program = stack.enter_context(started(newcomer, command))
            assert program.stdout is not None
            said = ""
            while "listening at" not in said:
                said = program.stdout.readline()
                assert said, "the program has ended"
        host, _, port = said.split()[-1].rpartition(":")
        with (
            walk.step(STEPS[5]),
            socket.create_connection((host, int(port)), timeout=60) as peer,
            peer.makefile("rw") as lines,
        ):
            for line, answer in (("3", "= 3"), ("4", "= 7"), ("five", None), ("5", "= 5")):
                lines.write(f"{line}\n")
                lines.flush()
                if answer is not None:
                    assert lines.readline() == f"{answer}\n"
        with walk.step(STEPS[6]):
            assert "Sum" in ask(newcomer, "ergo ps")
            assert "five" in ask(newcomer, "ergo crashes")


def follow_the_tutorial(place: Path, programs: Path) -> None:
    place.mkdir()
    newcomer = Newcomer(place, programs)

    newcomer.follow(ROOT / "docs" / "tutorial.md")

    assert "transcript: ergo attach poll" in newcomer.done
    assert newcomer.done[-1] == "observes"
    assert (place / "test_poll.py").is_file()
