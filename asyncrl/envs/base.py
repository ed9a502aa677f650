"""The environment contract: ``reset``, ``step``, ``close``; async, one instance an episode."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from asyncrl.core.messages import CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.task import Task


class Action(msgspec.Struct, frozen=True):
    """One turn of the model, parsed.

    Attributes:
        content: the text outside tool calls.
        calls: tool calls in order, parsed by the model's own tool parser; a call it could not read is a ``MalformedCall``.
    """

    content: str
    calls: tuple[ToolCall | MalformedCall, ...]


class Observation(msgspec.Struct, frozen=True):
    """What the model sees next: messages to append, and at reset the tools it may call."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


class Fault(StrEnum):
    """What went wrong in a step through no fault of the environment; the recipe decides whether the episode goes on."""

    MALFORMED_CALL = "malformed_call"
    """The call could not be parsed, named no known tool, or its arguments do not fit."""
    TOOL_ERROR = "tool_error"
    """The tool raised or passed its deadline."""


class StepResult(msgspec.Struct, frozen=True):
    """Result of one step.

    Attributes:
        metrics: numbers to be tracked, summed over the episode.
        fault: what went wrong through no fault of the environment.
        calls: what became of the turn's calls, in order; shown to the user, and counted by tool.
    """

    observation: Observation
    reward: float
    done: bool
    metrics: dict[str, float] = {}
    fault: Fault | None = None
    calls: tuple[CallRecord, ...] = ()


class Environment(ABC):
    """The world of one episode: the runner makes an instance for each.

    All episodes of a generator share one event loop, so no method may block it. Code that does is named in the log and to the
    user, and after three quarters of ``deadlines.lease`` the generator is replaced.

    An exception from any method, of whatever kind, means that the environment broke: the attempt fails and no reward is recorded.
    All methods of an instance are called in one task. When an episode ends early, the call that runs is cancelled: let
    ``asyncio.CancelledError`` out of it within a few seconds, or it is left behind, and ``close`` called beside it.
    """

    @abstractmethod
    async def reset(self, task: Task) -> Observation:
        """Begin an episode of ``task``."""

    @abstractmethod
    async def step(self, action: Action) -> StepResult:
        """React to one model turn."""

    async def close(self) -> None:
        """Release what the episode held; called exactly once, also after a failure."""

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Up to ``count`` tasks of ``split`` (``train`` or ``evaluation``), a pure function of its arguments; the splits share no
        task. ``options`` are the constructor's. Environments whose tasks come from files need not define it."""
        raise NotImplementedError(f"{cls.__name__} makes no tasks of its own; set tasks.kind to files and name some")
