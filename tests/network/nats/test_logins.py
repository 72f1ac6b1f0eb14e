"""Logins and TLS of nodes over a real NATS server; no secret is shown."""

import base64
import json
import os
import shutil
import ssl
import sys
import time
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest

from ergo_py import BadInputError
from ergo_py.network import NATS, NetworkError
from ergo_py.network.carriers.nats.login import ServerAddress
from ergo_py.network.carriers.nats.permissions import permissions_text
from tests.network.nats.server import NatsServer
from tests.network.pairs import TYPES, Total, carrier_of, make_network, two_nodes, until
from tests.network.test_nodes import Counter
from tests.support import running_node

CERTIFICATES = Path(__file__).parents[2] / "meta" / "certificates"
AUTHORITY = CERTIFICATES / "authority.pem"


class Keys:
    """A key pair of a kind."""

    def __init__(self, prefix: int) -> None:
        self.seed = bytes(nkeys.encode_seed(os.urandom(32), prefix))
        self._pair: Any = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    def token(self, subject: str, kind: str, ends: float | None = None, **claims: Any) -> str:
        """A JWT that these keys sign."""

        def part(data: bytes) -> str:
            return base64.urlsafe_b64encode(data).decode().rstrip("=")

        body: dict[str, Any] = {
            "jti": os.urandom(8).hex(),
            "iat": int(time.time()) - 10,
            "iss": self.public,
            "name": kind,
            "sub": subject,
            "nats": {**claims, "type": kind, "version": 2},
        }
        if ends is not None:
            body["exp"] = int(ends)
        head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
        text = f"{head}.{part(json.dumps(body).encode())}"
        return f"{text}.{part(self._pair.sign(text.encode()))}"


def credentials(token: str, seed: bytes) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
    )


async def test_an_nkey_logs_in(tmp_path: Path) -> None:
    keys = Keys(nkeys.PREFIX_BYTE_USER)
    path = tmp_path / "a.nk"
    path.write_bytes(b"# a comment\n" + keys.seed + b"\n")
    with NatsServer(f"authorization {{ users = [ {{ nkey: {keys.public} }} ] }}") as server:
        async with two_nodes(make_network("nats", server.url, credentials=path)) as (a, b):
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0
        for text, error in (
            ("nothing", "contains no seed"),
            ("SU" + "A" * 40, "the seed in .* is malformed"),
            (Keys(nkeys.PREFIX_BYTE_USER).seed.decode(), "Authorization Violation"),
        ):
            path.write_text(text)
            with pytest.raises(NetworkError, match=error) as caught:
                async with running_node("a@test", network=NATS(server.url, credentials=path)):
                    pass
            assert text not in str(caught.value)
        path.unlink()
        with pytest.raises(NetworkError, match="cannot be read"):
            async with running_node("a@test", network=NATS(server.url, credentials=path)):
                pass


async def test_a_jwt_logs_in_and_a_renewed_file_is_used_without_a_restart(tmp_path: Path) -> None:
    operator = Keys(nkeys.PREFIX_BYTE_OPERATOR)
    account = Keys(nkeys.PREFIX_BYTE_ACCOUNT)
    user = Keys(nkeys.PREFIX_BYTE_USER)
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1}
    config = (
        f"operator: {operator.token(operator.public, 'operator')}\n"
        "resolver: MEMORY\n"
        "resolver_preload: {"
        f"{account.public}: {operator.token(account.public, 'account', limits=limits)} }}\n"
    )
    path = tmp_path / "user.creds"
    small = {"subs": -1, "data": -1, "payload": -1}

    def renew(ends: float) -> None:
        path.write_text(credentials(account.token(user.public, "user", ends, **small), user.seed))

    with NatsServer(config) as server:
        renew(time.time() - 1)
        network = make_network(
            "nats", server.url, credentials=path, beat=0.05, patience=60.0, grace=60.0
        )
        with pytest.raises(NetworkError, match="Authorization Violation"):
            async with running_node("a@test", network=network):
                pass
        renew(time.time() + 2)
        async with two_nodes(network) as (a, b):
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0
            renew(time.time() + 3600)
            # The server ends the connections with the expired credentials.
            await until(lambda: carrier_of(a).client.connected == 2)
            assert await a.call(pid, Total(), timeout=60) == 0


