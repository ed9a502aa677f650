"""A run with a teacher and adapters on the real engines, killed on the way, and computed again."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from judging_models import make_teacher
from test_resume import check_whole
from transformers import AutoModelForCausalLM
from whole_run import Run

from asyncrl.cli.main import main
from asyncrl.replay.kept_steps import KeptSteps
from asyncrl.replay.rank_process import episodes_of
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.step_log import RecordedSteps, StepLog

pytestmark = pytest.mark.timeout(1500)

STEPS = 6


def steps_of(folder: Path) -> RecordedSteps:
    return RecordedSteps(StepLog(RunFolder(folder).steps).read())


def test_a_taught_run_goes_on_after_a_kill_and_is_replayed_to_the_bit(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    teacher = make_teacher(tmp_path / "teacher", tiny_model)
    taught = f"+algorithm.teacher={{path: {teacher}, dtype: float32, engines: 1}}"
    kept = ["checkpoint.every=2", "buffer.journal.keep=100", "evaluation.every=100", "learner.lora={rank: 4}"]
    run = Run.launch(tiny_model, tmp_path, f"steps={STEPS}", taught, *kept)
    run.wait_for(lambda: bool([*tmp_path.glob("quickstart-*")]) and steps_of(run.folder).last >= 3, 600, "three steps")
    run.kill()
    begun = steps_of(run.folder).last
    resumed = Run.resume(run.folder, "algorithm.teacher.engines=2")
    assert resumed.end(600) == 0, resumed.output
    check_whole(resumed, run.folder, STEPS, resumes=1)
    recorded = steps_of(run.folder)
    assert recorded.last == STEPS > begun
    for step in range(1, STEPS + 1):
        record = recorded[step]
        assert record is not None
        assert record.readings["teacher/reverse_kl"] > 0.5, "a random teacher is far from the policy"
    _log_probabilities_are_the_teachers(KeptSteps.of(RunFolder(run.folder)), teacher)
    assert main(["replay", str(run.folder), "--step", f"1:{STEPS}"]) == 0
    said = " ".join(re.sub(r"[│╭╮╰╯─├┼┤]", " ", "".join(capsys.readouterr())).split())
    assert f"Bit-equal: loss, gradient norm and weights of {STEPS} steps are those recorded" in said


def _log_probabilities_are_the_teachers(kept: KeptSteps, teacher: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(teacher)
    assert len(kept.batches) == STEPS
    for batch in kept.batches.values():
        episodes = episodes_of(batch, [row.name for row in batch.rows][:3], kept.payload)
        for episode in episodes.values():
            (trajectory,) = episode.trajectories
            ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
            with torch.no_grad():
                of_all = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
            expected = of_all[trajectory.loss_mask[1:]]
            assert trajectory.teacher_logprobs == pytest.approx(expected, abs=1e-3)
