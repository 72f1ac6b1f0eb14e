"""The example of a cluster: three nodes with permissions, which share jobs; a node that leaves."""

import os
import re
from pathlib import Path

import pytest
import yaml

from ergo_py import ChildSpec
from ergo_py.network import NATS
from ergo_py.network.carriers.nats.permissions import permissions_text
from ergo_py.shell.cli import main
from ergo_py.shell.exit_codes import Status
from examples.cluster.desk import TYPES, Desk
from tests.network.nats.server import NatsServer
from tests.network.pairs import until
from tests.support import running_node

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
NAMES = ["desk@berlin", "desk@paris", "desk@rome"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The configuration of the server, without the ports and the directory that it asks for."""
    for place in ("BERLIN", "PARIS", "ROME"):
        monkeypatch.setenv(f"{place}_PASSWORD", "example")
    text = (FOLDER / "server.conf").read_text()
    assert '"/data"' in text
    text = text.replace('"/data"', f'"{tmp_path}"')
    text = re.sub(r"^port:.*\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^http:.*$", 'http: "127.0.0.1:-1"', text, flags=re.MULTILINE)


def test_the_check_of_the_server_finds_nothing_bad(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with NatsServer(config) as server:
        assert main(["nats", "check", "--monitor", server.monitor]) == Status.DONE
    assert "no login" not in capsys.readouterr().out


async def test_desks_share_jobs_and_notice_a_desk_that_leaves(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []

    def have(*parts: str) -> bool:
        lines.extend(capsys.readouterr().out.splitlines())
        return all(any(part in line for line in lines) for part in parts)

    with NatsServer(config) as server:

        def network(name: str) -> NATS:
            url = f"nats://{name.replace('@', '%40')}:example@127.0.0.1:{server.port}"
            return NATS(url, cluster="desks", types=TYPES)

        async with (
            running_node(NAMES[0], network=network(NAMES[0])) as berlin,
            running_node(NAMES[1], network=network(NAMES[1])) as paris,
        ):
            for node in (berlin, paris):
                await node.supervise([ChildSpec("desk", Desk)])
            async with running_node(NAMES[2], network=network(NAMES[2])) as rome:
                await rome.supervise([ChildSpec("desk", Desk, register=True)])
                await until(lambda: have("berlin: desk@rome is here", "rome: has done job"))
            await until(lambda: have("berlin: desk@rome is gone: shutdown"))
        assert "Violation" not in server.log()


def test_the_permissions_are_those_that_the_command_prints() -> None:
    printed = permissions_text("desks", NAMES)
    written = (FOLDER / "server.conf").read_text()

    for kind in ("publish", "subscribe"):
        found = re.findall(rf"{kind}: \[.*\]", written)
        assert found == re.findall(rf"{kind}: \[.*\]", printed)


def test_the_compose_file_starts_a_server_and_a_node_for_each_user() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]

    assert sorted(services) == ["berlin", "nats", "paris", "rome"]
    for name in NAMES:
        service = services[name.partition("@")[2]]
        assert service["command"][:2] == ["--name", name]
        assert f"nats://{name.replace('@', '%40')}:" in service["environment"]["ERGO_NETWORK"]
    for path in ("Dockerfile", "server.conf"):
        assert (FOLDER / path).exists()
    assert os.path.samefile(FOLDER / services["berlin"]["build"]["context"], FOLDER.parents[1])
