import io

import msgspec
import pytest
from rich.console import Console

from asyncrl.bench import learner, learner_steps
from asyncrl.bench.learner import LearnerBenchResult, LearnerBenchSettings, LogprobSettings
from asyncrl.bench.learner_steps import GROUP_SIZE, StepSettings


@pytest.fixture
def tiny(monkeypatch):
    """Environment variables that the benchmark sets for its processes are taken back."""
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    shape = {"median_tokens": 24, "rows": GROUP_SIZE, "rows_at_once": 4, "repetitions": 1}
    return LearnerBenchSettings(
        padding_free=StepSettings(sigma=0.0, **shape),
        lognormal=StepSettings(sigma=1.0, **shape),
        logprob=LogprobSettings(tokens=2048, vocabulary=4096, hidden=32, repetitions=1),
    )


def test_both_loops_take_the_same_gradient_and_the_result_is_written(tiny, tmp_path):
    console = Console(file=io.StringIO(), width=120)
    result = learner.run(tmp_path / "learner.json", console, tiny)
    assert msgspec.json.decode((tmp_path / "learner.json").read_bytes(), type=LearnerBenchResult) == result
    for speed in (result.padding_free, result.lognormal):
        assert speed.gradient_difference < learner_steps.SAME_GRADIENT
        assert speed.learner_tokens_per_s > 0
        assert speed.plain_tokens_per_s > 0
    assert result.padding_free.tokens == GROUP_SIZE * 24
    assert result.padding_free.padding == 0
    assert 0 < result.lognormal.padding < 1
    assert result.logprob_megabytes < result.full_logits_megabytes
    console.print(learner.view(result))
    assert "rows of one length" in console.file.getvalue()
