"""The permissions of nodes, as text for the configuration of a NATS server."""

from collections.abc import Sequence

from ...node_names import check_node_name
from .carrier import subjects_of

__all__ = ["permissions_text"]

_HEAD = """\
# The permissions of the nodes of the cluster {cluster!r}: each may send as itself only, and gets
# only its own messages. Replace each password by a hash of `nats server passwd`, or user and
# password by nkey: "U…". The first node also makes the bucket of the names of the cluster, which a
# hostile node could misuse: list the node that you trust most first. When the bucket exists, remove
# $JS.API.STREAM.CREATE from its permissions, if you like.
authorization {{
  users = [
"""
_USER = """\
    {{
      user: {user}
      password: "REPLACE-THIS"
      permissions: {{
        publish: [{publishes}]
        subscribe: [{subscribes}]
      }}
    }}
"""


def permissions_text(cluster: str, nodes: Sequence[str]) -> str:
    """The part ``authorization`` of a server for these nodes.

    Raises:
        BadInputError: no node may have one of the names.
    """
    text = _HEAD.format(cluster=cluster)
    for number, node in enumerate(map(check_node_name, nodes)):
        publishes, subscribes = (
            ", ".join(f'"{subject}"' for subject in subjects)
            for subjects in subjects_of(cluster, node, may_create=not number)
        )
        user = '"' + node.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text += _USER.format(user=user, publishes=publishes, subscribes=subscribes)
    return text + "  ]\n}\n"
