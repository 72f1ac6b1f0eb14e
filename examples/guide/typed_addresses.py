from dataclasses import dataclass

from ergo_py import PID, Actor, Caller, Name, Node, Request, ask, exposed, run


@dataclass(frozen=True)
class Add:
    amount: int


@dataclass(frozen=True)
class Reset:
    pass


class Counter(Actor[Add | Reset]):
    def __init__(self) -> None:
        self.value = 0

    def handle_message(self, message: Add | Reset, sender: PID) -> None:
        match message:
            case Add(amount):
                self.value += amount
            case Reset():
                self.value = 0

    def handle_call(self, request: "Total", caller: Caller) -> object:
        return request.answer_with(self.value)

    @exposed
    def double(self) -> int:
        self.value *= 2
        return self.value


@dataclass(frozen=True)
class Total(Request[int, Counter]):
    pass


async def main(node: Node) -> None:
    counter = await node.spawn(Counter, name="counter")  # inferred: PID[Counter]
    node.send(counter, Add(3))
    print(await node.call(counter, ask(Counter.double)))  # inferred: int
    print(await node.call(counter, Total()))
    by_name: Name[Counter] = Name("counter")
    node.send(by_name, Reset())
    print(await node.call(by_name, Total()))


if __name__ == "__main__":
    run(main)
