"""The simulated pool as a benchmark: nothing grows with the hours."""

import io

import msgspec
from rich.console import Console

from asyncrl.bench import pool
from asyncrl.bench.pool import HOUR_S, PoolResult
from asyncrl.simulation.pool import Pool, Varied, simulated_tasks
from buffers.replay_buffer import ReplayBuffer


def test_memory_is_flat_and_the_result_is_written(tmp_path):
    console = Console(file=io.StringIO())
    result = pool.run(16, 12, tmp_path / "pool.json", console)
    assert msgspec.json.decode((tmp_path / "pool.json").read_bytes(), type=PoolResult) == result
    assert result.staleness_max <= result.bound
    assert result.trajectories == 4 * result.groups
    # Keeping the records of the rows that were trained in eleven hours would be over 6 MB; the heap's own noise was seen at 1.
    assert result.trajectories > 20_000
    assert result.rss_last_hour_mb - result.rss_first_hour_mb < 3
    assert "hour 12" in console.file.getvalue()
    console.print(pool.view(result))
    assert f"{result.groups:,} groups" in console.file.getvalue()


def test_the_state_of_the_buffer_does_not_grow():
    batch, limits, shape = pool.world(16)
    buffer = ReplayBuffer(batch, limits, simulated_tasks(1000, seed=0), steps=pool.STEPS, seed=0)
    engines = Pool(buffer, shape, Varied(0.4), batch=batch, steps=pool.STEPS)
    sizes = []
    for hours in (4, 8, 12, 16):
        engines.run(until=hours * HOUR_S)
        sizes.append(len(buffer.snapshot()))
    assert max(sizes) < 1.5 * sizes[0], "what is held varies with the moment, but not with the hours"
