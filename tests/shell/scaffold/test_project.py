"""``ergo new``: the project that it creates passes its own checks and serves."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Callable
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest

from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Leave, Status
from ergo_py.shell.scaffold import project
from ergo_py.shell.scaffold.project import create
from ergo_py.shell.scaffold.project_name import ProjectName
from tests.shell.terminal import ROOT
from tests.support import without_blockages

LONGEST = ProjectName.of("a-shop-with-the-longest-name-31")
SHORTEST = ProjectName.of("b")


def in_project(folder: Path, *command: str) -> str:
    """Run a tool of this environment in the folder of a project."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        # Most of the time of mypy goes to this package, which is the same each time.
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache" / "new-project"),
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the longest name that is allowed, so that its lines are long, too."""
    return create(LONGEST, tmp_path_factory.mktemp("new"))


def test_the_command_creates_a_project_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["new", "my-shop"]) == Status.DONE

    out = capsys.readouterr().out
    assert out.startswith("created my-shop/: a supervised TCP service with tests")
    assert "\n  cd my-shop\n  make check " in out
    assert [path.name for path in tmp_path.iterdir()] == ["my-shop"]
    assert {path.name for path in (tmp_path / "my-shop").iterdir()} == {
        ".dockerignore",
        ".gitignore",
        "Dockerfile",
        "Makefile",
        "README.md",
        "deploy",
        "my_shop",
        "pyproject.toml",
        "tests",
    }


@pytest.mark.parametrize(
    "direct_url, advised",
    [
        (None, ""),
        ('{"url": "https://example.org/ergo_py.whl"}', ""),
        (
            '{"url": "file:///srv/ergo_py"}',
            "  ERGO_PURE=1 pip wheel --no-deps --wheel-dir b/wheels /srv/ergo_py\n",
        ),
        (
            '{"url": "file:///my%20files"}',
            "  ERGO_PURE=1 pip wheel --no-deps --wheel-dir b/wheels '/my files'\n",
        ),
        (
            '{"url": "file:///dist/ergo_py-0.1.0-py3-none-any.whl"}',
            "  pip wheel --no-deps --wheel-dir b/wheels /dist/ergo_py-0.1.0-py3-none-any.whl\n",
        ),
        (
            '{"url": "file:///e-0.1.0-cp311-cp311-linux_aarch64.whl"}',
            "  pip wheel --no-deps --wheel-dir b/wheels /e-0.1.0-cp311-cp311-linux_aarch64.whl\n"
            "  # it fits this Python and machine only; the image needs the py3-none-any wheel\n",
        ),
    ],
)
def test_the_command_says_how_to_get_a_wheel_of_a_checkout(
    direct_url: str | None,
    advised: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Installed:
        version = "0.1.0"

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return direct_url

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())

    assert main(["new", "b"]) == Status.DONE

    assert f"explains its files\n\n{advised}  cd b\n" in capsys.readouterr().out


def test_the_tests_of_a_new_project_pass(folder: Path) -> None:
    assert "4 passed" in in_project(folder, "pytest", "-q", "-p", "no:cacheprovider")


def test_the_types_of_a_new_project_are_strict_and_right(folder: Path) -> None:
    out = in_project(folder, "mypy", LONGEST.package, "tests")

    assert "no issues found in 5 source files" in out


@pytest.mark.parametrize("name", [LONGEST, SHORTEST], ids=["longest", "shortest"])
def test_the_style_of_a_new_project_is_right(name: ProjectName, tmp_path: Path) -> None:
    place = create(name, tmp_path)

    in_project(place, "ruff", "format", "--no-cache", "--check", ".")
    in_project(place, "ruff", "check", "--no-cache", ".")


def test_a_new_project_serves_is_upgraded_and_stops_on_sigterm(
    folder: Path,
    short_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-m", LONGEST.package, "--port", "0"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        said = program.stdout.readline()
        assert said.startswith("listening at 127.0.0.1:"), said
        address = "127.0.0.1", int(said.rpartition(":")[2])

        with socket.create_connection(address, 60) as peer, peer.makefile("rb") as lines:
            peer.sendall(b"add apples\nadd apples\n")
            assert [lines.readline(), lines.readline()] == [b"1\n", b"2\n"]
            assert main(["upgrade", LONGEST.project]) == Status.DONE
            # The session in the old program reaches the counters in the new one.
            peer.sendall(b"add apples\nget pears\n")
            assert lines.readline() == b"3\n"
            assert lines.readline() == b"error: there is no counter pears\n"
        with socket.create_connection(address, 60) as peer, peer.makefile("rb") as lines:
            peer.sendall(b"get apples\n")
            assert lines.readline() == b"3\n"
        told = capsys.readouterr().out
        next_version = int(told.partition("process ")[2].partition("\n")[0])
        os.kill(next_version, signal.SIGTERM)
        _, err = program.communicate(timeout=100)

    assert (program.returncode, without_blockages(err)) == (0, "")
    said_in_turn = [line.partition(" s  ")[2] for line in told.splitlines()]  # behind the seconds
    assert said_in_turn[1:3] == [
        "listening sockets handed over: door",
        "states handed over: counters",
    ]


def test_a_new_project_needs_this_version_of_ergo_py(folder: Path) -> None:
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))

    assert f"ergo_py[network]>={metadata.version('ergo_py')}" in settings["project"]["dependencies"]
    assert settings["project"]["scripts"] == {LONGEST.project: f"{LONGEST.package}.__main__:main"}


def test_the_tools_of_a_new_project_have_the_versions_of_this_project(folder: Path) -> None:
    theirs = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = ours["dependency-groups"]
    known = {*groups["test-free-threaded"], *groups["lint"]}

    assert set(theirs["project"]["optional-dependencies"]["dev"]) < known
    assert theirs["project"]["dependencies"][1] in ours["project"]["dependencies"]


def test_each_installation_of_a_new_project_finds_the_wheel_of_ergo_py(folder: Path) -> None:
    paths = ["Makefile", "Dockerfile", f"deploy/{LONGEST.project}.service"]
    lines = {path: (folder / path).read_text(encoding="utf-8").splitlines() for path in paths}

    installs = [(path, line) for path in paths for line in lines[path] if "pip install" in line]

    assert [path for path, _ in installs] == paths
    assert [line for _, line in installs if " --find-links wheels " not in line] == []


def test_the_service_unit_of_a_new_project_starts_its_command(folder: Path) -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.read_string((folder / "deploy" / f"{LONGEST.project}.service").read_text(encoding="utf-8"))

    assert unit["Service"]["ExecStart"].split()[0].endswith(f"/bin/{LONGEST.project}")
    assert unit["Service"]["Restart"] == "on-failure"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_socket_unit_of_a_new_project_listens_for_its_server(folder: Path) -> None:
    def read(kind: str) -> ConfigParser:
        unit = ConfigParser(strict=False, interpolation=None)
        path = folder / "deploy" / f"{LONGEST.project}.{kind}"
        unit.read_string(path.read_text(encoding="utf-8"))
        return unit

    service, sock = read("service"), read("socket")["Socket"]
    host, _, port = sock["ListenStream"].partition(":")
    server = (folder / LONGEST.package / "server.py").read_text(encoding="utf-8")

    assert f'sock="{sock["FileDescriptorName"]}"' in server
    assert service["Service"]["ExecStart"].endswith(f" --host {host} --port {port}")
    assert service["Unit"]["Requires"] == f"{LONGEST.project}.socket"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_the_units_of_a_new_project_are_right_for_systemd(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / LONGEST.project
    program.touch(mode=0o755)
    for unit in (folder / "deploy").iterdir():
        text = unit.read_text(encoding="utf-8")
        installed = text.replace(f"/opt/{LONGEST.project}/bin/{LONGEST.project}", str(program))
        (tmp_path / unit.name).write_text(installed, encoding="utf-8")

    units = [str(path) for path in tmp_path.iterdir() if path.suffix]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert len(units) == 2


def test_a_new_project_has_no_placeholder_left(folder: Path) -> None:
    texts = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    for name, text in texts.items():
        for placeholder in ("project-name", "project_name", "ergo-version"):
            assert placeholder not in name + text
        assert text.endswith("\n")


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_a_folder_that_exists_is_not_touched(
    make: Callable[[Path], object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "shop")

    assert main(["new", "shop"]) == Status.USAGE

    assert capsys.readouterr().err == (
        f"ergo: {tmp_path / 'shop'} exists already; choose another name, or remove it first\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_a_name_that_is_not_allowed_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["new", "class"]) == Status.USAGE

    assert "a keyword of Python" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_project_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(name: ProjectName) -> list[tuple[str, str]]:
        assert [path.name[:3] for path in tmp_path.iterdir()] == [".b-"]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(project, "render", fails)

    with pytest.raises(Leave, match="cannot be created: No space left on device"):
        create(SHORTEST, tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_parent_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Leave, match="cannot be created: No such file or directory"):
        create(SHORTEST, tmp_path / "nowhere")


def test_the_folder_of_a_project_has_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()

    place = create(SHORTEST, tmp_path)

    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_project_in_a_folder_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert main(["new", "shop"]) == Status.FAILED

    told = capsys.readouterr().err
    assert told.startswith("ergo: shop cannot be created: the current folder was removed")
