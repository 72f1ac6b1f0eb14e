"""Addresses of entities, and the requests of their handles."""

import json
from enum import Enum
from operator import methodcaller
from typing import Any

import pytest

from ergo_py import BadInputError, ask
from ergo_py.blocking import handle
from ergo_py.entities import MemoryStore
from ergo_py.entity_handles import Address, Once, Post, address_of, check_key
from tests.entities.bank import Account, open_bank, run_virtual

as_jupyter_does = methodcaller("_repr_html_")


@pytest.mark.parametrize("key", ["a", "a/b", "/", "é", "x" * 1000])
def test_an_address_is_read_from_its_text(key: str) -> None:
    address = Address("Account", check_key(key))

    assert address_of(str(address)) == address


SURROGATES = json.loads('["\\ud800", "\\udc80", "a\\udfffz"]')


@pytest.mark.parametrize("given", ["", "x" * 201, None, 7, b"a", "\0", "é\0", *SURROGATES])
def test_a_wrong_id_of_a_command_is_refused(given: Any) -> None:
    with pytest.raises(BadInputError, match=r"the id of the command.*1 to 200 characters, without"):
        Once(given, "request")


@pytest.mark.parametrize("given", ["", "x" * 1001, None, 7, b"a", "\0", "é\0", *SURROGATES])
def test_a_wrong_key_is_refused(given: Any) -> None:
    with pytest.raises(BadInputError, match="1 to 1,000 characters, without zeros and surrogates"):
        check_key(given)


class Plain(str):
    """A text with a class of its own."""


class Member(str, Enum):  # noqa: UP042 - its text is not its value
    """A member with another text than its value."""

    ADA = "ada"


@pytest.mark.parametrize("given", [Plain("ada"), Member.ADA])
def test_a_text_with_a_class_of_its_own_is_kept_as_a_plain_text(given: str) -> None:
    for kept in (check_key(given), Once[Any](given, "request").id):
        assert (type(kept), kept) == (str, "ada")


def test_requests_show_their_content() -> None:
    assert repr(Once("a", "pay")) == "'pay' once='a'"
    assert repr(Post("pay")) == "post 'pay'"


def test_handles_of_an_entity_are_equal() -> None:
    async def program() -> None:
        async with open_bank(MemoryStore()) as node:
            ada = node.entity(Account, "ada")
            assert {ada, node.entity(Account, "ada")} == {ada}
            assert ada != node.entity(Account, "bob")
            assert (repr(ada), ada.name, ada.key) == ("<Account 'ada'>", "Account/ada", "ada")
            assert ada.pid is None
            assert as_jupyter_does(ada).endswith("<tr><th>process</th><td>asleep</td></tr></table>")
            await ada.call(ask(Account.deposit, 1))
            assert ada.pid is not None
            in_a_thread = handle(node).entity(Account, "<a>")
            assert as_jupyter_does(in_a_thread).startswith(
                "<table><tr><th>kind</th><td>Account</td></tr><tr><th>key</th><td>&lt;a&gt;</td>"
            )

    run_virtual(program)
