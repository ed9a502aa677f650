r"""The reward of an answer that is mathematically equal to the expected one, by ``math-verify``.

``1/2``, ``0.5`` and ``\frac{2}{4}`` are equal, and so are ``(x+1)^2`` and ``x^2+2x+1``. Comparing runs sympy on what the model
wrote, which can take any time and memory. So it runs in processes of its own, and one that misses its deadline is killed.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.task import Task
from asyncrl.core.text import short, writable
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.rewards import math_comparison
from asyncrl.envs.rewards.base import Reward, RewardUnavailable, expected_texts
from asyncrl.envs.rewards.per_loop import PerLoop

LONGEST = 20_000
"""Characters of an answer that are looked at, from its end, where answers stand."""
PLAIN = "1"
"""An answer that anything sensible can be compared with at once; if an expected answer cannot, that one is to blame."""
START_S = 60.0
"""Deadline of a process's start, which imports sympy: about a second on an idle machine."""
_SHOWN = 200
"""The most characters of a process's last line that are shown."""


class _Comparison(msgspec.Struct, frozen=True):
    """What a process found: whether the expected answer could be read, and whether both are equal."""

    known: bool
    equal: bool


class MathEquivalence(Reward):
    """1 if the answer is mathematically equal to the expected one, else 0.

    What the text marks as its answer behind the model's thoughts (until ``</think>``) counts, or its last expression, see
    :func:`~asyncrl.envs.rewards.math_text.final_part`; it is compared with the expected answer part by part. An answer that
    cannot be read, or cannot be compared within ``deadline_s``, gets 0; an expected answer of which that is true breaks the task.

    Args:
        key: where ``task.data`` holds the expected answer, as LaTeX or a plain expression.
        deadline_s: seconds that one comparison may take.
        processes: how many processes compare, at most.

    Raises:
        RecipeError: ``math-verify`` is not installed.
    """

    def __init__(
        self,
        key: str = "answer",
        deadline_s: Annotated[float, Meta(gt=0)] = 5.0,
        processes: Annotated[int, Meta(ge=1)] = 2,
    ) -> None:
        if find_spec("math_verify") is None:
            raise RecipeError("", "the reward `math` needs math-verify", 'install it: pip install "asyncrl[math]"')
        self._key, self._deadline_s = key, deadline_s
        self._idle: list[_Process] = []
        self._slots = PerLoop(lambda: asyncio.Semaphore(processes))

    async def __call__(self, task: Task, answer: str) -> float:
        """Compare."""
        gold = expected_texts(task, self._key, "math")[0]
        if answer.strip() == gold.strip():
            return 1.0
        async with self._slots.get():
            found = await self._compare(gold, answer[-LONGEST:])
            if found is None and await self._compare(gold, PLAIN) is not None:
                return 0.0
        if found is None or not found.known:
            problem = "cannot read" if found is not None else f"needs more than {self._deadline_s:g} s, or too much memory, for"
            remedy = "write it as LaTeX or a plain expression, e.g. \\frac{1}{2} or 0.5"
            raise EnvironmentBroken(f"task {short(task.id)}: math {problem} the expected answer {short(gold)}; {remedy}")
        return float(found.equal)

    async def _compare(self, gold: str, answer: str) -> _Comparison | None:
        """Compare in an idle process, or in a new one; None if one of the two took too long or too much."""
        process = self._idle.pop() if self._idle else await self._start()
        asked = {"expected": writable(gold), "answer": writable(answer), "seconds": 2 * self._deadline_s}
        try:
            async with asyncio.timeout(self._deadline_s):
                reply = await run_in_daemon_thread(partial(process.ask, asked), "math equivalence")
        except TimeoutError:
            reply = b""
        except BaseException:
            process.kill()  # its answer would be taken for that of the next question
            raise
        if not reply:
            process.kill()
            return None
        self._idle.append(process)
        return msgspec.json.decode(reply, type=_Comparison)

    async def _start(self) -> "_Process":
        process, incident = _Process(), f"math {os.getpid()} {time.monotonic() // START_S}"
        try:
            async with asyncio.timeout(START_S):
                ready = await run_in_daemon_thread(process.ready, "starting math equivalence")
        except TimeoutError as late:
            process.kill()
            problem = f"the process that compares answers did not start in {START_S:g} s; free memory for it"
            raise RewardUnavailable(problem, incident) from late
        except BaseException:
            process.kill()
            raise
        if not ready:
            status, last = process.end()
            problem = f"the process that compares answers ended with exit status {status} ({last or 'without a word'})"
            remedy = f"see whether `{sys.executable} -c 'import math_verify'` works, and free memory if it was killed"
            raise RewardUnavailable(f"{problem}; {remedy}", incident)
        return process


class _Process:
    """A process that runs :mod:`asyncrl.envs.rewards.math_comparison`; it ends by itself when its owner does."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when this object goes
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", math_comparison.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )

    def ready(self) -> bytes:
        """Wait for its first line; empty if it ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def ask(self, question: dict[str, Any]) -> bytes:
        """Ask, and wait for the line of its answer; empty if it ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except OSError:
            return b""
        return self.ready()

    def kill(self) -> None:
        """End it at once. Whoever waits for its answer gets an empty one."""
        self._process.kill()
        self._process.wait()

    def end(self) -> tuple[int, str]:
        """End it, and return its exit status and the last line of its standard error."""
        self.kill()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return self._process.returncode, writable(last)[:_SHOWN]

    def __del__(self) -> None:
        self.kill()
        self._errors.close()
