"""The observer page: a running node in the browser. ``Observe`` serves it from inside a program,
the command ``ergo observe`` beside one.
"""

from typing import TYPE_CHECKING

from .._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from .embedded_page import Observe

__all__ = ["Observe"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, {"embedded_page": "Observe"})
