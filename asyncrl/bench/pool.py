"""Simulates a large pool for a day: does the ledger add up, does memory stay flat, and what does a group cost?

The buffer, its policy and its ledger are the real ones, and the ledger checks itself at every operation. The staleness of every
batch is computed again from when its tokens were sampled. See :mod:`asyncrl.bench.simulated_pool.pool`.
"""

import time
from pathlib import Path

import msgspec
import psutil
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.simulated_pool.figures import StalenessTally
from asyncrl.bench.simulated_pool.pool import Pool, Shape, Varied
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.errors import LedgerError
from asyncrl.core.recipe.buffer import BufferConfig, ZeroVarianceFilterConfig
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.simulation.episodes import simulated_tasks

HOUR_S = 3600.0
EPISODES_AN_ENGINE = 32
"""Eight groups of four."""
PIPELINE_DEPTH, MAX_STALENESS = 4, 8
TASKS, STEPS = 100_000, 1_000_000


class PoolResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench pool`` writes.

    Attributes:
        groups, trajectories: how many were issued.
        groups_trained: groups that were trained, in ``steps`` training steps.
        left_out: groups that were not trained, by reason.
        core_us_per_group: CPU time per issued group in microseconds, the simulation included.
        rss_first_hour_mb, rss_last_hour_mb: resident memory of the process after the first and the last simulated hour.
        staleness_mean, staleness_max: staleness of the tokens in the losses, in policy versions.
        bound: ``max_staleness``.
        tokens_masked: share of the trained trajectories' tokens that were too old for a loss.
        seconds: duration of the benchmark.
    """

    simulated_hours: float
    engines: int
    groups: int
    trajectories: int
    steps: int
    groups_trained: int
    left_out: dict[str, int]
    core_us_per_group: float
    rss_first_hour_mb: float
    rss_last_hour_mb: float
    staleness_mean: float
    staleness_max: int
    bound: int
    tokens_masked: float
    seconds: float


def world(engines: int) -> tuple[BatchConfig, BufferConfig, Shape]:
    """The simulated pool and learner: a training step takes 180 s and trains two groups per engine, more than the pool delivers.

    Episodes take 2 minutes to 2 hours (Pareto with tail 1.2, 7.5 minutes on average), and have as many tokens as their duration
    allows. A group takes as long as the slowest of its four episodes, 18 minutes on average. An engine dies once a day, and one
    environment in a thousand breaks; :func:`run` filters 40 % of the groups.
    """
    limits = BufferConfig(
        max_staleness=MAX_STALENESS,
        pipeline_depth=PIPELINE_DEPTH,
        filters=(ZeroVarianceFilterConfig(),),
        capacity_mb=1_000_000,
        max_failures=1_000_000_000,
    )
    shape = Shape(
        engines=engines,
        slots=EPISODES_AN_ENGINE,
        shortest=120.0,
        longest=7200.0,
        step=180.0,
        publish=10.0,
        engine_life=24 * HOUR_S,
        broken=0.001,
    )
    return BatchConfig(groups_per_step=2 * engines, group_size=4), limits, shape


def run(engines: int, hours: int, json_file: Path, console: Console) -> PoolResult:
    """Simulate ``hours`` hours, report each on ``console``, and write ``json_file``.

    Raises:
        LedgerError: the ledger or the stored payload does not add up, or a token over the bound entered a loss.
    """
    batch, limits, shape = world(engines)
    buffer = ReplayBuffer(batch, limits, simulated_tasks(TASKS, seed=0), steps=STEPS, seed=0)
    tally, process = StalenessTally(), psutil.Process()
    pool = Pool(buffer, shape, Varied(0.4), (tally,), batch=batch, steps=STEPS)
    began, cpu_began = time.monotonic(), time.process_time()
    memory = []
    for hour in range(1, hours + 1):
        pool.run(until=hour * HOUR_S)
        _check(pool, buffer, tally)
        memory.append(process.memory_info().rss / 1e6)
        ledger = buffer.statistics().ledger
        console.print(f"hour {hour}: {pool.step} steps, {ledger.issued:,} groups, {memory[-1]:,.0f} MB")
    cpu_us = (time.process_time() - cpu_began) * 1e6
    ledger = buffer.statistics().ledger
    result = PoolResult(
        simulated_hours=hours,
        engines=engines,
        groups=ledger.issued,
        trajectories=ledger.trajectories.issued,
        steps=pool.step,
        groups_trained=ledger.trained,
        left_out=dict(ledger.reasons),
        core_us_per_group=cpu_us / ledger.issued,
        rss_first_hour_mb=memory[0],
        rss_last_hour_mb=memory[-1],
        staleness_mean=tally.mean,
        staleness_max=tally.max,
        bound=MAX_STALENESS,
        tokens_masked=tally.masked / (tally.masked + tally.in_loss.total()),
        seconds=time.monotonic() - began,
    )
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def _check(pool: Pool, buffer: ReplayBuffer, tally: StalenessTally) -> None:
    if tally.max > MAX_STALENESS:
        raise LedgerError(f"a token of staleness {tally.max} entered a loss, over the bound {MAX_STALENESS}; a bug in the buffer")
    needed = {ref.offset for ref in buffer.groups.live_payload()}
    if needed != pool.stored.keys():
        raise LedgerError(f"{len(pool.stored)} payloads are stored, {len(needed)} are needed; a bug in what the buffer frees")


def view(result: PoolResult) -> RenderableType:
    """The result as a table."""
    table = Table(title="Simulated pool", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("issued", f"{result.groups:,} groups, {result.trajectories:,} trajectories")
    table.add_row("trained", f"{result.groups_trained:,} groups in {result.steps:,} steps")
    table.add_row("staleness", f"{result.staleness_mean:.2f} mean, {result.staleness_max} max, bound {result.bound}")
    table.add_row("memory", f"{result.rss_first_hour_mb:,.0f} MB after one hour, {result.rss_last_hour_mb:,.0f} MB at the end")
    table.add_row("cost", f"{result.core_us_per_group:.0f} us of one core per group, simulation included")
    return table
