"""The simulated pool as a benchmark: nothing grows with the hours."""

import gc
import io
import sys

import msgspec
from rich.console import Console

from asyncrl.bench import pool
from asyncrl.bench.pool import HOUR_S, PoolResult
from asyncrl.bench.simulated_pool.figures import StalenessTally
from asyncrl.bench.simulated_pool.pool import Pool, Varied
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.simulation.episodes import simulated_tasks


def test_the_result_is_written(tmp_path):
    console = Console(file=io.StringIO())
    result = pool.run(16, 12, tmp_path / "pool.json", console)
    assert msgspec.json.decode((tmp_path / "pool.json").read_bytes(), type=PoolResult) == result
    assert result.staleness_max <= result.bound
    assert result.trajectories == 4 * result.groups
    assert min(result.rss_first_hour_mb, result.rss_last_hour_mb) > 0
    assert "hour 12" in console.file.getvalue()
    console.print(pool.view(result))
    assert f"{result.groups:,} groups" in console.file.getvalue()


def test_the_state_of_the_buffer_does_not_grow():
    batch, limits, shape = pool.world(16)
    buffer = ReplayBuffer(batch, limits, simulated_tasks(1000, seed=0), steps=pool.STEPS, seed=0)
    engines = Pool(buffer, shape, Varied(0.4), (StalenessTally(),), batch=batch, steps=pool.STEPS)
    sizes, objects, issued = [], [], []
    for hours in (4, 8, 12, 16):
        engines.run(until=hours * HOUR_S)
        sizes.append(len(buffer.snapshot()))
        gc.collect()
        objects.append(sys.getallocatedblocks())
        issued.append(buffer.statistics().ledger.trajectories.issued)
    assert max(sizes) < 1.5 * sizes[0], "what is held varies with the moment, but not with the hours"
    more = issued[-1] - issued[0]
    assert more > 20_000
    assert max(objects) - objects[0] < more / 10, "nothing is kept of the trajectories of these hours"