@pytest.mark.parametrize("first", [False, True])
async def test_tls_encrypts_and_verifies_the_server(first: bool) -> None:
    tls = (
        f'tls {{ cert_file: "{CERTIFICATES}/server.pem", key_file: "{CERTIFICATES}/server.key", '
        f"handshake_first: {str(first).lower()} }}"
    )
    with NatsServer(tls) as server:
        url = f"tls://localhost:{server.port}"

        def network(**settings: Any) -> NATS:
            return NATS(url, tls_first=first, types=TYPES, **settings)

        async with two_nodes(network(tls=AUTHORITY)) as (a, b):
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0
        for settings, text in (({}, "TLS: "), ({"tls": CERTIFICATES / "stranger.pem"}, "TLS: ")):
            with pytest.raises(NetworkError, match=text):
                async with running_node("a@test", network=network(**settings)):
                    pass


async def test_later_connections_use_the_authorities_of_a_changed_file_unless_it_is_bad(
    tmp_path: Path,
) -> None:
    tls = f'tls {{ cert_file: "{CERTIFICATES}/server.pem", key_file: "{CERTIFICATES}/server.key" }}'
    authorities = tmp_path / "authorities.pem"
    shutil.copy(CERTIFICATES / "stranger.pem", authorities)
    with NatsServer(tls) as server:
        network = NATS(f"tls://localhost:{server.port}", tls=authorities)
        with pytest.raises(NetworkError, match="TLS: "):
            async with running_node("a@test", network=network):
                pass
        shutil.copy(AUTHORITY, authorities)
        async with running_node("a@test", network=network) as node:
            assert await node.reload() == []
            authorities.write_text("no certificate", encoding="ascii")
            assert await node.reload() == [
                f"NATS(tls): SSLError: there are no certificates in {authorities}, as PEM"
            ]
            server.kill()
            server.start()
            await until(lambda: carrier_of(node).client.connected == 2)


