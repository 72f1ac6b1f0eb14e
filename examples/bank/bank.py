"""The entities of the bank: accounts, transfers between them, and letters with statements."""

from dataclasses import asdict, dataclass, field

from ergo_py import Reject, exposed
from ergo_py.entities import Entity, EntityHandle

__all__ = [
    "MESSAGES",
    "MONTH",
    "Account",
    "AccountState",
    "Begin",
    "Letter",
    "Print",
    "Transfer",
    "TransferState",
]

MONTH = 60.0
"""The seconds of a month of this bank: each account gets a statement at its end."""
ENTRIES = 20


# -- messages between entities ---------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Begin a transfer."""

    source: str
    target: str
    amount: int


@dataclass(frozen=True)
class Take:
    """A transfer takes an amount from an account."""

    amount: int
    text: str


@dataclass(frozen=True)
class Give:
    """A transfer gives an amount to an account."""

    amount: int
    text: str


@dataclass(frozen=True)
class Booked:
    """An account has booked an amount."""


@dataclass(frozen=True)
class Refused:
    """An account does not book an amount."""

    why: str


@dataclass(frozen=True)
class MonthEnds:
    """The timer of an account."""


@dataclass(frozen=True)
class Print:
    """Print a letter."""

    text: str


MESSAGES = [Begin, Take, Give, Booked, Refused, MonthEnds, Print]


# -- accounts --------------------------------------------------------------------------------------


@dataclass
class AccountState:
    """Every field has a default: an account that no person has used is ``AccountState()``."""

    is_open: bool = False
    balance: int = 0
    entries: list[str] = field(default_factory=list)
    statements: int = 0


class Account(Entity[AccountState]):
    """An account; its key is the name of its owner."""

    @exposed
    def open(self) -> int:
        """Open the account. Safe to repeat."""
        if not self.key.isidentifier():  # it is a part of the file names of letters
            raise Reject(ValueError("a name has letters, digits and underscores"))
        if not self.state.is_open:
            self.state.is_open = True
            self.wait_for_the_end_of_the_month()
        return self.state.balance

    @exposed
    def deposit(self, amount: int) -> int:
        """Pay cash in. Returns the balance, when it is on disk."""
        self.check_open()
        self.book(amount, "cash")
        return self.state.balance

    @exposed
    def look(self) -> dict[str, object]:
        """The account as it is."""
        self.check_open()
        return asdict(self.state)

    def handle_message(self, message: object, sender: object) -> None:
        """Serve a transfer, which gets an answer, or the timer."""
        match message, sender:
            case Take(amount, text), EntityHandle():
                if self.state.balance < amount:
                    self.send(sender, Refused(f"{self.key} has {self.state.balance} only"))
                else:
                    self.book(-amount, text)
                    self.send(sender, Booked())  # stored with the new balance
            case Give(amount, text), EntityHandle():
                if not self.state.is_open:
                    self.send(sender, Refused(f"{self.key} has no account"))
                else:
                    self.book(amount, text)
                    self.send(sender, Booked())
            case MonthEnds(), _:
                self.send_statement()
                self.wait_for_the_end_of_the_month()

    def check_open(self) -> None:
        if not self.state.is_open:
            raise Reject(LookupError(f"{self.key} has no account"))

    def book(self, amount: int, text: str) -> None:
        self.state.balance += amount
        self.state.entries = [*self.state.entries[1 - ENTRIES :], f"{amount:+} {text}"]

    def send_statement(self) -> None:
        self.state.statements += 1
        number = self.state.statements
        lines = [f"Statement {number} for {self.key}", *self.state.entries]
        letter = self.entity(Letter, f"{self.key}-{number}")
        self.send(letter, Print("\n".join([*lines, f"balance {self.state.balance}", ""])))

    def wait_for_the_end_of_the_month(self) -> None:
        self.send_after(MONTH, self.entity(Account, self.key), MonthEnds(), name="month")


# -- transfers -------------------------------------------------------------------------------------


@dataclass
class TransferState:
    """How far a transfer is."""

    step: str = "unknown"
    source: str = ""
    target: str = ""
    amount: int = 0
    why: str = ""


class Transfer(Entity[TransferState]):
    """A saga: two accounts are two commits, so the transfer remembers its step. If the target
    refuses the money, it goes back to the source.
    """

    @exposed
    def look(self) -> dict[str, object]:
        """The transfer as it is."""
        return asdict(self.state)

    def handle_message(self, message: object, sender: object) -> None:
        """Make the next step."""
        state = self.state
        match state.step, message:
            case "unknown", Begin(source, target, amount):
                self.state = TransferState("taking", source, target, amount)
                self.send(self.entity(Account, source), Take(amount, f"to {target}, {self.key}"))
            case "taking", Booked():
                state.step = "giving"
                text = f"from {state.source}, {self.key}"
                self.send(self.entity(Account, state.target), Give(state.amount, text))
            case "taking", Refused(why):
                state.step, state.why = "refused", why
            case "giving", Booked():
                state.step = "done"
            case "giving", Refused(why):
                state.step, state.why = "returning", why
                text = f"returned, {self.key}"
                self.send(self.entity(Account, state.source), Give(state.amount, text))
            case "returning", Booked():
                state.step = "returned"


# -- letters ---------------------------------------------------------------------------------------


@dataclass
class LetterState:
    """A letter keeps nothing but its message, and is deleted when it is printed."""


class Letter(Entity[LetterState]):
    """A job: a letter that is to be printed. If the printer fails, the letter is tried again."""

    async def handle_message(self, message: object, sender: object) -> None:
        """Print it. The printer may get a letter twice, under the same name."""
        match message:
            case Print(text):
                await self.call("printer", (self.key, text))
                self.delete()
