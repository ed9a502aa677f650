"""Watches an event loop from another thread, and finds the code that blocks it.

All episodes of a worker share one event loop. One call that blocks it stops them all, and also the renewal of the
worker's leases. What always holds: each place in the code that blocks the loop is logged once with its stack and
counted after that; a loop that was blocked for as long as its worker may be silent is reported once.
"""

import asyncio
import contextlib
import faulthandler
import linecache
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType

import msgspec

from asyncrl.envs import tool_results, tools
from asyncrl.envs.hosting import guarded_calls, hosted, shared_part

logger = logging.getLogger(__name__)

LOOK_S = 0.25
"""Seconds between two checks of the loop. A check takes tens of microseconds."""
LOGGED_S = 1.0
"""Seconds after which a blocked loop is logged."""

_CONTAINED = guarded_calls.contained.__code__
_TOOL = tools.Tool.__call__.__code__
_BETWEEN = {
    guarded_calls.__file__,
    contextlib.__file__,
    hosted.__file__,
    shared_part.__file__,
    tool_results.__file__,
    tools.__file__,
}
"""Files whose frames lie between the contained call and the user's code."""
_LOOPS = str(Path(asyncio.__file__).parent)


class Place(msgspec.Struct, frozen=True):
    """A place in the code that was running in the event loop.

    Attributes:
        what: qualified name of the function, e.g. ``async tool Code.run``.
        where: its file, its current line, and that line's text; empty if the loop was waiting to be scheduled.
        remedy: what the user can do.
    """

    what: str
    where: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})" if self.where else self.what


NOBODY = Place(
    "a wait to be scheduled",
    "",
    "its thread did not get to run: the machine is overloaded, or threads of plain tools keep the interpreter busy",
)


def find_place(frame: FrameType | None, below: CodeType) -> tuple[Place, Sequence[FrameType]]:
    """Find the user's code that a thread is running; returns its place and its frames, outermost first.

    Args:
        frame: the innermost frame of the thread; None if the thread has ended.
        below: code object of the function that runs the loop.
    """
    stack = [each for each, _ in traceback.walk_stack(frame)][::-1] if frame is not None else []
    codes = [each.f_code for each in stack]
    if _CONTAINED in codes:
        inside = stack[_last(codes, _CONTAINED) + 1 :]
        own = [each for each in inside if each.f_code.co_filename not in _BETWEEN] or inside or stack[-1:]
        if _TOOL in codes:
            remedy = "make it a plain `def` tool, which runs in a thread of its own, or await instead of blocking"
            return _place("async tool ", own[0], remedy), own
        remedy = "await there instead of blocking, or use a thread: `await asyncio.to_thread(...)` in an `async def`"
        return _place("", own[0], remedy), own
    own = [each for each in stack[_last(codes, below) + 1 :] if not each.f_code.co_filename.startswith(_LOOPS)]
    while own and own[-1].f_code.co_filename.endswith("/selectors.py"):
        own.pop()
    if not own:
        return NOBODY, ()
    return _place("", own[0], "if this is code of your environment, make it await instead of blocking"), own


def _place(kind: str, frame: FrameType, remedy: str) -> Place:
    file, line = frame.f_code.co_filename, frame.f_lineno
    name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
    return Place(f"{kind}{name}", f"{file}:{line}: `{linecache.getline(file, line).strip()}`", remedy)


def _last(codes: Sequence[CodeType], code: CodeType) -> int:
    return max((index for index, each in enumerate(codes) if each is code), default=-1)


class BlockingWatch:
    """Watches one event loop, from :meth:`start` to :meth:`close`.

    Args:
        thread: the thread that runs the loop.
        below: code object of the function that runs the loop.
        silence_s: how long the loop may be blocked, in seconds.
        on_blocked: called in the watching thread, once, when the loop has been blocked for that long, with a sentence
            for the user.
        clock: returns the time in seconds; must never go back.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: threading.Thread,
        below: CodeType,
        silence_s: float,
        on_blocked: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop, self._thread, self._below = loop, thread, below
        self._silence_s, self._on_blocked, self._clock = silence_s, on_blocked, clock
        self._turned, self._closed = threading.Event(), threading.Event()
        self._turned.set()
        self._looked = clock()
        self._blocked_s = 0.0
        self._found: Counter[Place] = Counter()
        self._logged: Counter[Place] = Counter()
        self._reported = False

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for the user about each logged place, except those where no code was at fault."""
        places = [place for place in self._logged.copy() if place != NOBODY]
        return tuple(f"{place} blocks the event loop that all episodes share; {place.remedy}" for place in places)

    def start(self) -> None:
        """Start watching."""
        threading.Thread(target=self._run, name="watching the event loop", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            # Code that holds the interpreter lock stops this thread, too. Then faulthandler logs all stacks without it.
            faulthandler.dump_traceback_later(self._silence_s, file=2)
            self.look()
        faulthandler.cancel_dump_traceback_later()

    def look(self) -> None:
        """Check whether the loop has run since the last check; if not, find out what it is doing."""
        now = self._clock()
        # Time in which the process was stopped or the machine slept does not count: no code blocked the loop then.
        passed, self._looked = min(now - self._looked, 2 * LOOK_S), now
        if self._turned.is_set():
            self._blocked_s = 0.0
            self._found.clear()
            self._turned.clear()
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:  # the loop was closed just after this thread had found its watch open
                self._closed.set()
            return
        was, self._blocked_s = self._blocked_s, self._blocked_s + passed
        place, stack = find_place(sys._current_frames().get(self._thread.ident or 0), self._below)
        self._found[place] += 1
        if was < LOGGED_S <= self._blocked_s:
            self._log(place, stack)
        if self._blocked_s >= self._silence_s and not self._reported:
            self._reported = True
            self._report()

    def _log(self, place: Place, stack: Sequence[FrameType]) -> None:
        self._logged[place] += 1
        times = self._logged[place]
        if times == 1:
            shown = "".join(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in stack).format())
            logger.warning("the event loop was blocked for %.1f s by %s; %s\n%s", self._blocked_s, place, place.remedy, shown)
        elif str(times).strip("0") == "1":
            logger.warning("the event loop was blocked for the %dth time by %s; %s", times, place, place.remedy)

    def _report(self) -> None:
        (place, looks), *_ = self._found.most_common(1)
        share = looks / self._found.total()
        self._on_blocked(
            f"the event loop that all its episodes share was blocked for {self._blocked_s:.0f} s, so its leases were not "
            f"renewed; {share:.0%} of that time it was in {place}; {place.remedy}"
        )
