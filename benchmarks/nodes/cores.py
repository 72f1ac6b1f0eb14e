"""A function on all cores: `ProcessCalls` beside `concurrent.futures.ProcessPoolExecutor`, and
beside the same work in this program.
"""

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter

import trio

from ergo_py import open_node
from ergo_py.workers import Compute, ProcessCalls
from examples.cores import primes

from ..harness import Figures

__all__ = ["alone", "with_executor", "with_process_calls"]

_PART = 5000


def alone(parts: int) -> Figures:
    """The work in this program."""
    began = perf_counter()
    for part in range(parts):
        primes.count(part * _PART, (part + 1) * _PART)
    return {"wall": (perf_counter() - began) * 1e3}


def with_process_calls(parts: int) -> Figures:
    """The work in worker nodes, without their start."""
    return {"wall": trio.run(_ours, parts, _processors()) * 1e3}


def with_executor(parts: int) -> Figures:
    """The work in programs of Python's library, without their start."""
    return {"wall": asyncio.run(_theirs(parts, _processors())) * 1e3}


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def _ours(parts: int, count: int) -> float:
    taken = 0.0
    async with open_node(log_output="none", watchdog=None) as node:
        pid = await node.spawn(ProcessCalls.spec(count=count))

        async def ask(part: int) -> None:
            request = Compute(primes.count, part * _PART, (part + 1) * _PART)
            await node.call(pid, request, timeout=None)

        async with trio.open_nursery() as nursery:
            for _ in range(count):  # the programs start, and import the function
                nursery.start_soon(ask, 0)
        began = perf_counter()
        async with trio.open_nursery() as nursery:
            for part in range(parts):
                nursery.start_soon(ask, part)
        taken = perf_counter() - began
    return taken  # noqa: RET504 - for type checkers, the block may swallow an exception


async def _theirs(parts: int, count: int) -> float:
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:

        def run(first: int) -> asyncio.Future[int]:
            return loop.run_in_executor(pool, primes.count, first, first + _PART)

        await asyncio.gather(*(run(0) for _ in range(count)))
        began = perf_counter()
        await asyncio.gather(*(run(part * _PART) for part in range(parts)))
        return perf_counter() - began
