import io
import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from asyncrl.bench.weights import weights
from asyncrl.bench.weights.weights import ModelSettings, WeightsBenchResult, WeightsBenchSettings
from asyncrl.core.files.memory_files import memory_file_system


@pytest.mark.usefixtures("forked")
def test_every_figure_is_measured_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprints are compared on the way: a figure of weights that were not loaded would be an error."""
    for name in ("OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    model = ModelSettings(layers=1, vocabulary=4096, hidden=32, heads=4, key_value_heads=2, head_size=8, intermediate=64)
    file, console = tmp_path / "weights.json", Console(file=io.StringIO(), width=120)
    result = weights.run(file, console, WeightsBenchSettings(models=(model,), repetitions=1))
    assert msgspec.json.decode(file.read_bytes(), type=WeightsBenchResult) == result
    (measured,) = result.models
    assert measured.bytes == sum(2 * _elements(tensor.shape) for tensor in model.architecture.tensors())
    times = measured.shm
    assert times.whole == pytest.approx(times.write + times.load)
    assert 0 < times.pause < times.load
    assert 0 < measured.disk.delta_bytes < measured.disk.whole_bytes
    assert measured.met.keys() == weights.TARGETS.keys() | weights.LIMITS.keys()
    assert not list(memory_file_system().glob(f"asyncrl-bench-{os.getpid()}-*"))
    console.print(weights.view(result))


def _elements(shape: tuple[int, ...]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements
