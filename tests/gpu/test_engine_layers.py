"""TransformerEngine's own Python, with stand-ins for its C functions, gives what the plain layers give."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fetched_wheels import unpacked_wheel

WHEEL = "transformer-engine==2.11.0"
"""Pure Python; it is read from the cache and never installed."""
SIDE = Path(__file__).with_name("engine_side.py")


def trained(folder: Path, *wheel: Path) -> list[dict[str, object]]:
    """What came of a model with tied embeddings, and of one without."""
    folder.mkdir()
    paths = os.pathsep.join([str(SIDE.parent), str(SIDE.parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, SIDE, folder, *wheel]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ | {"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
def test_transformer_engine_s_layers_train_as_the_plain_ones(tmp_path: Path) -> None:
    wheel = unpacked_wheel(WHEEL)
    for plain, engine in zip(trained(tmp_path / "plain"), trained(tmp_path / "engine", wheel), strict=True):
        for found, expected in zip(engine["steps"], plain["steps"], strict=True):
            assert found == pytest.approx(expected, rel=1e-5)
        assert set(engine["calls"]) >= {
            "rmsnorm_fwd",
            "rmsnorm_bwd",
            "generic_gemm",
            "fused_rope_forward",
            "fused_rope_backward",
            "attention",
        }
        assert not plain["calls"]
