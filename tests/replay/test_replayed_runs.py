"""A run on the real engines and on two ranks, computed again: to the bit as it was, and closely on one rank."""

import re
from pathlib import Path

import pytest
from far_run import make_experts
from whole_run import Run, small_model

from asyncrl.cli.main import main
from asyncrl.replay.comparison import TOLERANCES
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.step_log import RecordedSteps, StepLog

pytestmark = pytest.mark.timeout(1200)

STEPS = 3


def test_a_run_of_two_ranks_is_the_same_again_and_close_on_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The ranks divide the batch and the experts between them."""
    make_experts(small_model(tmp_path / "cache"), model := tmp_path / "mixture")
    two = ["learner.data_parallel=2", "learner.expert_parallel=2", "learner.dtype=float32"]
    # What answers it gets does not matter here, so that a gradient has to come from elsewhere.
    kept = ["buffer.journal.keep=100", "evaluation.every=100", "algorithm.entropy_bonus=0.1"]
    run = Run.launch(model, tmp_path, f"steps={STEPS}", *two, *kept)
    assert run.end(800) == 0, run.output
    recorded = RecordedSteps(StepLog(RunFolder(run.folder).steps).read())
    assert all(recorded[step].readings["learner/grad_norm"] > 1e-3 for step in range(1, STEPS + 1))
    assert f"Bit-equal: loss, gradient norm and weights of {STEPS} steps" in replayed(capsys, run)
    said = replayed(capsys, run, "learner.data_parallel=1", "learner.expert_parallel=1")
    assert f"{STEPS} steps: within {TOLERANCES['float32']:g} of what was recorded" in said


def replayed(capsys: pytest.CaptureFixture[str], run: Run, *overrides: str) -> str:
    assert main(["replay", str(run.folder), "--step", f"1:{STEPS}", *overrides]) == 0, capsys.readouterr()
    return " ".join(re.sub(r"[│╭╮╰╯─├┼┤]", " ", "".join(capsys.readouterr())).split())
