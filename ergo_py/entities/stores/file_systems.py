"""`check_local_disk`: refuses the path of a file on a network file system."""

from pathlib import Path
from typing import Final

from ..errors import EntityStoreError

__all__ = ["check_local_disk"]

MOUNTS: Final = "/proc/self/mountinfo"
"""The file systems that this program sees, on Linux."""
_REMOTE: Final = frozenset(
    {
        *("afs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
        *("fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3"),
        "smbfs",
    }
)
"""File systems whose files other machines may have open, or that a server keeps: there, locks and
the shared memory of a write-ahead log hold on a single machine only, or not at all.
"""
_UNSURE: Final = frozenset({"9p"})
"""File systems that show a directory of the host to a container or a virtual machine: gVisor shows
the local volumes of its containers so, and WSL the drives of Windows. The table of mounts does not
tell whether the host has the directory on a disk or on a network.
"""


def check_local_disk(path: Path) -> str:
    """Refuse a file on a network file system. A system without a table of mounts refuses none.
    Returns a warning if the table does not tell; empty for a local disk.

    Raises:
        EntityStoreError: the file would be on such a file system, or no file can have the path.
    """
    try:
        file = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a zero in the path
        raise EntityStoreError(f"{str(path)!r} cannot be a file: {error}") from error
    try:
        table = Path(MOUNTS).read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
    kind, point = _mount_of(file, table)
    if kind in _REMOTE:
        raise EntityStoreError(
            f"{path} is on a network file system ({kind} at {point}), where the locks and the "
            "write-ahead log of SQLite do not protect the file; put it on a local disk, or use "
            "Postgres"
        )
    if kind not in _UNSURE:
        return ""
    return (
        f"{path} is on a file system of the host ({kind} at {point}); the file is safe if the host "
        "keeps it on a local disk, and no program outside of this container or virtual machine "
        "opens it"
    )


def _mount_of(path: Path, table: str) -> tuple[str, str]:
    """The kind and the directory of the file system that a file is on. Of several at the same
    directory, the last counts.
    """
    kind, point, depth = "", "", 0
    for line in table.splitlines():
        mount, _, system = line.partition(" - ")
        fields = mount.split()
        if len(fields) < 5 or not system:
            continue
        found = Path(_unescaped(fields[4]))
        if len(found.parts) >= depth and path.is_relative_to(found):
            kind, point, depth = system.split()[0], str(found), len(found.parts)
    return kind, point


def _unescaped(text: str) -> str:
    """A directory of the table: its spaces, tabs, newlines and backslashes are octal numbers."""
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        text = text.replace(f"\\{code}", character)
    return text
