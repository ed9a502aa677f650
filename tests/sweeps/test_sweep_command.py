"""The command ``asyncrl sweep``: what it refuses before anything starts, and what a dry run shows."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_sweep import made_sweep

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_every_setting_is_checked_before_any_starts(tmp_path, capsys):
    depths = ["buffer.max_staleness=1,8", "buffer.pipeline_depth=1,4,9"]
    assert main(["sweep", "quickstart", *depths]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "Checking 6 of 6: max_staleness=8 pipeline_depth=9" in told
    refused = told.partition("Refused, nothing was started:")[2]
    for setting in ("max_staleness=1 pipeline_depth=4", "max_staleness=1 pipeline_depth=9", "max_staleness=8 pipeline_depth=9"):
        assert f"with {setting}" in refused
    assert "max_staleness=8 pipeline_depth=1" not in refused
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_lists_the_runs_and_starts_nothing(tmp_path, capsys):
    assert main(["sweep", "quickstart", "buffer.max_staleness=0,2", "steps=4", "--seeds", "2", "--dry-run"]) == ExitCode.COMPLETED
    shown, said = capsys.readouterr()
    assert shown.count("max_staleness=0 ") + shown.count("max_staleness=2 ") >= 4
    assert said.endswith("The sweep can be run; nothing was started.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["quickstart"], "there is only one run"),
        (["quickstart", "steps=1,2", "seed=0,1", "--seeds", "2"], "its values are given, and --seeds too"),
        (["quickstart", "steps=1,2", "--rates", "h100"], "give --plan, too"),
        (["--resume", "runs/no", "--seeds", "2"], "only --parallel may be given with it"),
        (["--resume", "runs/no"], "it has no sweep.json"),
        (["steps=1,2"], "give a RECIPE first"),
        (["nosuch", "steps=1,2"], "no recipe named 'nosuch' is shipped"),
        (["quickstart", "steps=4,5", "--plan", "--from", "runs/no", "--dry-run"], "is not a run folder"),
        (["quickstart", "steps=4,5", "--parallel", "999", "--dry-run"], "999 runs side by side take about"),
        (
            ["quickstart", "steps=4,5", "run_dir=s3://nosuch/x"],
            "nothing was started:\n  run_dir: 's3://nosuch/x' is in an object store",
        ),
    ],
)
def test_what_is_no_sweep_is_refused(words, told, capsys):
    try:
        code = main(["sweep", *words])
    except SystemExit as end:
        code = end.code
    assert code == ExitCode.REFUSED
    assert told in capsys.readouterr().err


def test_gpus_are_divided_among_those_side_by_side(monkeypatch):
    from asyncrl.core.errors import RecipeError
    from asyncrl.sweeps import prepared

    monkeypatch.setattr(prepared, "usable", lambda: 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert prepared.devices(1) == [None]
    assert prepared.devices(2) == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, 6,5,4,3")
    assert prepared.devices(5) == ["7", "6", "5", "4", "3"]
    with pytest.raises(RecipeError, match="5 GPUs for 6 runs side by side"):
        prepared.devices(6)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert prepared.devices(6) == [None] * 6


SCRIPT = """
import sys
from asyncrl.cli.main import run
from asyncrl.cli.sweeps import sweep
sweep._launch_command = lambda arguments: [sys.executable, "-S", {stand_in!r}, {place!r}, *arguments]
sys.argv = ["asyncrl", "sweep", "--resume", {folder!r}, "--parallel", "2"]
run()
"""


def test_an_interrupt_ends_the_running_points_in_order_and_begins_no_other(tmp_path):
    sweep = made_sweep(launched_in=str(tmp_path))
    folder = SweepFolder.create(str(tmp_path), sweep, {point.name: "name: made\n" for point in sweep.points})
    (tmp_path / "script.json").write_text(json.dumps({"0.0": ["wait"], "1.0": ["wait", "complete"]}))
    (tmp_path / "calls.jsonl").touch()
    script = SCRIPT.format(stand_in=str(Path(__file__).with_name("stand_in.py")), place=str(tmp_path), folder=str(folder.path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while len(list(folder.path.glob("*/begun"))) < 2:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, told
    assert "Stopping the running points in order" in told
    assert told.count("interrupted: stopped by SIGINT") == 2
    assert "Go on with: asyncrl sweep --resume" in told
    states = [folder.state_of(point)[0] for point in sweep.points]
    assert states == [PointState.INTERRUPTED, PointState.INTERRUPTED, PointState.MISSING, PointState.MISSING]