async def test_a_server_that_verifies_nodes_wants_their_certificate() -> None:
    tls = (
        f'tls {{ cert_file: "{CERTIFICATES}/server.pem", key_file: "{CERTIFICATES}/server.key", '
        f'ca_file: "{AUTHORITY}", verify: true }}'
    )
    with NatsServer(tls) as server:
        url = f"tls://localhost:{server.port}"
        context = ssl.create_default_context(cafile=AUTHORITY)
        with pytest.raises(NetworkError, match="no NATS server accepts this node"):
            async with running_node("a@test", network=NATS(url, tls=context)):
                pass
        context.load_cert_chain(CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
        async with two_nodes(NATS(url, tls=context, types=TYPES)) as (a, b):
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0


async def test_a_server_without_tls_is_refused_if_the_url_demands_it(
    shared_server: NatsServer,
) -> None:
    network = NATS(f"tls://127.0.0.1:{shared_server.port}", tls=AUTHORITY)
    with pytest.raises(NetworkError, match="offers no TLS, which the URL tls:// demands"):
        async with running_node("a@test", network=network):
            pass


async def test_a_url_without_tls_to_another_machine_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    network = NATS("nats://me:secret@0.0.0.0:1")
    with pytest.raises(NetworkError):
        async with running_node("a@test", network=network, log_output="json"):
            pass
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "are not encrypted; write tls:// in its URL" in text
    assert "secret" not in text


async def test_the_printed_permissions_suffice_for_nodes() -> None:
    names = ["a@test", "b@test"]
    config = permissions_text("the shop", names)
    assert "the%20shop" in config
    with NatsServer(config.replace("REPLACE-THIS", "password")) as server:

        def network(name: str) -> NATS:
            url = f"nats://{name.replace('@', '%40')}:password@127.0.0.1:{server.port}"
            return NATS(url, cluster="the shop", types=TYPES)

        async with (
            running_node("a@test", network=network("a@test")) as a,
            running_node("b@test", network=network("b@test")) as b,
        ):
            pid = await b.spawn(Counter)
            assert await a.call(pid, Total()) == 0
            found: list[str] = []
            while not found:
                found = await a.discover(0.1)
            assert found == ["b@test"]
        assert "Violation" not in server.log()


def test_addresses_show_no_login() -> None:
    address = ServerAddress.parse("tls://me:secret@[::1]:5")
    assert (address.user, address.password) == ("me", "secret")
    assert str(address) == "tls://[::1]:5"
    assert "secret" not in repr(address)
    network = NATS("nats://me:secret@one,tls://me:secret@two", cluster="shop")
    assert repr(network) == "NATS('nats://one:4222,tls://two:4222', cluster='shop')"
    with pytest.raises(BadInputError) as caught:
        NATS("nats://me:secret@one:port")
    assert "secret" not in str(caught.value)
    named = address.at("10.0.0.7:4222")
    assert named is not None
    assert (str(named), named.password, named.tls_name) == ("tls://10.0.0.7:4222", "secret", "::1")
    assert address.at("host:port") is None
    assert ServerAddress.parse("localhost").port == 4222
    assert ServerAddress.parse("localhost").is_loopback
    assert not ServerAddress.parse("example.org").is_loopback


SECRETS = [
    "s3c/ret",
    "s3c,ret",
    "s3c@ret",
    "s3c:ret",
    "s3c#ret",
    "s3c?ret",
    "s3c[ret",
    "s3c,9@ret/",
]


URLS = [
    "nats://me:{}@host:bad",
    "nats://me:{}@host/path",
    "nats://{}@host:bad",
    "http://me:{}@host",
    "me:{}@host:bad",
    "nats://me:7,{}@host",
    "nats://one,nats://me:{}@host:bad,nats://two",
]
UNFINISHED = ["me:{}/", "nats://me:{}"]


@pytest.mark.parametrize(
    "url, secret",
    [
        *((url, secret) for url in URLS for secret in SECRETS),
        # The text behind an @ is the address of a server.
        *((url, secret) for url in UNFINISHED for secret in SECRETS if "@" not in secret),
    ],
)
def test_no_character_makes_a_refused_url_show_its_password(url: str, secret: str) -> None:
    with pytest.raises(BadInputError, match="percent-encoded: %2F for a slash") as caught:
        NATS(url.format(secret))
    assert "s3c" not in str(caught.value) + str(caught.value.given)
    assert "ret" not in str(caught.value) + str(caught.value.given)


@pytest.mark.parametrize(
    "urls", [[b"nats://me:s3cret@host"], [["nats://me:s3cret@host"]], b"s3cret"]
)
def test_a_refused_value_that_is_no_text_shows_its_type_only(urls: Any) -> None:
    with pytest.raises(BadInputError) as caught:
        NATS(urls)
    assert "s3cret" not in str(caught.value) + str(caught.value.given)


def test_a_refused_url_shows_its_place() -> None:
    for url, shown in (
        ("nats://me:s3c/ret@host:4222", "'nats://…@host:4222'"),
        ("me:secret@host:bad", "'…@host:bad'"),
        ("nats://host/path", "'nats://host…'"),
        ("http://host", "'http://host'"),
        ("nats://me:secret", "'nats://me…'"),
        ("nats://me:7,x@host", "'nats://…@host'"),
    ):
        with pytest.raises(BadInputError) as caught:
            NATS(url)
        assert f"urls: got {shown}; allowed is the URL of a NATS server" in str(caught.value)


def test_a_password_with_encoded_characters_is_used_as_meant() -> None:
    assert ServerAddress.parse("nats://me:a%2Fb%2Cc%40d@host").password == "a/b,c@d"


async def test_credentials_without_the_package_say_how_to_install_it(
    shared_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    path = tmp_path / "a.nk"
    path.write_bytes(Keys(nkeys.PREFIX_BYTE_USER).seed)
    with pytest.raises(NetworkError, match=r"pip install 'ergo_py\[nats\]'"):
        async with running_node("a@test", network=NATS(shared_server.url, credentials=path)):
            pass
