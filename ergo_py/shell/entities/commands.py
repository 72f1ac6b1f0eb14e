"""`entities`: shows the kinds, records, keys and parked messages of the entities of a running node,
and gives parked messages new attempts.
"""

import argparse
from collections.abc import Callable
from typing import Any, Final

from ..._core.vocabulary.hints import did_you_mean
from ...control.client import Link
from ...control.rendering import clock, table
from ..exit_codes import Leave, Status
from ..output import ask_terminal, say, say_json, show
from ..screens import choose_screen

__all__ = ["entities", "read_words"]

Options = argparse.Namespace


def read_words(options: Options) -> Options:
    """The options with the node, the verb and its arguments from the words of the command line.

    Raises:
        Leave: there are too many words, or too few.
    """
    words = list(options.words)
    node = words.pop(0) if words and words[0] not in _VERBS else None
    verb = words.pop(0) if words else ""
    if verb not in _VERBS or len(words) != len(_VERBS[verb][0]):
        verbs = " | ".join(" ".join([each, *needs]) for each, (needs, _) in _VERBS.items() if each)
        hint = next(filter(None, (did_you_mean(word, _VERBS) for word in options.words[:2])), "")
        raise Leave(Status.USAGE, f"write `ergo entities [NODE] [{verbs}]`{hint}")
    return Options(**vars(options), node=node, verb=verb, rest=words)


def entities(link: Link, options: Options) -> None:
    """Show or retry, as the words say."""
    _, run = _VERBS[options.verb]
    run(link, options, *options.rest)


def _kinds(link: Link, options: Options) -> None:
    answer = link.ask("entities")
    if options.json:
        say_json(answer)
        return
    if not answer:
        say(f"{link.node} keeps no entities")
    for store in answer:
        rows = [
            (
                kind["kind"],
                f"{kind['stored']}{'+' if kind['is_more'] else ''}",
                kind["awake"],
                kind["owed"] or "-",
                kind["parked"] or "-",
            )
            for kind in store["kinds"]
        ]
        figures = "STORED AWAKE OWED PARKED"
        show(choose_screen().table(table(f"KIND {figures}", rows, right=figures)))
        if "map" in store:
            _show_map(store["map"], link.node)
        say(f"{store['store']}: {store['commits']} commits of {store['versions']} versions")
        if store["last_error"] is not None:
            error = store["last_error"]
            say(f"{store['failures']} failures, the last at {clock(error['at'])}: {error['text']}")


def _show_map(shards: dict[str, Any], node: str) -> None:
    """Show the shards of each node, and those that move to or from this node."""
    moving = set(shards["moving"])
    rows = [
        (
            name,
            len(each["shards"]),
            len(moving.intersection(each["shards"])) if name == node else "-",
            "lost" if each["lost"] else "here" if name == node else "",
        )
        for name, each in shards["nodes"].items()
    ]
    show(choose_screen().table(table("NODE SHARDS MOVING STATE", rows, right="SHARDS MOVING")))
    if shards["unassigned"]:
        say(f"{len(shards['unassigned'])} of {shards['shards']} shards have no node yet")


def _show(link: Link, options: Options, kind: str, key: str) -> None:
    say_json(link.ask("entity", kind=kind, key=key, contents=options.contents))


def _keys(link: Link, options: Options, kind: str) -> None:
    answer = link.ask("keys", kind=kind, prefix=options.prefix, limit=options.limit)
    if options.json:
        say_json(answer)
        return
    for key in answer["keys"]:
        say(key)
    if not answer["keys"]:
        say(
            f"no {kind} is stored" + (f" with the prefix {options.prefix!r}" * bool(options.prefix))
        )
    elif answer["is_more"]:
        say(f"… and more after {answer['keys'][-1]!r}; --limit and --prefix choose others")


def _parked(link: Link, options: Options) -> None:
    answer = link.ask("parked", patience=_PATIENCE, limit=options.limit)
    if options.json:
        say_json(answer)
    elif not answer:
        say("no message is parked")
    else:
        rows = [
            (each["kind"], each["key"], each["to"], each["message_type"], each.get("attempts", 0))
            for each in answer
            if "to" in each
        ]
        if rows:
            shown = table("KIND KEY TO MESSAGE ATTEMPTS", rows, right="ATTEMPTS")
            show(choose_screen().table(shown))
            say("repair the cause, and `ergo entities retry KIND KEY` tries them again")
        for each in answer:
            if "to" not in each:
                say(f"the row of {each['kind']} {each['key']} cannot be read: {each['problem']}")


def _retry(link: Link, options: Options, kind: str, key: str) -> None:
    ask_terminal(f"retry the parked messages of {kind} {key} on {link.node}", yes=options.yes)
    answer = link.ask("retry", kind=kind, key=key)
    if options.json:
        say_json(answer)
    elif answer["retried"]:
        say(f"{answer['retried']} parked messages are tried again")
    else:
        say(f"{kind} {key} has no parked messages")


_PATIENCE: Final = 600.0
"""Seconds for a search through all rows."""
_VERBS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Any]]]] = {
    "": ((), _kinds),
    "show": (("KIND", "KEY"), _show),
    "keys": (("KIND",), _keys),
    "parked": ((), _parked),
    "retry": (("KIND", "KEY"), _retry),
}
"""The verbs with the arguments that each needs."""
