"""An event loop whose clock is not the wall's: it jumps to the next timer when nothing else is left to do."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits, and there is no timer: this would hang forever")
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Work for threads is done at once, in the loop's own."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: object, work: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":
        done = self.create_future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - handed to the one who waits
            done.set_exception(error)
        return done


def run(main: Coroutine[Any, Any, T]) -> T:
    """``main``'s result, in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an ``async`` test so: however slow the machine is, no deadline passes while there is something to do."""

    @functools.wraps(test)
    def run_test(*arguments: Any, **fixtures: Any) -> None:
        run(test(*arguments, **fixtures))

    return run_test


def skip(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let time pass at once for the running event loop, which keeps real time otherwise: its deadlines come so much sooner."""
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + seconds)
