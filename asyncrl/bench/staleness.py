"""Compares the values of ``buffer.on_stale``, and admission control alone: staleness, lengths of trained episodes, and speed.

All are measured in the same simulation (:mod:`asyncrl.bench.simulated_pool.pool`): durations have a heavy tail, 40 % of the
groups are filtered, engines die, and environments break.
"""

from pathlib import Path
from typing import Literal

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.simulated_pool.admission_only import AdmissionOnly
from asyncrl.bench.simulated_pool.figures import Cohort, StalenessTally
from asyncrl.bench.simulated_pool.pool import Pool, Shape, Varied
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.recipe.buffer import BufferConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.simulation.episodes import simulated_tasks

STEPS, GROUPS_PER_STEP, GROUP_SIZE = 1000, 16, 4
MAX_STALENESS, PIPELINE_DEPTH = 4, 2
COHORT = 0.8
"""Groups issued after this share of the training steps do not count for lengths, as they may still be running at the end."""
SHAPE = Shape(
    engines=32,
    slots=8,
    shortest=10.0,
    longest=3600.0,
    step=20.0,
    publish=2.0,
    engine_life=24 * 3600.0,
    broken=0.002,
)


class PolicyResult(msgspec.Struct, frozen=True):
    """The figures of one value of ``on_stale``, or of admission control alone.

    Attributes:
        staleness_mean, staleness_max: staleness of the tokens in the losses, in policy versions.
        over_bound: share of the tokens in the losses that are older than the bound.
        masked: share of the trained trajectories' tokens that were left out of the loss.
        trained: share of the early groups with unequal rewards that were trained.
        length_ratio: mean length of the trained episodes of early groups over that of their issued episodes.
        learner_idle: share of the time in which the learner waited.
        hours: simulated duration of the run in hours.
    """

    staleness_mean: float
    staleness_max: int
    over_bound: float
    masked: float
    trained: float
    length_ratio: float
    learner_idle: float
    hours: float


class StalenessResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench staleness`` writes."""

    bound: int
    pipeline_depth: int
    steps: int
    admission_only: PolicyResult
    mask: PolicyResult
    wait: PolicyResult
    drop: PolicyResult


def run(json_file: Path, console: Console) -> StalenessResult:
    """Simulate each of them, and write ``json_file``."""
    console.print(f"Simulating {STEPS} training steps of each")
    result = StalenessResult(
        bound=MAX_STALENESS,
        pipeline_depth=PIPELINE_DEPTH,
        steps=STEPS,
        admission_only=_measure("mask", admission_only=True),
        mask=_measure("mask"),
        wait=_measure("wait"),
        drop=_measure("drop"),
    )
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def _measure(on_stale: Literal["mask", "wait", "drop"], *, admission_only: bool = False) -> PolicyResult:
    batch = BatchConfig(groups_per_step=GROUPS_PER_STEP, group_size=GROUP_SIZE)
    limits = BufferConfig(
        max_staleness=MAX_STALENESS,
        pipeline_depth=PIPELINE_DEPTH,
        on_stale=on_stale,
        filters=(ZeroVarianceFilterConfig(),),
        max_failures=1_000_000_000,
    )
    tasks, varied = simulated_tasks(100_000, seed=0), Varied(0.4)
    real = None if admission_only else ReplayBuffer(batch, limits, tasks, steps=STEPS, seed=0)
    tally, cohort = StalenessTally(), Cohort(SHAPE, varied)
    pool = Pool(
        real or AdmissionOnly(batch, limits, tasks),
        SHAPE,
        varied,
        (tally, cohort),
        batch=batch,
        steps=STEPS,
        renews=on_stale == "drop",
    )
    pool.run(step=int(COHORT * STEPS))
    cohort.close()
    pool.run()
    return PolicyResult(
        staleness_mean=tally.mean,
        staleness_max=tally.max,
        over_bound=tally.share_over(MAX_STALENESS),
        masked=tally.masked / (tally.masked + tally.in_loss.total()),
        trained=len(cohort.trained) / len(cohort.varied),
        length_ratio=cohort.bias,
        learner_idle=pool.learner_idle / pool.now,
        hours=pool.now / 3600,
    )


def view(result: StalenessResult) -> RenderableType:
    """The result as a table."""
    policies = (result.admission_only, result.mask, result.wait, result.drop)
    table = Table(box=box.ROUNDED, border_style="dim")
    for heading in ("", "admission only", "mask", "wait", "drop"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("staleness, mean", *(f"{policy.staleness_mean:.2f}" for policy in policies))
    table.add_row(f"staleness, max (bound {result.bound})", *(str(policy.staleness_max) for policy in policies))
    table.add_row("loss tokens over the bound", *(f"{policy.over_bound:.1%}" for policy in policies))
    table.add_row("tokens masked", *(f"{policy.masked:.1%}" for policy in policies))
    table.add_row("groups trained", *(f"{policy.trained:.1%}" for policy in policies))
    table.add_row("length trained / issued", *(f"{policy.length_ratio:.3f}" for policy in policies))
    table.add_row("learner idle", *(f"{policy.learner_idle:.0%}" for policy in policies))
    table.add_row("simulated hours", *(f"{policy.hours:.1f}" for policy in policies))
    return table
