"""What each of several pools of generators did in a training step, as metrics."""

from collections.abc import Iterator, Sequence

from asyncrl.core.measures.metrics import Reading
from asyncrl.run.measures import metrics
from asyncrl.run.measures.time_split import grown
from generators.worker import GeneratorStatistics


def pool_readings(
    pools: Sequence[str], before: Sequence[GeneratorStatistics], after: Sequence[GeneratorStatistics], seconds: float
) -> Iterator[Reading]:
    """Yield readings of each pool that trains; none if there is only one, because those of all generators say the same.

    Args:
        pools: the pool of each generator.
        before, after: the counters of each generator before and after the step.
        seconds: how long the step took.
    """
    names = sorted(set(pools))
    for name in names if len(names) > 1 else ():
        own = [(was, now) for pool, was, now in zip(pools, before, after, strict=False) if pool == name]
        was, now = [pair[0] for pair in own], [pair[1] for pair in own]
        yield Reading(metrics.generated_by(name), grown(was, now, "tokens_generated") / seconds)
        if (wall := grown(was, now, "wall_seconds")) > 0:
            yield Reading(metrics.idle_of(name), min(1.0, grown(was, now, "idle_seconds") / wall))
