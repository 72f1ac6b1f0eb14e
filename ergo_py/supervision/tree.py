"""`TreeNode`: the supervision tree of a node, as data and as text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from .._core.inspection.census import entity_of
from .._core.kernel import Kernel
from .._core.metas.meta import Meta
from .._core.processes.process import Process
from .._core.vocabulary.ids import PID, Alias
from .._core.vocabulary.info import ApplicationInfo, ChildInfo, Phase
from .._core.vocabulary.late_methods import dataclass
from .._core.vocabulary.public_names import show_public_names
from .._core.vocabulary.states import State
from .supervisor import Supervisor

__all__ = ["TreeNode", "take_tree"]

_USUAL: Final = frozenset(
    state.value for state in (State.SLEEP, State.RUNNING, State.WAIT_RESPONSE)
)
"""The states of a process that serves messages; those of a meta-process are among them."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A process, meta-process or child that is down, with its children. ``str()`` gives the tree as
    text.
    """

    id: PID | Alias | None
    """None for a child that is down, and for the node itself."""
    name: str | None
    """The name in its supervisor, or else its registered name."""
    behaviour: str
    state: str | None
    """The state of the process; None without a process."""
    phase: Phase | None
    """The lifecycle phase of a supervised child or an application; None for others."""
    restarts: int
    mailbox: int
    """The number of queued messages."""
    strategy: str | None
    """The restart strategy, if it is a supervisor."""
    starts_in: float | None
    """Seconds until its start, if it is backing off."""
    children: "tuple[TreeNode, ...]" = ()
    entity: str | None = None
    """The kind and key, if it is the process of an entity."""

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """The tree in a notebook."""
        from html import escape  # noqa: PLC0415 - needed in notebooks only

        return f"<pre>{escape(self.text(alike=10))}</pre>"

    def text(self, *, depth: int | None = None, alike: int | None = None) -> str:
        """The tree as text.

        Args:
            depth: how many levels below this node to show; all if not given.
            alike: how many unnamed children of each behaviour to show below each parent; all if not
                given.
        """
        return "\n".join([self._line(), *self._below("", depth, alike)])

    def find(self, name: str) -> "TreeNode | None":
        """Return the first node of that name in this part of the tree."""
        if self.name == name:
            return self
        return next(
            (found for child in self.children if (found := child.find(name)) is not None), None
        )

    def _below(self, indent: str, depth: int | None, alike: int | None) -> Iterator[str]:
        if depth == 0:
            if self.children:
                yield f"{indent}└─ … {self._count()} below"
            return
        shown, folded = self._folded(alike)
        left = len(shown) + len(folded)
        for child in shown:
            left -= 1
            yield f"{indent}{'├─ ' if left else '└─ '}{child._line()}"
            yield from child._below(
                indent + ("│  " if left else "   "), None if depth is None else depth - 1, alike
            )
        for behaviour, count in folded.items():
            left -= 1
            yield f"{indent}{'├─ ' if left else '└─ '}… and {count} more {behaviour}"

    def _folded(self, alike: int | None) -> "tuple[list[TreeNode], Counter[str]]":
        """The children to show, and the number of hidden children of each behaviour."""
        if alike is None:
            return list(self.children), Counter()
        shown, seen, folded = [], Counter[str](), Counter[str]()
        for child in self.children:
            seen[child.behaviour] += child.name is None
            if child.name is None and seen[child.behaviour] > alike:
                folded[child.behaviour] += 1
            else:
                shown.append(child)
        return shown, folded

    def _count(self) -> int:
        return sum(1 + child._count() for child in self.children)

    def _unusual_state(self) -> str | None:
        """The phase of a child that does not run, or the state of a process that starts or ends.
        None for others: `ps` shows what they do at this moment.
        """
        if self.phase is not None and self.phase is not Phase.RUNNING:
            return str(self.phase.value)
        return None if self.state in _USUAL else self.state

    def _line(self) -> str:
        words = [
            word
            for word in (
                self.name,
                self.entity or self.behaviour,
                str(self.id) if self.id is not None else "",
            )
            if word
        ]
        facts = [self.strategy, self._unusual_state()]
        if self.starts_in is not None:
            facts.append(f"starts in {self.starts_in:.3g} s")
        if self.restarts:
            facts.append(f"{self.restarts} restart{'s' if self.restarts > 1 else ''}")
        if self.mailbox:
            facts.append(f"mailbox {self.mailbox}")
        shown_facts = [fact for fact in facts if fact]
        return " ".join(words) + (f" ({', '.join(shown_facts)})" if shown_facts else "")


def take_tree(kernel: Kernel, applications: Sequence[ApplicationInfo] = ()) -> TreeNode:
    """The current tree, followed by the applications that do not run.

    Taken in a single scheduler turn: otherwise a child that restarts meanwhile would be in it
    twice, or not at all.
    """
    by_pid = {application.pid: application for application in applications}
    roots: list[Any] = list(kernel.roots.values())
    children = [_of_root(process, by_pid.get(process.id)) for process in roots]
    children += [
        TreeNode(None, application.name, "Application", None, application.phase, 0, 0, None, None)
        for application in applications
        if application.pid is None
    ]
    return TreeNode(None, kernel.pid.node, "", None, None, 0, 0, None, None, tuple(children))


def _of_root(process: Process, application: ApplicationInfo | None) -> TreeNode:
    found = _of_process(process, process.name, None, 0)
    return (
        found
        if application is None
        else replace(found, behaviour="Application", phase=application.phase)
    )


# Flat, and with positional arguments: no other task runs until the whole tree is built, so be fast.
def _of_process(process: Any, name: str | None, phase: Phase | None, restarts: int) -> TreeNode:
    is_supervisor = process.slots is not None and isinstance(process.behaviour_itself, Supervisor)
    return TreeNode(
        process.id,
        name,
        process.callbacks.behaviour,
        process.state._value_,  # reading a value in the usual way is slow on CPython 3.11
        phase,
        restarts,
        len(process.mailbox),
        process.behaviour._plan.spec.strategy.value if is_supervisor else None,
        None,
        _of_children(process)
        if is_supervisor
        else _of_owned(process.owned)
        if process.owned
        else (),
        entity_of(process),
    )


def _of_children(process: Process) -> tuple[TreeNode, ...]:
    supervisor: Supervisor = process.behaviour_itself
    now = process.kernel.clock.now()
    owned, slots = dict(process.owned or {}), process.slots or {}
    found: list[TreeNode] = []
    for child in supervisor._plan.children.values():
        running = owned.pop(child.pid, None)
        if running is None:
            found.append(_of_child(supervisor._info(child, now)))
        else:
            found.append(_of_process(running, child.name, child.phase, slots[child.name].restarts))
    return (*found, *_of_owned(owned))


def _of_owned(owned: Mapping[Any, Any]) -> tuple[TreeNode, ...]:
    return tuple(
        [
            _of_process(child, child.name, None, 0)
            if isinstance(child, Process)
            else _of_meta(child)
            for child in owned.values()
        ]
    )


def _of_child(child: ChildInfo) -> TreeNode:
    return TreeNode(
        None,
        child.name,
        child.behaviour,
        None,
        child.phase,
        child.restarts,
        child.waiting,
        None,
        child.starts_in,
    )


def _of_meta(meta: Meta) -> TreeNode:
    return TreeNode(
        meta.id,
        None,
        meta.callbacks.behaviour,
        meta.state.value,
        None,
        0,
        len(meta.mailbox),
        None,
        None,
        _of_owned(meta.owned or {}),
    )


show_public_names(__name__)
