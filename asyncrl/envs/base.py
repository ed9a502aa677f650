"""The environment contract: async methods ``reset``, ``step`` and ``close``, and one instance for each episode."""

import logging
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.files.folder_tree import remove_tree
from asyncrl.core.messages import CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.envs.hosting.episode_resources import Provided

logger = logging.getLogger(__name__)


class Action(msgspec.Struct, frozen=True):
    """One turn of the model, parsed.

    Attributes:
        content: the text outside tool calls.
        calls: tool calls in order, parsed by the model's own tool parser; a call that it cannot read is a ``MalformedCall``.
    """

    content: str
    calls: tuple[ToolCall | MalformedCall, ...]


class Observation(msgspec.Struct, frozen=True):
    """What the model sees next: the messages to append and, at reset, the tools that it may call."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()


class Fault(StrEnum):
    """What the model or a tool did wrong in a step; the recipe decides whether the episode goes on."""

    MALFORMED_CALL = "malformed_call"
    """The call could not be parsed, named no known tool, or had arguments that do not fit."""
    TOOL_ERROR = "tool_error"
    """The tool raised an exception or missed its deadline."""


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step.

    Attributes:
        metrics: numbers to be tracked, summed over the episode.
        fault: what went wrong through no fault of the environment.
        calls: records of the turn's tool calls, in order; shown to the user and counted by tool.
        errors: errors of the environment's own code that did not break it, such as those of tools; shown to the user and counted.
        rewards: the parts of ``reward`` that have names, shown to the user with the turn.
    """

    observation: Observation
    reward: float
    done: bool
    metrics: dict[str, float] = {}
    fault: Fault | None = None
    calls: tuple[CallRecord, ...] = ()
    errors: tuple[UsersError, ...] = ()
    rewards: dict[str, float] = {}


class Environment(ABC):
    """The environment of one episode: each episode gets an instance of its own.

    All episodes of a generator share one event loop, so no method may block it. A run names the code that blocks it, in the log
    and to the user; once the loop has been blocked for three quarters of ``deadlines.lease``, the generator is replaced.

    An exception of any kind from any method means that the environment broke: the attempt fails and no reward is recorded.
    All methods of an instance are called in one asyncio task. When an episode ends early, the running call is cancelled. It
    must let ``asyncio.CancelledError`` through within a few seconds; otherwise it is abandoned, and ``close`` is called while
    it still runs.
    """

    scores_answers: bool = False
    """Whether a turn without calls is the final answer, so that its step does nothing but compute the reward.

    Such a step takes no time of the episode: it has ``environment.episode_timeout_s`` to itself, and if it takes longer, the
    attempt fails.
    """

    provided: Provided = Provided()
    """What the worker gives this episode. It is set before the constructor runs."""

    @cached_property
    def secrets(self) -> Mapping[str, str]:
        """Values of the environment variables that ``environment.secrets`` of the recipe names."""
        return self.provided.secrets

    @cached_property
    def shared(self) -> Any:
        """What :meth:`share` yielded for all episodes of this worker. A test that needs it may set it."""
        return self.provided.shared

    @cached_property
    def workspace(self) -> Path:
        """A temporary folder of this episode, made when it is first asked for and removed after ``close``."""
        folder = self.provided.workspace
        if folder is None:  # outside a run
            folder = Path(tempfile.mkdtemp(prefix="asyncrl-"))
            weakref.finalize(self, _remove_own, folder)
            return folder
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    @classmethod
    @asynccontextmanager
    async def share(cls, **options: Any) -> AsyncIterator[Any]:
        """Set up what all episodes of a worker share, such as a database or a server; yield it, and tear it down afterwards.

        It is entered once in each worker before the first episode, within ``deadlines.start``, and left after the last, within
        a tenth of ``deadlines.shutdown``. ``options`` are those of the constructor; a parameter ``secrets`` gets the secrets.
        What it yields is used by many episodes at the same time. If it ends by itself, the worker is replaced.
        """
        yield None

    async def ready(self) -> None:
        """Wait until an episode can begin. Called once before ``reset``, and not limited by the deadline of the episode.

        An environment that stands on something shared, such as a server, waits for it here, within a deadline of its own.
        """

    @abstractmethod
    async def reset(self, task: Task) -> Observation:
        """Begin an episode of ``task``."""

    @abstractmethod
    async def step(self, action: Action) -> StepResult:
        """React to one model turn."""

    async def close(self) -> None:
        """Release what the episode held. Called exactly once, also after a failure."""

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make up to ``count`` tasks of ``split`` (``train`` or ``evaluation``).

        The result depends on the arguments only, and the two splits have no task in common. ``options`` are those of the
        constructor. Environments whose tasks come from files need not define this method.
        """
        raise NotImplementedError(f"{cls.__name__} makes no tasks of its own; set tasks.kind to `files` and name the files")


def _remove_own(folder: Path) -> None:
    """Remove the folder of an environment outside a run."""
    if (left := remove_tree(folder)) is not None:
        logger.warning("%s is left behind: %s", folder, left)
