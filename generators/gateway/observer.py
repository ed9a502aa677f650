"""Hears of each request of the gateway: where it was placed, what it was answered, or why it was refused."""

from collections.abc import Mapping
from typing import Protocol as Interface

import msgspec

from asyncrl.core.trajectory import StartReason
from asyncrl.generators.gateway.matching import Asked
from asyncrl.generators.gateway.messages import ChatMessage
from asyncrl.generators.gateway.problems import Problem
from asyncrl.generators.gateway.protocol import Protocol


class Placed(msgspec.Struct, frozen=True, eq=False):
    """A request that has its place among the token streams of its episode.

    Attributes:
        episode: is the same for all requests of an episode.
        begins: why it begins a stream; None if it extends one.
        matched: how many of its messages, or of its tokens, are in the stream already.
        turns: how many turns the stream has.
        asked_in_vain: how often requests of the episode asked for what was replaced, not enforced or ignored.
    """

    episode: object
    protocol: Protocol
    asked: Asked
    begins: StartReason | None
    matched: int
    turns: int
    asked_in_vain: Mapping[str, int]


class Observer(Interface):
    """What hears of requests."""

    def placed(self, placed: Placed) -> None:
        """A request has its place, and is sampled next."""
        ...

    def finished(self, placed: Placed, message: ChatMessage) -> None:
        """Its turn is whole, and its client gets ``message``."""
        ...

    def refused(self, problem: Problem) -> None:
        """A request was answered with an error."""
        ...


class Silent:
    """Hears nothing."""

    def placed(self, placed: Placed) -> None:
        """Do nothing."""

    def finished(self, placed: Placed, message: ChatMessage) -> None:
        """Do nothing."""

    def refused(self, problem: Problem) -> None:
        """Do nothing."""
