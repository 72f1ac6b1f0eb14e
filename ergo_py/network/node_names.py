"""`check_node_name`: the names that a node of a network may have. They are shown in logs and lists,
and are parts of paths and subjects.
"""

from typing import Final

from .._core.vocabulary.errors import BadInputError

__all__ = ["check_node_name", "check_other_node", "is_node_name"]

_LONGEST: Final = 255
"""Most bytes of a name, so that an address that names a node has its limit, too."""


def check_node_name(name: str) -> str:
    """Return the name of a node.

    Raises:
        BadInputError: no node of a network may have this name.
    """
    if problem := _problem(name):
        raise BadInputError("name", name, f"{problem}, such as 'shop@berlin'")
    return name


def check_other_node(name: object, here: str) -> None:
    """Check the name of a node of the network of the node ``here``.

    Raises:
        BadInputError: it is no such name, or that of the node itself.
    """
    if not isinstance(name, str) or not all(name.partition("@")):
        raise BadInputError("name", name, "the name of a node in the network, as in 'b@site'")
    if name == here:
        raise BadInputError(
            "name", name, "another node; ask this node directly, as in node.whereis(name)"
        )


def is_node_name(name: str) -> bool:
    """Whether a node may have this name."""
    return not _problem(name)


def _problem(name: str) -> str:
    front, at, place = name.partition("@")
    if not front or not at or not place:
        return "a name and a place in a network"
    # Control characters, line breaks, marks that turn the direction of a text, and surrogates.
    if not name.isprintable():
        return "a name of printable characters"
    if name.startswith("."):
        return "a name that does not begin with a dot"
    if len(name.encode()) > _LONGEST:
        return f"a name of at most {_LONGEST} bytes"
    return ""
