"""`new`: the command ``ergo new``, which creates a project."""

import argparse
import json
import os
import shlex
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..exit_codes import Leave, Status
from ..output import say
from .project_name import BadNameError, ProjectName
from .template_files import render

__all__ = ["create", "new"]


def new(options: argparse.Namespace) -> None:
    """Create a project in the current folder, and say how to go on.

    Raises:
        Leave: the name is not allowed, or the folder exists, or cannot be written.
    """
    try:
        name = ProjectName.of(options.project)
    except BadNameError as error:
        raise Leave(Status.USAGE, str(error)) from None
    try:
        here = Path.cwd()
    except OSError as error:
        raise Leave(
            Status.FAILED,
            f"{name.project} cannot be created: the current folder was removed, or cannot be "
            "read; change to another folder first",
        ) from error
    create(name, here)
    say(
        f"created {name.project}/: a supervised TCP service with tests, a Dockerfile and a "
        f"systemd service; README.md explains its files\n\n"
        f"{_get_wheel(name, _source())}"
        f"  cd {name.project}\n"
        "  make check   # format, style, types and tests, in an environment of its own\n"
        "  make run     # serve at 127.0.0.1:7777"
    )


def _get_wheel(name: ProjectName, source: str) -> str:
    """The lines that bring the wheel of ergo_py into the project; none for a package of an index.
    Without the C extension the wheel fits the Python of the image, too.
    """
    if not source:
        return ""
    is_wheel = source.endswith(".whl")
    lines = f"pip wheel --no-deps --wheel-dir {name.project}/wheels {shlex.quote(source)}\n"
    if is_wheel and not source.endswith("-none-any.whl"):
        lines += (
            "  # it fits this Python and machine only; the image needs the py3-none-any wheel\n"
        )
    return f"  {'' if is_wheel else 'ERGO_PURE=1 '}{lines}"


def _source() -> str:
    """The checkout or wheel that ergo_py was installed from; empty if it came from an index, where
    the new project finds it, too.
    """
    try:
        text = metadata.distribution("ergo_py").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # not installed: Python found the package by its path
        return ""
    url = urlsplit(json.loads(text)["url"] if text else "")
    return unquote(url.path) if url.scheme == "file" else ""


def create(name: ProjectName, parent: Path) -> Path:
    """Create the folder of a project with all its files, or nothing.

    Raises:
        Leave: there is a file or folder of that name, or the system refuses.
    """
    place = parent / name.project
    if os.path.lexists(place):
        raise Leave(
            Status.USAGE,
            f"{place} exists already; choose another name, or remove it first",
        )
    unfinished = None
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name.project}-", dir=parent))
        for path, text in render(name):
            file = unfinished / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        # A temporary folder is private; the project gets the permissions of a usual folder.
        unfinished.chmod((unfinished / name.package).stat().st_mode & 0o777)
        unfinished.rename(place)
    except OSError as error:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise Leave(
            Status.FAILED, f"{place} cannot be created: {error.strerror or error}"
        ) from error
    return place
