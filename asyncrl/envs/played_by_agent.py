"""What an environment is whose episodes an agent plays, in place of turns and steps."""

import asyncio
from abc import abstractmethod
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

    reward: float | None = None
    rewards: dict[Name, float] = {}
    answer: str | None = None
    metrics: dict[Name, float] = {}


class Endpoint(msgspec.Struct, frozen=True):
    """Where an agent finds its model: the base URLs of the two families of libraries."""

    openai_url: str
    anthropic_url: str


class PlayedByAgent(Environment):
    """The environment of one episode that an agent plays."""

    @property
    @abstractmethod
    def spec(self) -> AgentEnvironmentConfig:
        """The recipe's section."""

    @abstractmethod
    async def play(self, endpoint: Endpoint, limited: "asyncio.Future[Any]") -> AgentResult:
        """Have the agent play the episode, which was reset, to its end; returns its result, without a reward if nobody gave one.

        Args:
            limited: is done if the episode reaches a limit. The agent, whose requests are then refused, has
                :data:`AGENT_ENDS_WITHIN_S` to end by itself.
        """
