"""Addresses of entities, and the requests of their handles."""

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


@pytest.mark.parametrize("given", ["", "x" * 201, None, 7])
def test_a_wrong_id_of_a_command_is_refused(given: Any) -> None:
    with pytest.raises(BadInputError, match="1 to 200 characters"):
        Once(given, "request")


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
