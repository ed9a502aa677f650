"""An event loop in a thread of its own, for work that calls the user's code.

What always holds: the loop survives whatever that code raises where nobody waits for it. If the loop ends nevertheless,
callers that wait for its work get an error at once; if it is blocked, they get one after a fixed time. So callers need
another event loop, one in which the user's code never runs.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from asyncrl.core.errors import EventLoopBlocked, ProcessDied
from asyncrl.core.text import describe_error, traceback_of
from asyncrl.envs.hosting.blocking import BlockingWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EventLoopThread:
    """A thread that runs an event loop. Another event loop of the same kind creates it and calls it.

    Args:
        name: name of the thread's owner, for errors.
        silence_s: how long the loop may be blocked, in seconds, once :meth:`watch` was called.
    """

    def __init__(self, name: str, silence_s: float) -> None:
        self._name = name
        self._caller = asyncio.get_running_loop()
        self._loop = type(self._caller)()
        self._loop.set_exception_handler(_log_stray)
        self._failed: asyncio.Future[ProcessDied] = self._caller.create_future()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"{name}'s event loop", daemon=True)
        self._watch = BlockingWatch(self._loop, self._thread, self._turn.__code__, silence_s, self._blocked)
        self._thread.start()

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do ``work`` in the loop, and return its result.

        Raises:
            ProcessDied: the loop has ended or is blocked, or other code, such as an environment, cancelled the work.
            Exception: whatever ``work`` raises.
        """
        if self._failed.done():
            raise self._failed.result()
        answer = asyncio.wrap_future(self._begin(work))
        either: set[asyncio.Future[Any]] = {answer, self._failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped = not answer.done() and answer.cancel()
        if stopped:
            raise self._failed.result()
        if answer.cancelled():
            raise ProcessDied(f"{self._name}: its work was cancelled from within; an environment may only cancel its own tasks")
        if isinstance(error := answer.exception(), SystemExit | KeyboardInterrupt):
            raise ProcessDied(f"{self._name}: its work ended with {describe_error(error)}") from error
        return answer.result()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Have the loop do ``work``; cancelling the answer cancels it. A loop that is blocked begins late, or never: only when it
        begins is there a coroutine, so that none is left over that nobody awaits."""
        answer: Future[T] = Future()

        async def done() -> T:
            return await work()

        def begin() -> None:
            if answer.cancelled() or self._closing:
                return
            working = self._loop.create_task(done())
            answer.add_done_callback(partial(stop, working))
            working.add_done_callback(settle)

        def stop(working: "asyncio.Task[T]", answer: "Future[T]") -> None:
            if answer.cancelled():
                self.call_soon(working.cancel)

        def settle(working: "asyncio.Task[T]") -> None:
            if working.cancelled():
                answer.cancel()
            if not answer.set_running_or_notify_cancel():
                return
            if (error := working.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(working.result())

        self.call_soon(begin)
        return answer

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` in the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(callback)

    def watch(self) -> None:
        """Start to watch for code that blocks the loop. From now on, only the user's code should be able to."""
        self._watch.start()

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """A sentence about each place in the code that blocked the loop for a second or longer."""
        return self._watch.sentences

    def close(self) -> None:
        """Stop the loop. Tasks that still run in it are not cancelled; they just stop running."""
        self._closing = True
        self._watch.close()
        # One pass later, so that what began in this one takes its first step: else a coroutine would be left that nobody awaits.
        self._loop.call_soon_threadsafe(self._loop.call_soon, self._loop.stop)

    def _run(self) -> None:
        why = "it was closed"
        try:
            asyncio.set_event_loop(self._loop)
            while not self._closing:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - it is logged, and callers get it as an error
            logger.critical("the event loop ended\n%s", traceback_of(error))
            why = describe_error(error)
        finally:
            self._fail(ProcessDied(f"{self._name}: its event loop ended: {why}"))

    def _turn(self) -> None:
        """Run the loop until it is stopped, or a task or callback raises ``SystemExit`` or ``KeyboardInterrupt``."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as stray:
            logger.warning(
                "the event loop goes on after %s in a task or callback\n%s", describe_error(stray), traceback_of(stray)
            )
        else:
            if not self._closing:
                logger.warning("an environment stopped the event loop; it goes on")

    def _blocked(self, problem: str) -> None:
        logger.error("%s", problem)
        self._fail(EventLoopBlocked(f"{self._name}: {problem}"))

    def _fail(self, failure: ProcessDied) -> None:
        def settle() -> None:
            if not self._failed.done():
                self._failed.set_result(failure)

        with contextlib.suppress(RuntimeError):  # the caller's loop is closed, so nobody waits
            self._caller.call_soon_threadsafe(settle)


def _log_stray(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no code waits for, such as that of a task that an environment started and forgot."""
    error: BaseException | None = context.get("exception")
    logger.warning("%s\n%s", context["message"], "" if error is None else traceback_of(error))
