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


EXAMPLES = [
    pytest.param("cluster", "desks", "desk", {"nats"}, id="cluster"),
    pytest.param("fleet", "fleet", "fleet", {"nats", "database", "devices"}, id="fleet"),
]
PLACES = ("berlin", "paris", "rome")


@pytest.mark.parametrize("folder, cluster, name, others", EXAMPLES)
def test_the_permissions_are_those_that_the_command_prints(
    folder: str, cluster: str, name: str, others: set[str]
) -> None:
    printed = permissions_text(cluster, [f"{name}@{place}" for place in PLACES])
    written = (FOLDER.parent / folder / "server.conf").read_text()

    for kind in ("publish", "subscribe"):
        found = re.findall(rf"{kind}: \[.*\]", written)
        assert found == re.findall(rf"{kind}: \[.*\]", printed)


@pytest.mark.parametrize("folder, cluster, name, others", EXAMPLES)
def test_the_compose_file_starts_servers_and_a_node_for_each_user(
    folder: str, cluster: str, name: str, others: set[str]
) -> None:
    place = FOLDER.parent / folder
    services = yaml.safe_load((place / "compose.yaml").read_text())["services"]

    assert {*services} == {*PLACES, *others}
    for each in PLACES:
        assert services[each]["command"][:2] == ["--name", f"{name}@{each}"]
        assert f"nats://{name}%40{each}:" in services[each]["environment"]["ERGO_NETWORK"]
        assert (FOLDER.parents[1] / services[each]["command"][2]).exists()
    assert (place / "server.conf").exists()
    build = services["berlin"]["build"]
    assert os.path.samefile(place / build["context"], FOLDER.parents[1])
    assert f'"--cluster", "{cluster}"' in (FOLDER.parents[1] / build["dockerfile"]).read_text()
