"""What the environments of other projects have in common: blocking calls in threads, tasks by seed, and one tool to act with."""

import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from asyncrl.core.ids import TaskId
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall
from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Fault, Observation, StepResult
from asyncrl.envs.hosting.threads import run_in_daemon_thread

T = TypeVar("T")

SEEDS = 1 << 30
"""Seeds of training are below this number, those of evaluation above, so that no task is in both."""


class Played(Environment):
    """The base class of environments that other projects made. Their calls may block, so each is made in a thread."""

    async def blocking(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Make a call that may block, and return what it returns."""
        return await run_in_daemon_thread(lambda: call(*arguments, **named), name=type(self).__name__)


class Seeded(Played):
    """An environment whose tasks differ in their seeds alone."""

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make tasks, each with a seed of its own."""
        cls.check(**options)
        first = seed * count % (SEEDS - count) + (SEEDS if split == "evaluation" else 0)
        name = options["name"]
        return [
            Task(id=TaskId(f"{name}-{number}"), prompt=f"Play {name}.", data={"seed": number})
            for number in range(first, first + count)
        ]

    @classmethod
    @abstractmethod
    def check(cls, **options: Any) -> None:
        """Raise ``RecipeError`` if there is no such environment, or it cannot be played."""


def answered(
    call: ToolCall | MalformedCall, text: str, began: float, problem: str = "", failed: CallOutcome = CallOutcome.MALFORMED
) -> tuple[Message, CallRecord]:
    """Return the message that answers a call, and the record of it.

    Args:
        began: when it began, by ``time.monotonic``.
        problem: what was wrong with the call; empty if nothing was.
        failed: what became of the call if there is a problem.
    """
    name = call.name if isinstance(call, ToolCall) else ""
    outcome = failed if problem else CallOutcome.OK
    record = CallRecord(name, time.monotonic() - began, outcome, problem)
    return Message("tool", f"error: {problem}" if problem else text), record


def without_tools(action: Action) -> StepResult:
    """Return the result of a turn with calls where there are no tools: what stands beside them is not played."""
    began, problem = time.monotonic(), "there are no tools; write what you do as text, and call nothing"
    records = tuple(answered(call, "", began, problem)[1] for call in action.calls)
    told = Message("user", f"error: {problem}")  # templates of conversations without tools may know no other role
    return StepResult(Observation((told,)), 0.0, False, fault=Fault.MALFORMED_CALL, calls=records)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the values that are finite numbers, or true or false."""
    found = {}
    for name, value in values.items():
        item = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
        if isinstance(item, bool | int | float) and abs(item) <= sys.float_info.max:
            found[str(name)] = float(item)
    return found
