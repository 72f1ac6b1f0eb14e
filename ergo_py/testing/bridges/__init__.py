"""The contracts of bridges, as tests for a bridge of your own."""

from ..._core.vocabulary.public_names import show_under
from .devices import DEVICE_RULES, DeviceRig

__all__ = ["DEVICE_RULES", "DeviceRig"]

show_under(__name__, __all__, globals())
