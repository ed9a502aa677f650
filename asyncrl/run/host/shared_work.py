"""Work that is done once for each key, however many ask for its result."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")


class SharedWork(Generic[K, T]):
    """Results by key. Whoever asks while the work is under way, or after it, shares the result; failed work is done again.

    A caller that is cancelled cancels nothing: the others may still wait.
    """

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[T]] = {}

    async def result(self, key: K, work: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
        """Return the result for ``key``; begin ``work`` if there is none yet, or the last attempt failed. Raises its error.

        Args:
            name: of the work, for debugging.
        """
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._tasks[key] = asyncio.create_task(work(), name=name)
        return await asyncio.shield(task)

    @property
    def under_way(self) -> list[K]:
        """The keys whose work has not ended."""
        return [key for key, task in self._tasks.items() if not task.done()]

    def forget(self, old: Callable[[K], bool]) -> None:
        """Forget the results, and what is still under way, for keys that are ``old``."""
        self._tasks = {key: task for key, task in self._tasks.items() if not old(key)}

    def cancel(self) -> None:
        """End what is under way."""
        for task in self._tasks.values():
            task.cancel()
