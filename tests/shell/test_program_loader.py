"""Finding the program for a given name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergo_py import run
from ergo_py.shell.exit_codes import Leave, Status
from ergo_py.shell.program_loader import load

SOURCE = """
import sys
from neighbour import VALUE
from ergo_py import Actor

arguments = sys.argv

class App(Actor):
    pass

async def main(node):
    pass

async def no_node():
    pass

def plain(node):
    pass

number = 5
"""


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "some_program.py").write_text(SOURCE)
    (tmp_path / "neighbour.py").write_text("VALUE = 1")
    yield
    for name in set(sys.modules) - before:
        if not name.startswith("ergo_py."):  # a second import would make its classes twice
            del sys.modules[name]


def test_a_file_or_a_module_is_imported_with_its_neighbours_and_arguments(tmp_path: Path) -> None:
    by_path = load(f"{tmp_path}/some_program.py", ["a"], needs_app=True)
    by_name = load("some_program:App", ["b"], needs_app=True)

    assert by_path.app.__name__ == "main"
    assert by_path.module.arguments == [f"{tmp_path}/some_program.py", "a"]
    assert by_path.name == "some_program@localhost"
    assert by_name.app.__name__ == "App"


def test_a_package_may_have_its_main_function_in_its_main_module(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text("async def main(node): pass")

    program = load("pack:main", [], needs_app=True)

    assert program.app.__module__ == "pack.__main__"
    assert program.name == "pack@localhost"


def test_a_module_without_an_app_is_enough_for_a_prompt() -> None:
    program = load("neighbour", [], needs_app=False)

    assert program.app is None
    with pytest.raises(Leave, match=r"neither a `main` nor an `app` .*; write an `async def main"):
        load("neighbour", [], needs_app=True)


def test_the_error_about_a_program_without_main_names_its_actors(tmp_path: Path) -> None:
    path = tmp_path / "prog.py"
    path.write_text("from ergo_py import Actor\napp = 7\nclass Clock(Actor): ...")

    with pytest.raises(Leave) as caught:
        load(str(path), [], needs_app=True)

    assert caught.value.text.endswith(f"it has Clock: write {path}:Clock")


@pytest.mark.parametrize(
    "target, text",
    [
        ("some_program:nothing", "has no 'nothing'; it has App, main, no_node"),
        ("some_program:no_node", "must take one argument, the node"),
        ("some_program:plain", "is a plain function; it must be an `async def main"),
        ("some_program:number", "of type int"),
        ("no such", "is no module; write module:app"),
        ("nowhere", "there is no module 'nowhere'"),
        ("some_program.inner", "there is no module 'some_program.inner'"),
        ("./nowhere.py", "there is no file nowhere.py"),
        ("neighbour.txt/", "there is no file"),
    ],
)
def test_the_error_about_an_invalid_program_shows_a_valid_program(target: str, text: str) -> None:
    with pytest.raises(Leave) as caught:
        load(target, [], needs_app=True)

    assert caught.value.status == Status.USAGE
    assert text in caught.value.text


def test_the_program_of_the_readme_is_loaded() -> None:
    program = Path(__file__).parents[2] / "examples" / "tcp" / "sum_server.py"

    assert load(str(program), [], needs_app=True).name == "sum_server@localhost"


@pytest.mark.parametrize("source", ["1 / 0", "import something_missing", "def broken(:"])
def test_the_error_about_a_failed_import_has_the_traceback(source: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(source)

    for target in ("wrong", f"{tmp_path}/wrong.py"):
        with pytest.raises(Leave) as caught:
            load(target, [], needs_app=True)

        assert caught.value.status == Status.FAILED
        assert "wrong.py" in caught.value.text
        assert "loading.py" not in caught.value.text
        assert caught.value.text.endswith("could not be imported")


def test_the_error_about_run_at_import_time_suggests_the_main_guard(
    tmp_path: Path,
) -> None:
    (tmp_path / "twice.py").write_text(
        "from ergo_py import run\nasync def main(node): raise AssertionError('it "
        "runs')\nrun(main)\n"
    )

    for target in ("twice", f"{tmp_path}/twice.py"):
        with pytest.raises(Leave) as caught:
            load(target, [], needs_app=True)
        assert 'write `if __name__ == "__main__":` above it' in caught.value.text

    async def main(_node: object) -> int:
        return 7

    assert run(main, watchdog=None, log_output="none") == 7
