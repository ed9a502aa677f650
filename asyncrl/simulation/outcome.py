"""What a modelled run says, in the terms of a real one: where its time went, what was made, and how stale it was."""

from collections import Counter

import msgspec
import numpy as np

from asyncrl.core.batch import Batch
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.measures.time_split import TimeSplit


class Outcome(msgspec.Struct, kw_only=True):
    """The training steps of a modelled run that count: neither its first ones nor, near its end, those without new tickets.

    Attributes:
        steps: how many they are.
        time: where their time went.
        depth: the pipeline depth at their end.
        staleness: trained tokens by staleness, in policy versions.
        masked: sampled tokens of trained episodes that were too old for a loss.
        expired, issued: groups that were given up because they were too old, and groups that were issued.
        issued_episodes, issued_tokens: the episodes that were issued, and their tokens.
        trained_episodes, trained_tokens: the episodes that were trained, and their tokens.
        step_s: seconds of each training step.
        most_requests: the most requests that an engine sampled at once.
        rank_tokens: tokens of the rank with the most, in the largest batch.
        preempted: requests that were computed again because the cache was full.
        start_s: seconds from launch to the first training step's beginning.
        scale: how many times as large the run is that this one stands for.
    """

    steps: int = 0
    time: TimeSplit = TimeSplit()
    depth: int = 0
    staleness: Counter[int] = msgspec.field(default_factory=Counter)
    masked: int = 0
    expired: int = 0
    issued: int = 0
    issued_tokens: int = 0
    trained_tokens: int = 0
    issued_episodes: int = 0
    trained_episodes: int = 0
    step_s: list[float] = []
    most_requests: int = 0
    rank_tokens: int = 0
    preempted: int = 0
    start_s: float = 0.0
    scale: float = 1

    def add(self, batch: Batch, time: TimeSplit) -> None:
        """Count a training step."""
        self.steps += 1
        self.time += time
        self.step_s.append(time.seconds)
        self.trained_tokens += time.trained_tokens
        self.trained_episodes += time.trajectories
        for row in batch.rows:
            for version, tokens in row.sampled:
                if version >= batch.oldest_version:
                    self.staleness[batch.version - version] += tokens
                else:
                    self.masked += tokens

    @property
    def trajectories_per_s(self) -> float:
        """Episodes trained a second."""
        return self.scale * self.time.trajectories_per_s

    @property
    def trained_tokens_per_s(self) -> float:
        """Tokens of the batches a second."""
        return self.scale * self.time.trained_per_s

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the tokens in the losses."""
        total = self.staleness.total()
        return sum(age * tokens for age, tokens in self.staleness.items()) / total if total else 0.0

    @property
    def staleness_max(self) -> int:
        """The largest staleness of a token in a loss."""
        return max(self.staleness, default=0)

    @property
    def masked_share(self) -> float:
        """Share of the sampled tokens of trained episodes that were too old."""
        return self.masked / max(1, self.masked + self.staleness.total())

    @property
    def expired_share(self) -> float:
        """Share of the issued groups that were given up because they were too old."""
        return self.expired / max(1, self.issued)

    @property
    def length_bias(self) -> float:
        """Mean length of trained episodes over that of issued ones: below 1 where long episodes are lost."""
        trained = self.trained_tokens / max(1, self.trained_episodes)
        return trained / (self.issued_tokens / self.issued_episodes) if self.issued_tokens else 1.0

    @property
    def step_mean(self) -> float:
        """Seconds of a training step on average."""
        return float(np.mean(self.step_s)) if self.step_s else 0.0


MOST_DEATHS = 100
"""Deaths of each engine, on average, without a training step after which a modelled run is given up."""


class EnginesDieTooSoon(AsyncRLError):
    """In a modelled run engines die before their episodes are over, again and again, so that it would never end."""

    def __init__(self, step: int, deaths: int, life: float) -> None:
        super().__init__(
            f"training step {step} of the modelled run does not come: engines live {life:g} s on average "
            f"(failures.engine_life), and {deaths:,} of them died since the step before; raise it, or leave it out"
        )


class ModelStandsStill(AsyncRLError):
    """Nothing is left to happen in a modelled run, though it is not over."""

    def __init__(self, step: int, now: float) -> None:
        super().__init__(
            f"the modelled run stands still at step {step}, {now:g} s after its start; a launch may too: look at "
            "`asyncrl launch RECIPE --dry-run`, and report it with the recipe"
        )
