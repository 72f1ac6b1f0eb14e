"""A package loads its public names on first use, from the modules that its imports for type
checkers name, and the names print under the package.
"""

import ast
import inspect
import pickle
import pydoc
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib.util import resolve_name
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

import pytest

import ergo_py
import ergo_py.info
import ergo_py.meta
import ergo_py.state_machine
import ergo_py.streams
import ergo_py.supervision
import ergo_py.tasks
import ergo_py.telemetry
from ergo_py import CallTimeoutError, devices, meta, web
from ergo_py._core.vocabulary.public_names import name_for_annotations

LAZY = pytest.mark.parametrize(
    "package",
    [
        ergo_py,
        ergo_py.info,
        ergo_py.meta,
        ergo_py.state_machine,
        ergo_py.streams,
        ergo_py.supervision,
        ergo_py.tasks,
        ergo_py.telemetry,
    ],
    ids=lambda package: package.__name__,
)


def imports_for_type_checkers(package: ModuleType) -> dict[str, list[str]]:
    """The names in the imports below ``if TYPE_CHECKING:``, by module."""
    assert package.__file__
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {
        resolve_name("." * node.level + str(node.module), package.__package__): sorted(
            alias.name for alias in node.names
        )
        for node in imports
    }


def table_of(package: ModuleType) -> dict[str, list[str]]:
    """The argument of `load_on_first_use`."""
    assert package.__file__
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (call,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "load_on_first_use"
    ]
    table: dict[str, str] = ast.literal_eval(call.args[1])
    return {
        module if module.startswith("ergo_py.") else f"{package.__name__}.{module}": sorted(
            names.split()
        )
        for module, names in table.items()
    }


@LAZY
def test_the_table_of_a_package_has_the_imports_that_type_checkers_read(
    package: ModuleType,
) -> None:
    assert table_of(package) == imports_for_type_checkers(package)


@LAZY
def test_the_table_of_a_package_has_exactly_its_public_names(package: ModuleType) -> None:
    names = [name for names in table_of(package).values() for name in names]

    assert sorted(names) == sorted(package.__all__)


@LAZY
def test_public_classes_and_functions_print_under_their_package(package: ModuleType) -> None:
    things = {name: getattr(package, name) for name in package.__all__}

    elsewhere = {
        name: thing.__module__
        for name, thing in things.items()
        if isinstance(thing, type | FunctionType) and thing.__module__ != package.__name__
    }

    assert elsewhere == {}


@LAZY
def test_public_names_are_pickled_under_their_package(package: ModuleType) -> None:
    for name in package.__all__:
        thing: Any = getattr(package, name)
        if isinstance(thing, type):
            pickled = pickle.dumps(thing, protocol=0)

            assert pickled.startswith(f"c{package.__name__}\n{name}\n".encode())
            assert pickle.loads(pickled) is thing


@LAZY
def test_dir_star_import_and_help_know_every_public_name(package: ModuleType) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {package.__name__} import *", namespace)
    text = pydoc.plain(pydoc.render_doc(package))

    assert set(package.__all__) <= set(dir(package))
    assert dir(package) == sorted(set(dir(package)))
    assert set(package.__all__) <= namespace.keys()
    assert [name for name in package.__all__ if name not in text] == []


@LAZY
def test_a_used_name_is_an_ordinary_attribute_of_its_package(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is vars(package)[name]


@LAZY
def test_an_unknown_name_is_an_attribute_error_with_the_module(package: ModuleType) -> None:
    with pytest.raises(AttributeError) as caught:
        _ = package.Actorr

    assert str(caught.value) == f"module {package.__name__!r} has no attribute 'Actorr'"
    assert caught.value.name == "Actorr"
    assert caught.value.obj is package


@pytest.mark.parametrize(
    "owner",
    [
        meta.TCP,
        meta.UDP,
        meta.Port,
        meta.FileReader,
        meta.FileWriter,
        meta.Descriptors,
        meta.StandardInput,
        meta.Signals,
        meta.DirectoryWatch,
        web.WS,
        devices.Device,
    ],
)
def test_a_message_that_is_a_member_prints_and_pickles_under_its_owner(owner: type) -> None:
    members = {
        name: member
        for name, member in inspect.getmembers(owner, inspect.isclass)
        if not name.startswith("_")
    }

    assert members
    for name, member in members.items():
        assert (member.__module__, member.__qualname__) == (
            owner.__module__,
            f"{owner.__name__}.{name}",
        )
        assert pickle.loads(pickle.dumps(member)) is member


def test_a_call_without_an_answer_names_the_request_as_programs_write_it() -> None:
    request = meta.Port.Write(b"a")

    assert "Port.Write within 2 s" in str(CallTimeoutError("program", request, 2.0))


READER = """
from collections.abc import Callable

def read(
    bare: "Fraction",
    of: "Sequence[Fraction]",
    first: "Fraction | None",
    last: "None | Fraction",
    inside: "Callable[[Fraction], list[Fraction]]",
) -> "Fraction": ...
"""


def test_annotations_name_classes_that_their_module_does_not_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = ModuleType("reader")
    monkeypatch.setitem(sys.modules, "reader", reader)

    name_for_annotations("reader", {"fractions": "Fraction", "collections.abc": "Sequence"})
    exec(READER, vars(reader))

    assert get_type_hints(reader.read) == {
        "bare": Fraction,
        "of": Sequence[Fraction],
        "first": Fraction | None,
        "last": None | Fraction,
        "inside": Callable[[Fraction], list[Fraction]],
        "return": Fraction,
    }
