"""JSON merge patches (RFC 7396): the differences between two states of a view."""

from typing import Any

__all__ = ["apply_patch", "find_patch"]

Value = dict[str, Any]


def find_patch(before: Value, after: Value) -> Value:
    """The patch that turns ``before`` into ``after``. A None in ``after`` counts as missing."""
    patch: Value = {
        key: None for key, value in before.items() if value is not None and after.get(key) is None
    }
    for key, value in after.items():
        if value is None:
            continue
        known = before.get(key)
        if isinstance(value, dict) and isinstance(known, dict):
            if below := find_patch(known, value):
                patch[key] = below
        elif known != value or type(known) is not type(value):
            patch[key] = value
    return patch


def apply_patch(value: Value, patch: Value) -> Value:
    """``value`` after the patch. Changes neither of them."""
    changed = dict(value)
    for key, new in patch.items():
        if new is None:
            changed.pop(key, None)
        elif isinstance(new, dict):
            known = changed.get(key)
            changed[key] = apply_patch(known if isinstance(known, dict) else {}, new)
        else:
            changed[key] = new
    return changed
