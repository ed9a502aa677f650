"""What learner, engines, episodes and processor spend their time on, as shares of some training steps."""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from generators.worker import GeneratorStatistics


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds of a training step, as the learner's side spends them one after the other.

    Attributes:
        waiting: for a batch.
        training: the batch.
        delivering: waiting until every engine has the version before.
        writing: the new version's weights.
    """

    waiting: float = 0.0
    training: float = 0.0
    delivering: float = 0.0
    writing: float = 0.0


class Shares(msgspec.Struct, frozen=True):
    """Shares of time in [0, 1].

    Attributes:
        training: the learner trained.
        waiting: the learner waited for a batch.
        publishing: the learner wrote weights, or waited until every engine had the version before.
        idle: engines had nothing running or were paused; mean over the engines, as in what follows.
        paused: engines were paused to load weights.
        held_back: an engine had room for a group, and no ticket could be had.
        evaluating: an evaluation was being played.
        tools: of the time of all training episodes, what they spent outside of engines: in tools and environments. Beside an
            evaluation, whose requests count too, it comes out too small.
        cores: of the cores that the driver may use, those that were busy with anything.
        seconds: the time that these are shares of.
    """

    training: float = 0.0
    waiting: float = 0.0
    publishing: float = 0.0
    idle: float = 0.0
    paused: float = 0.0
    held_back: float = 0.0
    evaluating: float = 0.0
    tools: float = 0.0
    cores: float = 0.0
    seconds: float = 1.0

    @property
    def both_wait(self) -> float:
        """The share of time that would be saved if, with more tickets, engines generated while the learner trains.

        An engine that plays the last episode of a batch alone counts as busy, so it is rather more.
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
        """The shares of one training step of ``seconds``, from the engines' counters before and after it."""
        wall = grown(before, after, "wall_seconds")

        def of_engines(counter: str) -> float:
            return min(1.0, grown(before, after, counter) / wall) if wall > 0 else 0.0

        episodes, requests = grown(before, after, "episode_seconds"), grown(before, after, "request_seconds")
        return cls(
            training=times.training / seconds,
            waiting=times.waiting / seconds,
            publishing=(times.delivering + times.writing) / seconds,
            idle=of_engines("idle_seconds"),
            paused=of_engines("paused_seconds"),
            held_back=of_engines("held_back_seconds"),
            evaluating=of_engines("evaluating_seconds"),
            tools=max(0.0, 1 - requests / episodes) if episodes > 0 else 0.0,
            cores=cores,
            seconds=seconds,
        )

    @classmethod
    def mean(cls, several: Sequence["Shares"]) -> "Shares":
        """The shares of several training steps together; ``tools`` as far as nothing was evaluated beside them."""
        seconds = [one.seconds for one in several]
        alone = [one.seconds * max(1e-3, 1 - one.evaluating) for one in several]
        means = {
            name: fmean([getattr(one, name) for one in several], alone if name == "tools" else seconds)
            for name in cls.__struct_fields__
        }
        return cls(**means | {"seconds": sum(seconds)})


def grown(before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics], counter: str) -> float:
    """How much a counter of :class:`GeneratorStatistics` has grown between two readings, over all generators."""
    return float(sum(getattr(a, counter) - getattr(b, counter) for a, b in zip(after, before, strict=True)))
