"""An evaluation on the real engines that a signal ends. Nothing may be left behind."""

import signal
from pathlib import Path

import pytest
from unhindered import Unhindered
from whole_run import ASYNCRL, Run

from asyncrl.run.evaluation.summary import EvaluationSummary
from asyncrl.run.measures.summary import Status

pytestmark = pytest.mark.timeout(900)


def test_ctrl_c_ends_an_evaluation_in_time(tiny_model: Path, tmp_path: Path):
    small = (f"run_dir={tmp_path}", "tasks.evaluation=2000", "generators.count=1")
    run = Run(tmp_path, *ASYNCRL, "evaluate", str(tiny_model), "quickstart", *small)
    run.wait_for(lambda: "Playing" in run.output, 500, "episodes to be played")
    run.process.send_signal(signal.SIGINT)
    ending = Unhindered()
    assert run.end(200) == 130, run.output
    assert ending.seconds < 15
    (scores,) = tmp_path.glob("evaluation-*/evaluation.json")
    summary = EvaluationSummary.read(scores)
    assert (summary.status, summary.reason, summary.models) == (Status.INTERRUPTED, "stopped by SIGINT", ())
    assert run.left_behind() == []
