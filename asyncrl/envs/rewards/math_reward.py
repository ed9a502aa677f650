r"""The reward of an answer that is mathematically equal to the expected one, by ``math-verify``.

``1/2``, ``0.5`` and ``\frac{2}{4}`` are equal, and so are ``(x+1)^2`` and ``x^2+2x+1``. Comparing runs sympy on what the model
wrote, which can take any time and memory. So it runs in processes of its own, and one that misses its deadline is killed.
"""

import os
import sys
import time
from importlib.util import find_spec
from typing import Annotated

import msgspec
from msgspec import Meta

from asyncrl.core.errors import EnvironmentBroken, RecipeError
from asyncrl.core.task import Task
from asyncrl.core.text import short, writable
from asyncrl.envs.hosting.guarded_calls import Overdue
from asyncrl.envs.hosting.tool_messages import Answered, Load
from asyncrl.envs.hosting.tool_processes import ProcessEnded, ToolProcesses
from asyncrl.envs.rewards.base import Reward, RewardUnavailable, expected_texts
from asyncrl.envs.rewards.per_loop import PerLoop

LONGEST = 20_000
"""Characters of an answer that are looked at, from its end, where answers stand."""
PLAIN = "1"
"""An answer that anything sensible can be compared with at once; if an expected answer cannot, that one is to blame."""
INCIDENT_S = 60.0
"""Processes that cannot be started within so many seconds of each other are one incident."""
COMPARING = Load("asyncrl.envs.rewards.math_comparison", "Comparing")
"""What a process loads; importing sympy takes about a second on an idle machine, which is no time of a comparison."""


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
        self._processes = PerLoop(lambda: ToolProcesses("the reward `math`", most=processes))

    async def __call__(self, task: Task, answer: str) -> float:
        """Compare."""
        gold = expected_texts(task, self._key, "math")[0]
        if answer.strip() == gold.strip():
            return 1.0
        found = await self._compare(gold, answer[-LONGEST:])
        if found is None and await self._compare(gold, PLAIN) is not None:
            return 0.0
        if found is None or not found.known:
            problem = "cannot read" if found is not None else f"needs more than {self._deadline_s:g} s, or too much memory, for"
            remedy = "write it as LaTeX or a plain expression, e.g. \\frac{1}{2} or 0.5"
            raise EnvironmentBroken(f"task {short(task.id)}: math {problem} the expected answer {short(gold)}; {remedy}")
        return float(found.equal)

    async def _compare(self, gold: str, answer: str) -> _Comparison | None:
        """Compare in a process; None if one of the two took too long or too much."""
        asked = {"expected": writable(gold), "answer": writable(answer), "seconds": 2 * self._deadline_s}
        try:
            reply = await self._processes.get().call(COMPARING, "compare", asked, self._deadline_s)
        except (Overdue, ProcessEnded):
            return None
        except EnvironmentBroken as error:
            remedy = f"see whether `{sys.executable} -c 'import math_verify'` works, and free memory if it was killed"
            incident = f"math {os.getpid()} {time.monotonic() // INCIDENT_S}"
            raise RewardUnavailable(f"the process that compares answers did not start: {error}; {remedy}", incident) from error
        return msgspec.json.decode(reply.text, type=_Comparison) if isinstance(reply, Answered) else None
