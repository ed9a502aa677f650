"""What a process probably died or did not start of, by its log."""

from pathlib import Path

import pytest

from asyncrl.core.errors import ComponentFailed, NodeFull, NodeLost, ProcessDied, WeightsOutOfReach
from asyncrl.run.host.probable_cause import explained, probable_cause


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "did not finish in time"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", "out of GPU memory"),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "two ranks on one GPU"),
        ("what(): thread: Resource temporarily unavailable [system:11]", "no further process or thread"),
        ("RuntimeError: can't start new thread", "no further process or thread"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "a kernel failed"),
    ],
)
def test_what_a_dead_rank_died_of_is_told(tmp_path: Path, line: str, told: str) -> None:
    log = tmp_path / "learner-0.log"
    log.write_text("x" * 1000 + f"\n{line}\nterminate called\n")
    assert told in probable_cause(log)
    death = explained(ProcessDied("learner rank 0: its process died (signal 6)"), log)
    assert str(death).startswith("learner rank 0: its process died (signal 6): probably ")
    assert str(log) in str(death)


def test_nothing_is_guessed_of_a_rank_whose_log_tells_nothing(tmp_path: Path) -> None:
    death = ProcessDied("gone")
    assert explained(death, tmp_path / "missing.log") is death
    (tmp_path / "plain.log").write_text("INFO trained version 3\nzmq.error.Again: Resource temporarily unavailable\n")
    assert explained(death, tmp_path / "plain.log") is death


@pytest.mark.parametrize("failure", [NodeLost("its node is gone"), NodeFull("no room", 7), WeightsOutOfReach("no way", "a1")])
def test_an_error_that_says_itself_what_happened_stays_what_it_is(tmp_path: Path, failure: ComponentFailed) -> None:
    """What is done about it follows from its kind: a lost node counts against no limit, and a full one is avoided."""
    log = tmp_path / "generator-0.log"
    log.write_text(ENGINE_LOG)
    assert explained(failure, log) is failure


# The end of the log of a vLLM 0.19 engine that found too little memory on its GPU.
ENGINE_LOG = """\
(EngineCore pid=99) INFO 11-28 11:50:50 [core.py:101] Initializing a V1 LLM engine
(EngineCore pid=99) ERROR 11-28 11:50:51 [core.py:1510] EngineCore failed to start.
(EngineCore pid=99) ERROR 11-28 11:50:51 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=99) ERROR 11-28 11:50:51 [core.py:1510]   File "vllm/v1/worker/utils.py", line 420, in request_memory
(EngineCore pid=99) ERROR 11-28 11:50:51 [core.py:1510] ValueError: Free memory on device cuda:0 (20/79 GiB) is less than desired
(EngineCore pid=99) ERROR 11-28 11:50:51 [core.py:1510] RuntimeError: Worker failed
Process EngineCore:
"""


def test_what_an_engine_did_not_start_of_is_quoted(tmp_path: Path) -> None:
    """vLLM's own error says only that it stands in the log."""
    log = tmp_path / "generator-0.log"
    log.write_text(ENGINE_LOG)
    failure = ComponentFailed("generator-0: its vLLM engine did not start: RuntimeError: See root cause above; see its log")
    why = "ValueError: Free memory on device cuda:0 (20/79 GiB) is less than desired"
    told = explained(failure, log)
    assert type(told) is ComponentFailed
    assert str(told) == f"{str(failure).removesuffix('; see its log')}: probably {why} (see {log})"
