import io

import msgspec
import pytest
from rich.console import Console

from asyncrl.bench.learner import learner, learner_prefixes, learner_steps
from asyncrl.bench.learner.learner import LearnerBenchResult, LearnerBenchSettings, LogprobSettings
from asyncrl.bench.learner.learner_prefixes import PrefixSettings
from asyncrl.bench.learner.learner_steps import StepSettings
from asyncrl.bench.learner.learner_subject import GROUP_SIZE


@pytest.fixture
def tiny(monkeypatch):
    """Environment variables that the benchmark sets for its processes are taken back."""
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    prefix = PrefixSettings(groups=2, prompt=40, median_suffix=12, micro_batch_tokens=256, repetitions=1)
    shape = {"median_tokens": 24, "rows": GROUP_SIZE, "rows_at_once": 4, "repetitions": 1}
    return LearnerBenchSettings(
        padding_free=StepSettings(sigma=0.0, **shape),
        lognormal=StepSettings(sigma=1.0, **shape),
        shared_prefix=prefix,
        shared_prefix_deep=msgspec.structs.replace(prefix, layers=6),
        logprob=LogprobSettings(tokens=2048, vocabulary=4096, hidden=32, repetitions=1),
    )


@pytest.mark.usefixtures("forked")
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
    for shared in (result.shared_prefix, result.shared_prefix_deep):
        assert shared.gradient_difference < learner_prefixes.SAME_GRADIENT
        saved = 2 * (GROUP_SIZE - 1) * 39
        separate = shared.tokens - 2 * GROUP_SIZE  # nothing is predicted from the last token of a row
        assert shared.token_ratio == pytest.approx(separate / (separate - saved))
        assert shared.computed_tokens_per_s / shared.tokens_per_s == pytest.approx((separate - saved) / shared.tokens)
    assert result.ratio_shared_prefix == result.shared_prefix.ratio > 0
    assert result.ratio_shared_prefix_deep == result.shared_prefix_deep.ratio > 0
    assert result.logprob_megabytes < result.full_logits_megabytes
    console.print(learner.view(result))
    assert "rows of one length" in console.file.getvalue()
