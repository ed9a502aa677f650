"""What the learner, engines, episodes and processor spend their time on, as shares of one or more training steps."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from generators.worker import GeneratorStatistics
from learners.step_clock import PartSeconds


class StepTimes(msgspec.Struct, frozen=True):
    """What the learner's side spends a training step on, one after the other, in seconds.

    Attributes:
        waiting: waiting for a batch.
        training: training the batch.
        delivering: waiting until every engine has the version before.
        writing: writing the new version's weights.
        checkpointing: waiting for checkpoints.
        parts: the parts of ``training``, by the rank that reports.
    """

    waiting: float = 0.0
    training: float = 0.0
    delivering: float = 0.0
    writing: float = 0.0
    checkpointing: float = 0.0
    parts: PartSeconds = PartSeconds()


class Shares(msgspec.Struct, frozen=True):
    """Shares of time in [0, 1].

    Attributes:
        training: the learner trained.
        waiting: the learner waited for a batch.
        publishing: the learner wrote weights, or waited until every engine had the version before.
        delivering: the part of ``publishing`` in which the learner waited until every engine had the version before.
        optimizer: the part of ``training`` in which the weights were updated, which takes the same time for any batch.
        idle: engines had nothing running or were paused; a mean over the engines, as are the next three.
        paused: engines were paused to load weights.
        held_back: engines had room for a group, but got no ticket.
        evaluating: an evaluation was being played.
        tools: share of the training episodes' time that they spent outside engines, in tools and environments. Too
            small while an evaluation is played, because the evaluation's requests count too.
        scoring: share of the training episodes' time, the wait for a score included, that they waited for their score.
        cores: share of the cores that the driver may use that were busy with anything.
        seconds: the time that these are shares of.
    """

    training: float = 0.0
    waiting: float = 0.0
    publishing: float = 0.0
    delivering: float = 0.0
    optimizer: float = 0.0
    idle: float = 0.0
    paused: float = 0.0
    held_back: float = 0.0
    evaluating: float = 0.0
    tools: float = 0.0
    scoring: float = 0.0
    cores: float = 0.0
    seconds: float = 1.0

    @property
    def both_wait(self) -> float:
        """The share of time that would be saved if, with more tickets, engines generated while the learner trains.

        An engine that plays only the last episode of a batch counts as busy, so the true share is larger.
        """
        return max(0.0, min(self.waiting, self.idle - self.paused, self.held_back))

    @classmethod
    def of_step(
        cls,
        times: StepTimes,
        seconds: float,
        before: Sequence[GeneratorStatistics],
        after: Sequence[GeneratorStatistics],
        cores: float,
    ) -> "Shares":
        """Compute the shares of one training step of ``seconds``, from the engines' counters before and after it."""
        wall = grown(before, after, "wall_seconds")

        def of_engines(counter: str) -> float:
            return min(1.0, grown(before, after, counter) / wall) if wall > 0 else 0.0

        episodes, requests = grown(before, after, "episode_seconds"), grown(before, after, "request_seconds")
        scoring = grown([one.scoring for one in before], [one.scoring for one in after], "seconds")
        return cls(
            training=times.training / seconds,
            waiting=times.waiting / seconds,
            publishing=(times.delivering + times.writing) / seconds,
            delivering=times.delivering / seconds,
            optimizer=times.parts.optimizer / seconds,
            idle=of_engines("idle_seconds"),
            paused=of_engines("paused_seconds"),
            held_back=of_engines("held_back_seconds"),
            evaluating=of_engines("evaluating_seconds"),
            tools=max(0.0, 1 - requests / episodes) if episodes > 0 else 0.0,
            scoring=scoring / (episodes + scoring) if scoring > 0 else 0.0,
            cores=cores,
            seconds=seconds,
        )

    @classmethod
    def mean(cls, several: Sequence["Shares"]) -> "Shares":
        """Average several training steps by their length; for ``tools``, only the time without an evaluation counts."""
        seconds = [one.seconds for one in several]
        alone = [one.seconds * max(1e-3, 1 - one.evaluating) for one in several]
        means = {
            name: fmean([getattr(one, name) for one in several], alone if name == "tools" else seconds)
            for name in cls.__struct_fields__
        }
        return cls(**means | {"seconds": sum(seconds)})


def aligned(before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics]) -> list[GeneratorStatistics]:
    """Return ``before`` with counters of 0 for the generators that came since, which are the last ones in ``after``."""
    return [*before, *[GeneratorStatistics()] * (len(after) - len(before))]


def grown(before: Sequence[msgspec.Struct], after: Sequence[msgspec.Struct], counter: str) -> float:
    """Sum over all generators of how much a counter grew between two readings."""
    return float(sum(getattr(a, counter) - getattr(b, counter) for a, b in zip(after, before, strict=True)))
