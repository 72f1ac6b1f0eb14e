"""The errors of the framework, in a single tree.

::

    ErgoError
    ├── BadInputError (ValueError)          an invalid value; the text says what is allowed
    │   ├── BehaviourError (TypeError)      not a behaviour, or a callback with a wrong signature
    │   └── TargetTypeError (TypeError)     not an address
    ├── SpawnError                          nothing was started
    │   ├── InitError                       ``init`` raised; the original is the cause
    │   └── InitTimeoutError (TimeoutError) ``init`` took too long
    ├── LimitError                          a limit of the node is reached; carries kind and limit
    ├── NameTakenError                      another process has the name
    ├── NameUnknownError (LookupError)      no process has that name or alias
    ├── KeyTakenError                       another process has the key of a registry
    ├── EventError                          an event is taken or unknown; carries name and kind
    ├── ProcessUnknownError (LookupError)   no process at this address
    ├── RelationError                       a link or monitor exists, or is unknown; carries kind
    ├── SendError                           carries target and message: nothing is lost
    │   └── MailboxFullError                the receiver's mailbox is full
    ├── CallError                           carries target and request
    │   ├── TargetDownError                 the callee has ended; carries its reason
    │   ├── CallFailedError                 the callee failed on this request and continues
    │   ├── CallTimeoutError (TimeoutError) no answer in time
    │   ├── DeadlockError                   the call would wait for itself
    │   └── UnhandledCallError              the callee has no answer to this request
    ├── MethodUnknownError (LookupError)    the actor exposes no such method
    ├── ChildError                          an operation on a child failed; carries child and kind
    ├── ServiceError                        carries service, message and kind: nothing is lost
    ├── TaskError                           a task has no result; carries its name and kind
    ├── ApplicationError                    carries the application's name and kind
    ├── EscalationError                     a supervisor or application ended, so the node stops
    ├── NotAllowedError (RuntimeError)      not here, or not in this state; says where instead
    ├── NodeStoppedError (RuntimeError)     the node has stopped, or is stopping
    ├── ControlSocketError (OSError)        the control socket cannot be opened safely
    └── CallbackError (TypeError)           a callback did something it must not

    Reject                                  raise it in ``handle_call``: the caller gets ``error``
"""

from ..public_names import show_public_names
from .base import (
    BadInputError,
    BehaviourError,
    CallbackError,
    ErgoError,
    NotAllowedError,
    TargetTypeError,
)
from .messages import (
    CallError,
    CallFailedError,
    CallTimeoutError,
    DeadlockError,
    MailboxFullError,
    MethodUnknownError,
    Reject,
    SendError,
    TargetDownError,
    UnhandledCallError,
)
from .processes import (
    ControlSocketError,
    EscalationError,
    EventError,
    EventTakenError,
    EventUnknownError,
    InitError,
    InitTimeoutError,
    KeyTakenError,
    LimitError,
    NameTakenError,
    NameUnknownError,
    NodeStoppedError,
    ProcessUnknownError,
    RelationError,
    RelationExistsError,
    RelationUnknownError,
    SpawnError,
    TooManyProcessesError,
    TooManyReadersError,
)
from .supervision import (
    ApplicationError,
    ApplicationNeededError,
    ApplicationStartError,
    ApplicationUnknownError,
    ChildBusyError,
    ChildDisabledError,
    ChildEnabledError,
    ChildError,
    ChildExistsError,
    ChildNotRunningError,
    ChildRunningError,
    ChildUnknownError,
    ServiceBusyError,
    ServiceError,
    ServiceGoneError,
    ServiceTimeoutError,
    TaskEndedError,
    TaskError,
    TaskTimeoutError,
    TooManyChildrenError,
    TooManyTasksError,
)

__all__ = [
    "ApplicationError",
    "ApplicationNeededError",
    "ApplicationStartError",
    "ApplicationUnknownError",
    "BadInputError",
    "BehaviourError",
    "CallError",
    "CallFailedError",
    "CallTimeoutError",
    "CallbackError",
    "ChildBusyError",
    "ChildDisabledError",
    "ChildEnabledError",
    "ChildError",
    "ChildExistsError",
    "ChildNotRunningError",
    "ChildRunningError",
    "ChildUnknownError",
    "ControlSocketError",
    "DeadlockError",
    "ErgoError",
    "EventError",
    "EventTakenError",
    "EventUnknownError",
    "EscalationError",
    "InitError",
    "InitTimeoutError",
    "KeyTakenError",
    "LimitError",
    "MailboxFullError",
    "NameTakenError",
    "NameUnknownError",
    "NodeStoppedError",
    "MethodUnknownError",
    "NotAllowedError",
    "ProcessUnknownError",
    "Reject",
    "RelationError",
    "RelationExistsError",
    "RelationUnknownError",
    "SendError",
    "ServiceBusyError",
    "ServiceError",
    "ServiceGoneError",
    "ServiceTimeoutError",
    "SpawnError",
    "TargetDownError",
    "TargetTypeError",
    "TaskEndedError",
    "TaskError",
    "TaskTimeoutError",
    "TooManyChildrenError",
    "TooManyProcessesError",
    "TooManyReadersError",
    "TooManyTasksError",
    "UnhandledCallError",
]

show_public_names(__name__, {"ergo_py.errors": " ".join(__all__)})
