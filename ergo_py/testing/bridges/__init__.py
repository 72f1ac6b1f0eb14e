"""The contracts of bridges, as tests for a bridge of your own."""

from typing import TYPE_CHECKING

from ..._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .devices import DeviceRig
    from .sources import SourceRig

__all__ = ["DeviceRig", "SourceRig"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__, {"devices": "DeviceRig", "sources": "SourceRig"}
    )
