import trio

from ergo_py import Actor, DeadLetter, open_node


class Till(Actor):
    def handle_message(self, message: object, sender: object) -> None:
        print("paid:", message)

    def handle_call(self, request: object, caller: object) -> str:
        return "closed"


async def main() -> None:
    keep = DeadLetter.Keep(bytes=1_000_000)
    async with open_node("demo@localhost", dead_letters=keep) as node:
        node.send("til", 30)  # a typo: the message is kept

        [letter] = node.dead_letters(contents=True)
        print(letter.message_type, letter.contents, "to", letter.target)
        await node.spawn(Till, name="till")
        node.resend(letter, "till")
        print("the till is", await node.call("till", "close"))


if __name__ == "__main__":
    trio.run(main)
