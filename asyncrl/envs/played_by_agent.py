"""What an environment is whose episodes an agent plays, in place of turns and steps."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.envs.base import Environment

AGENT_ENDS_WITHIN_S = 5.0
"""Seconds that an agent has to end by itself, once its episode is over and its requests are refused."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class AgentResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the result file.

    Attributes:
        reward: the episode's reward; None if the recipe's ``reward`` computes it, or only roles have rewards.
        rewards: rewards of roles that have one of their own.
        answer: what the recipe's ``reward`` is called with; None stands for what the agent wrote to its standard output.
        metrics: numbers to be tracked.
    """

    reward: float | bool | None = None
    rewards: dict[Name, float | bool] = {}
    answer: str | None = None
    metrics: dict[Name, float | bool] = {}


class Endpoint(msgspec.Struct, frozen=True):
    """Where an agent finds its model.

    Attributes:
        openai_url, anthropic_url: the base URLs of the two families of libraries.
        socket: a socket in a file that leads there, too, for sandboxes with a network of their own.
    """

    openai_url: str
    anthropic_url: str
    socket: str = ""


class GivenToAgent(msgspec.Struct, frozen=True):
    """What an agent is started with beside its model.

    Attributes:
        task: the content of the task's file.
        folder: the episode's folder, in which its files and its working directory are.
        variables: environment variables that the recipe sets.
        secrets: names of those whose values stand in no file.
        episode_timeout_s: the recipe's deadline of an episode.
    """

    task: bytes
    folder: str
    variables: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    episode_timeout_s: float = 300.0


class PlayedByAgent(Environment):
    """The environment of one episode that an agent plays."""

    @property
    @abstractmethod
    def spec(self) -> AgentEnvironmentConfig:
        """The recipe's section."""

    @property
    @abstractmethod
    def given(self) -> GivenToAgent:
        """What the agent is started with."""

    @abstractmethod
    async def play(self, endpoint: Endpoint, limited: "asyncio.Future[Any]", lacks_room: Callable[[], bool]) -> AgentResult:
        """Have the agent play the episode, which was reset, to its end; returns its result, without a reward if nobody gave one.

        Args:
            limited: is done if the episode reaches a limit. The agent, whose requests are then refused, has
                :data:`AGENT_ENDS_WITHIN_S` to end by itself.
            lacks_room: whether the agent's last prompt left no room for a turn. To end then is no failure, as at a limit.
        """
