"""A program whose log level and permissions a reload reads again, without a restart."""

import trio

from ergo_py import open_node

settings = {"log_level": "warning", "control": "look"}  # as a program reads them from a file


def read_level() -> str:
    return settings["log_level"]


def read_permissions() -> str:
    return settings["control"]


async def main() -> None:
    async with open_node(log_level=read_level, log_output="none", control=read_permissions) as node:
        settings["log_level"] = "info"
        settings["control"] = "look,everything"
        for failure in await node.reload():
            print(failure)


if __name__ == "__main__":
    trio.run(main)
