"""The command ``asyncrl sweep``: what it refuses before anything starts, and what a dry run shows."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from made_predictions import made_prediction
from made_sweep import made_sweep

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import AsyncRLError
from asyncrl.sweeps import prepared
from asyncrl.sweeps.sweep import RunSize
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
        (["name=" + 300 * "x"], "give a RECIPE first"),
        (["nosuch", "steps=1,2"], "no recipe named 'nosuch' is shipped"),
        (["quickstart", "steps=4,5", "--plan", "--from", "runs/no", "--dry-run"], "is not a run folder"),
        (["quickstart", "steps=4,5", "--seeds", "400", "--parallel", "999", "--dry-run"], "800 runs side by side take about"),
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


def test_no_more_run_side_by_side_than_there_are_runs(capsys):
    assert main(["sweep", "quickstart", "steps=4,5", "--parallel", "40", "--dry-run"]) == ExitCode.COMPLETED
    assert "2 runs side by side share the processor cores" in capsys.readouterr().out


def test_a_resume_is_refused_more_runs_side_by_side_than_there_is_room_for(tmp_path, capsys):
    sweep = made_sweep(size=RunSize(1 << 60))
    folder = SweepFolder.create(str(tmp_path), sweep, {point.name: "name: made\n" for point in sweep.points})
    assert main(["sweep", "--resume", str(folder.path), "--parallel", "40"]) == ExitCode.REFUSED
    assert "--parallel: 4 runs side by side take about" in capsys.readouterr().err


def test_a_dry_run_probes_nothing_and_says_that_a_probe_would_come_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(prepared, "probe", lambda *arguments, **options: pytest.fail("a probe was run"))
    assert main(["sweep", "quickstart", "generators.count=1,2", "--plan", "--dry-run"]) == ExitCode.COMPLETED
    shown, said = capsys.readouterr()
    assert " ".join(shown.split()).count("no run in run_dir fits, and a dry run starts no probe") == 1
    assert said.endswith("The sweep can be run; nothing was started.\n")
    assert list(tmp_path.iterdir()) == []


def test_settings_that_are_the_same_recipe_are_remarked(capsys):
    assert main(["sweep", "quickstart", "generators.role=both,auto", "--dry-run"]) == ExitCode.COMPLETED
    assert "role=auto is the same recipe as role=both" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("source", [["--rates", "nofile"], ["--from", "runs/no"]])
def test_what_predictions_stand_on_is_looked_for_before_settings_are_checked(source, capsys):
    assert main(["sweep", "quickstart", "steps=4,5", "--plan", *source]) == ExitCode.REFUSED
    assert "Checking" not in capsys.readouterr().err


def test_what_cannot_be_foreseen_is_run(monkeypatch):
    def fail(*arguments, **options):
        raise AsyncRLError("engines die sooner than they start")

    monkeypatch.setattr(prepared, "predict", fail)
    notes: list[str] = []
    settings = made_sweep().settings
    assert prepared._foreseen(settings, [None] * 2, None, notes.append) == list(settings)  # type: ignore[list-item, arg-type]
    assert notes[1] == "max_staleness=0 cannot be foreseen: engines die sooner than they start"


def test_notes_of_predictions_are_shown():
    settings = [
        msgspec.structs.replace(each, foreseen=msgspec.structs.replace(made_prediction(5.0, 1.0), notes=("extrapolated",)))
        for each in made_sweep().settings
    ]
    plans = [SimpleNamespace(remarks=())] * 2
    assert list(prepared._remarks(settings, [1, 2], plans, 1)) == ["prediction: extrapolated"]  # type: ignore[list-item, arg-type]


SCRIPT = """
import sys
from asyncrl.cli.main import run
from asyncrl.cli.sweeps import sweep
from asyncrl.run.tracking.tracker import TrackingFailed
from asyncrl.sweeps.parent_run import TrackedSweep
sweep._launch_command = lambda arguments: [sys.executable, "-S", {stand_in!r}, {place!r}, *arguments]
def end(self, status):
    raise TrackingFailed("no MLflow")
TrackedSweep.end = end
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
    assert "the sweep's own run there says nothing of its end: no MLflow" in told
    states = [folder.state_of(point)[0] for point in sweep.points]
    assert states == [PointState.INTERRUPTED, PointState.INTERRUPTED, PointState.MISSING, PointState.MISSING]
