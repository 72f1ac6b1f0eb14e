"""The errors of the framework. `ErgoError` is the base of all but `Reject`; the dozen that most
programs catch is in `ergo_py`, too.
"""

from typing import TYPE_CHECKING

from ._core.vocabulary.public_names import load_on_first_use

if TYPE_CHECKING:
    from ._core.vocabulary.errors import (
        ApplicationError,
        BadInputError,
        BehaviourError,
        CallbackError,
        CallError,
        CallFailedError,
        CallTimeoutError,
        ChildError,
        ControlSocketError,
        DeadlockError,
        ErgoError,
        EscalationError,
        EventError,
        InitError,
        InitTimeoutError,
        KeyTakenError,
        LimitError,
        MailboxFullError,
        MethodUnknownError,
        NameTakenError,
        NameUnknownError,
        NodeStoppedError,
        NotAllowedError,
        ProcessUnknownError,
        Reject,
        RelationError,
        SendError,
        ServiceError,
        SpawnError,
        TargetDownError,
        TargetTypeError,
        TaskError,
        UnhandledCallError,
    )

__all__ = [
    "ApplicationError",
    "BadInputError",
    "BehaviourError",
    "CallError",
    "CallFailedError",
    "CallTimeoutError",
    "CallbackError",
    "ChildError",
    "ControlSocketError",
    "DeadlockError",
    "ErgoError",
    "EscalationError",
    "EventError",
    "InitError",
    "InitTimeoutError",
    "KeyTakenError",
    "LimitError",
    "MailboxFullError",
    "MethodUnknownError",
    "NameTakenError",
    "NameUnknownError",
    "NodeStoppedError",
    "NotAllowedError",
    "ProcessUnknownError",
    "Reject",
    "RelationError",
    "SendError",
    "ServiceError",
    "SpawnError",
    "TargetDownError",
    "TargetTypeError",
    "TaskError",
    "UnhandledCallError",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(
        __name__,
        {
            "ergo_py._core.vocabulary.errors": (
                "ApplicationError BadInputError BehaviourError CallError CallFailedError "
                "CallTimeoutError CallbackError ChildError ControlSocketError DeadlockError "
                "ErgoError EscalationError EventError InitError InitTimeoutError KeyTakenError "
                "LimitError MailboxFullError MethodUnknownError NameTakenError NameUnknownError "
                "NodeStoppedError NotAllowedError ProcessUnknownError Reject RelationError "
                "SendError ServiceError SpawnError TargetDownError TargetTypeError TaskError "
                "UnhandledCallError"
            ),
        },
    )
