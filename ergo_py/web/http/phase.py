"""`Phase`: how far an HTTP connection is with its request, and the steps from phase to phase.

All steps are in the table `NEXT`. A step that a phase does not list is a fault of this package, and
raises ``KeyError``. ::

                    ┌─────────────── ANSWERED ────────────────┐
                    ▼                                         │
    BEGIN ──────▶ HEAD ── WANT_BODY ──▶ BODY ── ASK ──▶ UNDER_WAY ── ANSWERED_EARLY ──▶ SKIPS
                   ▲ └───────────────── ASK ─────────────▶ ▲                              │
                   │ └── UPGRADE ──▶ UPGRADING ── REFUSE ──┘                              │
                   └──────────────────────────── SKIPPED ─────────────────────────────────┘
"""

from typing import Final

from ..._core.vocabulary.states import IdentityEnum

__all__ = ["NEXT", "Phase", "Step"]


class Phase(IdentityEnum):
    """The event that the protocol waits for."""

    HEAD = "head"
    BODY = "body"
    UNDER_WAY = "under way"
    """An answer, or the rest of a streamed response."""
    SKIPS = "skips"
    """The rest of a body that was not read."""
    UPGRADING = "upgrading"
    """The decision about a WebSocket."""
    CLOSED = "closed"


class Step(IdentityEnum):
    """The events that end a phase."""

    WANT_BODY = "the whole body is needed before the call"
    ASK = "the request goes to an actor or an application"
    UPGRADE = "the request asks for a WebSocket"
    REFUSE = "the request for a WebSocket is answered with a response"
    ANSWERED = "the response is written, and the request was read completely"
    ANSWERED_EARLY = "the response is written, and a part of the body is unread"
    SKIPPED = "the unread part of the body was dropped"
    CLOSE = "the connection takes no further request"


_ANSWERED: Final = {Step.ANSWERED: Phase.HEAD, Step.ANSWERED_EARLY: Phase.SKIPS}
_CLOSE: Final = {Step.CLOSE: Phase.CLOSED}

NEXT: Final[dict[Phase, dict[Step, Phase]]] = {
    # A request that is refused at once is answered in the phase of its head.
    Phase.HEAD: {
        Step.WANT_BODY: Phase.BODY,
        Step.ASK: Phase.UNDER_WAY,
        Step.UPGRADE: Phase.UPGRADING,
        **_ANSWERED,
        **_CLOSE,
    },
    Phase.BODY: {Step.ASK: Phase.UNDER_WAY, **_CLOSE},
    Phase.UNDER_WAY: {**_ANSWERED, **_CLOSE},
    # The time for the decision may be over: then the response is written without a refusal.
    Phase.UPGRADING: {Step.REFUSE: Phase.UNDER_WAY, **_ANSWERED, **_CLOSE},
    Phase.SKIPS: {Step.SKIPPED: Phase.HEAD, **_CLOSE},
    # A closed connection stays closed. An answer may still come.
    Phase.CLOSED: dict.fromkeys(Step, Phase.CLOSED),
}
"""The phase after each step that a phase allows."""
