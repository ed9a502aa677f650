"""Where the time of a training step went, on the learner's side and on the generators', as metrics.

On each side the parts add up to the step's wall time. What no part accounts for is a part of its own: ``other`` and ``nothing``.
"""

from collections.abc import Sequence

import msgspec

from asyncrl.core.measures.metrics import Metric, Reading, Reduction
from asyncrl.run.measures.time_split import StepTimes, grown
from generators.engine_time import TimeUse
from generators.worker import GeneratorStatistics


def _part(side: str, part: str, meaning: str) -> tuple[str, Metric]:
    return part, Metric(f"time/{side}/{part}", "share", Reduction.MEAN, meaning)


LEARNER = dict(
    _part("learner", part, meaning)
    for part, meaning in {
        "waiting": "the learner waited for a batch",
        "data": "rank 0 of the last pipeline stage fetched trajectories, packed micro-batches and computed advantages",
        "forward": "that rank computed outputs and losses, under the reference and the proximal policy too",
        "backward": "that rank computed gradients and added them over ranks, or waited for other pipeline stages",
        "optimizer": "that rank computed the gradient's norm and updated the weights",
        "publish": "the learner wrote the new version, or waited until every engine had the version before",
        "checkpoint": "training waited for a checkpoint, most of which is written beside the next step",
        "other": "none of these: calls from process to process, waiting for other ranks to finish, recording, waiting for room "
        "on the disk",
    }.items()
)
"""Parts of a training step on the learner's side. An evaluation is no part: the learner never waits for one."""

GENERATORS = dict(
    _part("generators", part, meaning)
    for part, meaning in {
        "prefill": "engines computed prompts and answers of tools, in requests of training episodes",
        "decode": "engines sampled tokens of training episodes, or such requests waited for their turn",
        "evaluating": "engines served requests of an evaluation, or only its environments were at work",
        "tools": "engines had no request, because episodes were in tools and environments",
        "scoring": "engines had no request, because finished episodes waited for the reward model",
        "tickets": "engines had no request, and room for episodes, but no ticket could be had without going over the pace",
        "paused": "engines were paused to exchange weights, or had no request and asked for no ticket while weights came in",
        "nothing": "none of these; also while a generator that died has no successor yet",
    }.items()
)
"""Parts of a training step on the generators' side, as means over the generators."""


def learner_readings(times: StepTimes, seconds: float) -> list[Reading]:
    """Readings of :data:`LEARNER` for a training step that took ``seconds``."""
    parts = {
        "waiting": times.waiting,
        **msgspec.structs.asdict(times.parts),
        "publish": times.delivering + times.writing,
        "checkpoint": times.checkpointing,
    }
    return _readings(LEARNER, parts, "other", seconds)


def generator_readings(
    before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics], seconds: float
) -> list[Reading]:
    """Readings of :data:`GENERATORS` for a training step that took ``seconds``, from the counters before and after it."""
    parts = dict.fromkeys(TimeUse.__struct_fields__, 0.0)
    for then, now in zip(before, after, strict=True):
        for part in parts:
            parts[part] += getattr(now.time, part) - getattr(then.time, part)
    sampling, nothing = parts.pop("sampling"), parts.pop("nothing")
    share = _prefill_share(before, after)
    parts |= {"prefill": sampling * share, "decode": sampling * (1 - share)}
    # The counters are read some milliseconds before the step's end is taken; that must not become a part of its own.
    return _readings(GENERATORS, parts, "nothing", max(sum(parts.values()) + nothing, seconds * len(after)))


def _prefill_share(before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics]) -> float:
    """The part of the engines' sampling that computed prompts: since the step before, or since the start if that is not known."""
    for prefill, decode in (
        (grown(before, after, "prefill_seconds"), grown(before, after, "decode_seconds")),
        (sum(g.prefill_seconds for g in after), sum(g.decode_seconds for g in after)),
    ):
        if prefill + decode > 0:
            return prefill / (prefill + decode)
    return 0.0


def _readings(metrics: dict[str, Metric], parts: dict[str, float], rest: str, seconds: float) -> list[Reading]:
    whole = max(seconds, sum(parts.values()))
    parts = {**parts, rest: max(0.0, seconds - sum(parts.values()))}
    return [Reading(metric, parts[part] / whole, whole) for part, metric in metrics.items()]
