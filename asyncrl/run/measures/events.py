"""What happens in a run, as typed events: for whoever watches it, from Python, from another terminal or afterwards.

What always holds: each event says when it happened; figures that are not finite are left out of ``metrics``.
"""

import math
from collections.abc import Mapping

import msgspec

from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.summary import Status


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened in a run.

    Attributes:
        at: when, in seconds since 1970.
    """

    at: float = 0.0


class PhaseBegun(Event, frozen=True):
    """A phase began, e.g. ``Starting 2 generators``."""

    text: str


class PhaseAdvanced(Event, frozen=True):
    """The present phase has come this far, in [0, 1]."""

    fraction: float
    text: str


class NoteSaid(Event, frozen=True):
    """A line that the live view shows; ``level`` is one of :mod:`logging`."""

    text: str
    level: int


class StepDone(Event, frozen=True):
    """A training step was done.

    Attributes:
        progress: the run's state after it, as the live view shows it.
        metrics: all of the step, by name; see docs/reference/metrics.md.
    """

    progress: RunProgress
    metrics: dict[str, float] = {}

    @property
    def step(self) -> int:
        """The step's number."""
        return self.progress.step

    @property
    def reward(self) -> float:
        """Mean final reward of its batch."""
        return self.progress.reward


class EvaluationDone(Event, frozen=True):
    """An evaluation ended.

    Attributes:
        version: the policy version that it stands for.
        reward: its mean reward.
        metrics: all of it, by name.
    """

    version: int
    reward: float
    metrics: dict[str, float] = {}


class VersionPublished(Event, frozen=True):
    """All engines have acknowledged a policy version; its delivery took ``seconds``."""

    version: int
    seconds: float


class WarningSeen(Event, frozen=True):
    """Something was seen that a person should look at; ``key`` is the same for the same finding, which comes once a run."""

    key: str
    sentence: str


class RunEnded(Event, frozen=True):
    """The run ended; ``reason`` says why, if it did not complete, and ``steps`` how many training steps are done."""

    status: Status
    reason: str = ""
    steps: int = 0


RunEvent = PhaseBegun | PhaseAdvanced | NoteSaid | StepDone | EvaluationDone | VersionPublished | WarningSeen | RunEnded


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values that are finite, which JSON can hold."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
