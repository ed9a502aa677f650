"""Why the process that compares answers did not begin is said, and not guessed."""

from pathlib import Path

import pytest

from asyncrl.envs.rewards import MathEquivalence, RewardUnavailable, math_reward


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import no_such_module", r"status 1 \(ModuleNotFoundError: No module named 'no_such_module'\); see whether `.*`"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            r"status -9 \(without a word\); .*, and free memory if it was killed",
        ),
        ("print(end='')", r"status 0 \(without a word\); see whether `.* -c 'import math_verify'` works"),
    ],
)
async def test_a_process_that_ends_at_once_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    (tmp_path / "ends_at_once.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(math_reward.math_comparison, "__name__", "ends_at_once")
    with pytest.raises(RewardUnavailable, match=f"the process that compares answers ended with exit {told}"):
        await MathEquivalence()._start()


async def test_a_process_that_does_not_begin_in_time_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_reward, "START_S", 1e-3)
    with pytest.raises(RewardUnavailable, match=r"did not start in 0\.001 s; free memory for it"):
        await MathEquivalence()._start()
