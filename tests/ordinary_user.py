"""Calls a function as an ordinary user would: in a forked process without any capability.

The kernel lets root's processes do what an ordinary user's may not, and protects them from each other better.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from asyncrl.envs.sandbox.privileges import drop_capabilities

T = TypeVar("T")
DEADLINE_S = 120.0


def as_ordinary_user(function: Callable[..., T], *arguments: object) -> T:
    """Return what ``function`` returns in a process that has given up root's powers."""
    return apart(_without_powers, function, *arguments)


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Return what ``function`` returns in a forked process, which may change what processes have."""
    forked = multiprocessing.get_context("fork")
    reading, writing = forked.Pipe(duplex=False)
    process = forked.Process(target=_call, args=(writing, function, arguments))
    process.start()
    writing.close()
    try:
        assert reading.poll(DEADLINE_S), f"{function.__name__}{arguments} takes longer than {DEADLINE_S:g} s"
        result: T = reading.recv()
        return result
    finally:
        process.kill()
        process.join()


def _without_powers(function: Callable[..., T], *arguments: object) -> T:
    drop_capabilities()
    return function(*arguments)


def _call(writing: Connection, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    writing.send(function(*arguments))
