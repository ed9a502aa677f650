from types import SimpleNamespace

import msgspec
from rich.console import Console

from asyncrl.bench.buffer import buffer, buffer_memory
from asyncrl.bench.buffer.buffer import BenchSettings, BufferResult


def test_a_small_benchmark_goes_all_the_way_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # How much of this process is in memory is the system's affair: it may page something out meanwhile. The files are counted.
    resident = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=1 << 30))
    monkeypatch.setattr(buffer_memory, "psutil", SimpleNamespace(Process=lambda: resident))
    settings = BenchSettings(
        tokens=64,
        groups_per_step=4,
        group_size=2,
        warm_up=2,
        steps=21,
        latency_steps=3,
        core_outstanding=100,
        core_steps=5,
        held_groups=16,
    )
    file = tmp_path / "buffer.json"
    result = buffer.run(file, Console(quiet=True), settings)
    assert msgspec.json.decode(file.read_bytes(), type=BufferResult) == result
    assert result.journal_off.trajectories_per_s > 0
    assert result.journal_on.trajectories_per_s > 0
    assert result.latency_p50_ms <= result.latency_p99_ms
    assert result.held_per_payload_byte.at_first > 1
    assert result.held_per_payload_byte.refilled > 1
    assert result.core_us_per_trajectory > 0
    assert list(tmp_path.iterdir()) == [file]
