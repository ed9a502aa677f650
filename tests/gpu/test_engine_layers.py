"""TransformerEngine's own Python, with stand-ins for its C functions, gives what the plain layers give, in every layout."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_side import CASES
from fetched_wheels import unpacked_wheel

WHEEL = "transformer-engine==2.11.0"
"""Pure Python; it is read from the cache and never installed."""
SIDE = Path(__file__).with_name("engine_side.py")
DENSE = {"rmsnorm_fwd", "rmsnorm_bwd", "generic_gemm", "fused_rope_forward", "fused_rope_backward", "attention"}
DIVIDED = {"rmsnorm_fwd", "rmsnorm_bwd", "generic_gemm", "fused_attn_fwd", "fused_attn_bwd", "thd_read_half_tensor"} | {
    *("thd_read_second_half_lse", "thd_second_half_lse_correction", "thd_out_correction", "thd_grad_correction")
}
CALLED = dict.fromkeys(CASES, DENSE) | {
    "experts": DENSE | {"te_general_grouped_gemm"},
    "ep2": DENSE | {"te_general_grouped_gemm"},
    "cp4": DIVIDED,
    "tp2-cp2": DIVIDED,
    "bfloat16-cp2": DIVIDED | {"get_fused_attn_backend"},
    "prefixes": {"rmsnorm_fwd", "rmsnorm_bwd", "generic_gemm", "continue_prefixes"},
    "bfloat16": DENSE - {"attention"} | {"get_fused_attn_backend", "fused_attn_fwd", "fused_attn_bwd"},
}
"""What of TransformerEngine each case has to go through, or else it shows nothing."""
TOLERANCES = {"bfloat16": 2e-2, "bfloat16-cp2": 2e-2}
"""Relative; both kinds of layers round at other places."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What came of all cases with each kind of layers. Both train at once, because each loads checkpoints of the other."""
    wheel = unpacked_wheel(WHEEL)
    folder = tmp_path_factory.mktemp("engine")
    paths = os.pathsep.join([str(SIDE.parent), str(SIDE.parents[2]), os.environ.get("PYTHONPATH", "")])
    running = {
        kind: subprocess.Popen(
            [sys.executable, SIDE, folder, *arguments],
            stdout=subprocess.PIPE,
            stderr=(folder / kind).open("w"),
            text=True,
            env=os.environ | {"PYTHONPATH": paths},
        )
        for kind, arguments in {"plain": [], "engine": [wheel]}.items()
    }
    try:
        printed = {kind: process.communicate(timeout=400)[0] for kind, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    for kind, process in running.items():
        assert process.returncode == 0, (folder / kind).read_text()[-4000:]
    return {kind: json.loads(lines.splitlines()[-1]) for kind, lines in printed.items()}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("name", CASES)
def test_transformer_engine_s_layers_train_as_the_plain_ones(found: dict[str, dict[str, Any]], name: str) -> None:
    plain, engine = (found[kind][name] for kind in ("plain", "engine"))
    assert len(engine["steps"]) == (4 if CASES[name].exchanged else 2)
    for ours, expected in zip(engine["steps"], plain["steps"], strict=True):
        assert ours == pytest.approx(expected, rel=TOLERANCES.get(name, 1e-5))
    assert set(engine["calls"]) >= CALLED[name]
    assert not plain["calls"]


def test_ranks_that_divide_rows_train_as_one(found: dict[str, dict[str, Any]]) -> None:
    for divided, expected in zip(found["engine"]["cp4"]["steps"], found["plain"]["tied"]["steps"], strict=False):
        assert divided == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.exchanged])
def test_checkpoints_go_from_one_kind_of_layers_to_the_other(found: dict[str, dict[str, Any]], name: str) -> None:
    """The step after the checkpoint is the same from one's own state as from the other's file."""
    for kind in ("plain", "engine"):
        *_, before, after = found[kind][name]["steps"]
        assert after == pytest.approx(before, rel=1e-5)
