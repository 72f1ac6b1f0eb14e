"""Text of values and for terminals: nothing here raises because of what a value says about itself."""

__all__ = ["printable", "printable_lines", "shown", "text_of"]


def text_of(value: object) -> str:
    """``str(value)``, or a remark if its ``__str__`` raises."""
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException:  # nothing is awaited here: it can only be a fault of the value's own code
        return "<its __str__ raised>"


def shown(value: object) -> str:
    """``repr(value)``, or a remark if its ``__repr__`` raises."""
    try:
        return repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"<{type(value).__name__}: its __repr__ raised>"


def printable(text: str) -> str:
    """One line that may go to a terminal or a log: what would move the cursor or end the line is escaped."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def printable_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))
