"""Why the process that compares answers did not begin is said, and not guessed."""

from pathlib import Path

import pytest

from asyncrl.core.ids import TaskId
from asyncrl.core.task import Task
from asyncrl.envs.hosting import tool_processes
from asyncrl.envs.hosting.tool_messages import Load
from asyncrl.envs.rewards import MathEquivalence, RewardUnavailable, math_reward

TASK = Task(id=TaskId("t"), prompt="?", data={"answer": "1/2"})


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import no_such_module", r"raised ModuleNotFoundError: No module named 'no_such_module'.*; see whether `.*`"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "was killed by signal 9; .*, and free memory if it was killed",
        ),
        ("import os; os._exit(0)", "exited with code 0; .*see whether `.* -c 'import math_verify'` works"),
    ],
)
async def test_a_process_that_ends_at_once_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    (tmp_path / "ends_at_once.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(math_reward, "COMPARING", Load("ends_at_once", "Comparing"))
    with pytest.raises(RewardUnavailable, match=f"the process that compares answers did not start: .*{told}"):
        await MathEquivalence()(TASK, "0.5")


async def test_a_process_that_does_not_begin_in_time_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_processes, "START_S", 1e-3)
    with pytest.raises(RewardUnavailable, match=r"importing it takes longer than 0\.001 s.*; see whether"):
        await MathEquivalence()(TASK, "0.5")
