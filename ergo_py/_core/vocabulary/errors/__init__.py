"""The errors of the framework, in a single tree.

::

    ErgoError
    ├── BadInputError (ValueError)          an invalid value; the text says what is allowed
    │   ├── BehaviourError (TypeError)      not a behaviour, or a callback with a wrong signature
    │   └── TargetTypeError (TypeError)     not an address
    ├── SpawnError                          nothing was started
    │   ├── InitError                       ``init`` raised; the original is the cause
    │   ├── InitTimeoutError (TimeoutError) ``init`` took too long
    │   ├── TooManyProcessesError           the node's ``max_processes`` is reached
    │   └── TooManyReadersError             the node's ``max_reader_threads`` is reached
    ├── NameTakenError                      another process has the name
    ├── NameUnknownError (LookupError)      no process has that name or alias
    ├── KeyTakenError                       another process has the key of a registry
    ├── EventTakenError                     another process has registered the event
    ├── EventUnknownError (LookupError)     there is no such event
    ├── ProcessUnknownError (LookupError)   no process at this address
    ├── RelationExistsError                 already linked to, or monitoring, that target
    ├── RelationUnknownError (LookupError)  not linked to, or not monitoring, that target
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
    ├── ServiceError                        carries service and message: nothing is lost
    │   ├── ServiceGoneError                its child does not restart; carries the reason
    │   ├── ServiceBusyError                too many requests wait for its child to restart
    │   └── ServiceTimeoutError (TimeoutError)  its child did not restart in time
    ├── TaskError                           a task of ``run_task`` has no result; carries its name
    │   ├── TaskTimeoutError (TimeoutError) its function took longer than ``timeout``
    │   ├── TaskEndedError                  it was cancelled or ended; carries the reason
    │   └── TooManyTasksError               its ``TaskSupervisor`` runs as many as it may
    ├── ApplicationError                    carries the application's name
    │   ├── ApplicationUnknownError (LookupError)  no application of that name is loaded
    │   ├── ApplicationStartError           the application failed to start; nothing of it runs
    │   └── ApplicationNeededError          running applications depend on it
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
    EventTakenError,
    EventUnknownError,
    InitError,
    InitTimeoutError,
    KeyTakenError,
    NameTakenError,
    NameUnknownError,
    NodeStoppedError,
    ProcessUnknownError,
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
    "EventTakenError",
    "EventUnknownError",
    "EscalationError",
    "InitError",
    "InitTimeoutError",
    "KeyTakenError",
    "MailboxFullError",
    "NameTakenError",
    "NameUnknownError",
    "NodeStoppedError",
    "MethodUnknownError",
    "NotAllowedError",
    "ProcessUnknownError",
    "Reject",
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
