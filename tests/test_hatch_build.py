"""`hatch_build.py`: the C extension is built if there is a compiler, or refused in a line."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import THOROUGH

ROOT = Path(__file__).parent.parent


def build(into: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if key != "ERGO_PURE"} | environment
    return subprocess.run(
        [sys.executable, ROOT / "hatch_build.py", "--into", into],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(
    not THOROUGH, reason="builds what the tests use already: python -m benchmarks test-deep"
)
def test_a_built_extension_can_be_imported(tmp_path: Path) -> None:
    # Optimizing takes most of the time of a build.
    done = build(tmp_path, CFLAGS="-O0")
    if done.returncode:
        pytest.skip(done.stderr.strip())

    path = done.stdout.strip()
    spec = importlib.util.spec_from_file_location("elsewhere._speed", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)

    assert Path(path).parent == tmp_path
    assert module.INTERFACE >= 1
    assert [file.name for file in tmp_path.iterdir()] == [Path(path).name]


@pytest.mark.parametrize(
    "environment, reason",
    [
        ({"ERGO_PURE": "1"}, "ERGO_PURE is set"),
        ({"CC": "no-such-compiler"}, "there is no compiler no-such-compiler"),
        ({"CC": "false"}, "false exits with 1"),
        ({"CC": "sh -c 'echo >&2 x.c:1: error: no such header; exit 1' --"}, "no such header"),
    ],
)
def test_without_a_compiler_the_reason_is_a_single_line(
    tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    done = build(tmp_path, **environment)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("ergo_py runs in pure Python: ")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_flags_of_the_user_come_after_those_of_the_package(tmp_path: Path) -> None:
    compiler = "sh -c 'echo >&2 error: $*; exit 1' --"

    done = build(tmp_path, CC=compiler, CFLAGS="-O0")

    assert done.stderr.rindex(" -O0") > done.stderr.rindex(" -O3")


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_a_wheel_leaves_nothing_in_the_folder_of_the_source(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ERGO_PURE", raising=False)
    folder = tmp_path / "ergo_py" / "_core" / "speed"
    folder.mkdir(parents=True)
    # Stands for the compiler: the file that it writes is its last argument.
    monkeypatch.setenv("CC", "sh -c 'for last; do :; done; echo made > \"$last\"' --")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = module.CustomBuildHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")
    included: dict[str, str] = {}

    hook.initialize(version, {"force_include": included})
    for made, place in included.items():
        assert Path(made).read_text(encoding="utf-8") == "made\n"
        assert place == f"ergo_py/_core/speed/{Path(made).name}"
    hook.finalize(version, {}, "")

    assert len(included) == (version == "standard")
    assert not any(Path(made).exists() for made in included)
    assert len(list(folder.iterdir())) == (version == "editable")
