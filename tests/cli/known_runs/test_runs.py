"""Runs as a person finds, labels, watches and stops them."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from made_progress import PROGRESS
from made_summary import SUMMARY
from terminal import terminal

import asyncrl
from asyncrl.cli.launch import label
from asyncrl.cli.main import main
from asyncrl.core.errors import RecipeError
from asyncrl.run.folder.labels import Labels, change_labels
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.stopping import holds
from asyncrl.run.measures.event_log import EventLog
from asyncrl.run.measures.events import EvaluationDone, NoteSaid, PhaseBegun, RunEnded, StepDone
from asyncrl.run.measures.summary import Status
from asyncrl.run.recipe.compose import compose

DRIVE = """
import sys, time, signal
from pathlib import Path
from asyncrl.run.folder.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.driven():
    print("driving", flush=True)
    sys.stdin.readline()
"""
BUSY = """
import os, sys
from pathlib import Path
from asyncrl.run.folder.run_folder import RunFolder
opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(300)]
with RunFolder(Path(sys.argv[1])).driven():
    print("driving", flush=True)
    while True:
        for each in opened:
            os.close(each)
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in opened]
"""


def progress(step):
    return msgspec.structs.replace(PROGRESS, step=step, steps=80)


def summary(**changes):
    return msgspec.structs.replace(SUMMARY, **changes)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Makes folders of runs in ``runs`` of the current folder."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, *changes: str, tags: tuple[str, ...] = ()) -> RunFolder:
        folder = RunFolder.create(compose("quickstart", ["run_dir=runs", f"name={name}", *changes]))
        Labels("quickstart", changes, tags).write(folder.labels)
        return folder

    return make


@pytest.fixture
def driven() -> Callable[[RunFolder], "subprocess.Popen[str]"]:
    """Starts processes that drive a run and do nothing."""
    started = []

    def drive(folder: RunFolder, code: str = DRIVE) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "driving\n"
        return process

    yield drive
    for process in started:
        process.kill()
        process.wait()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out


def names(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    return [json.loads(line)["name"].partition("-")[0] for line in shown(capsys, *arguments, "--json").splitlines()]


@pytest.mark.parametrize("further", [0, 60])
def test_a_run_that_goes_on_is_listed_with_its_last_evaluation_however_long_ago_that_was(make, driven, capsys, further):
    live = make("live")
    log = EventLog(live.events)
    log.tell(EvaluationDone(version=10, reward=0.61))
    for step in range(further + 1):
        log.tell(StepDone(progress=progress(step), metrics={f"some/metric_{number:03}": 0.5 for number in range(250)}))
    driven(live)
    assert json.loads(shown(capsys, "--json"))["evaluation"] == PROGRESS.evaluation.reward == 0.61


def test_an_evaluation_that_a_resume_lost_is_not_the_last_one(make, driven, capsys):
    live = make("live")
    log = EventLog(live.events, iter(range(9)).__next__)
    log.tell(EvaluationDone(version=20, reward=0.9))  # of an attempt that ended before its checkpoint
    log.tell(StepDone(progress=PROGRESS))
    driven(live)
    assert json.loads(shown(capsys, "--json"))["evaluation"] == PROGRESS.evaluation.reward
    log.tell(EvaluationDone(version=20, reward=0.7))
    assert json.loads(shown(capsys, "--json"))["evaluation"] == 0.7


def test_a_narrow_terminal_shows_what_was_changed_below_the_name(make):
    changes = ["learner.lr=0.001", "buffer.max_staleness=3", "generators.max_running=24", "batch.groups_per_step=12"]
    folder = make("done", *changes, tags=("paper",))
    command = ["-m", "asyncrl.cli.main", "runs"]
    with terminal(command, columns=80, lines=24) as narrow, terminal(command, columns=180, lines=24) as wide:
        for screen in (narrow, wide):
            assert screen.wait() == 0
        below, beside = narrow.everything, wide.everything
    (row,) = [number for number, line in enumerate(below) if folder.path.name in line]
    assert "killed" in below[row]
    assert "learner.lr=0.001" in below[row + 1]
    assert "#paper" in "\n".join(below[row + 2 : row + 6])
    assert len([line for line in below if line]) <= 8
    (line,) = [line for line in beside if folder.path.name in line]
    assert "learner.lr=0.001" in line
    assert "#paper" in line


def test_runs_are_listed_sorted_and_filtered(make, driven, capsys):
    done, killed, live = make("done", "learner.lr=0.001", tags=("paper",)), make("killed"), make("live", tags=("paper", "b"))
    summary(status=Status.COMPLETED, steps=80).write(done.summary)
    log = EventLog(live.events)
    log.tell(StepDone(progress=progress(7)))
    log.tell(EvaluationDone(version=0, reward=0.125))
    driven(live)
    rows = {row["name"].partition("-")[0]: row for row in map(json.loads, shown(capsys, "--json").splitlines())}
    assert {name: (row["status"], row["step"], row["steps"]) for name, row in rows.items()} == {
        "done": ("completed", 80, 80),
        "killed": ("killed", 0, 80),
        "live": ("running", 7, 80),
    }
    assert (rows["live"]["evaluation"], rows["done"]["changed"], rows["done"]["tags"]) == (0.125, ["learner.lr=0.001"], ["paper"])
    assert (rows["killed"]["reward"], rows["live"]["reward"]) == (None, progress(7).reward)
    assert names(capsys, "--status", "killed", "--status", "running", "--sort", "name") == ["killed", "live"]
    assert names(capsys, "--sort", "step") == ["done", "live", "killed"]
    assert names(capsys, "--tag", "paper", "--tag", "b") == ["live"]
    assert names(capsys, "--where", "learner.lr=1e-3") == ["done"]
    assert names(capsys, "--where", "learner.lr=2e-4", "--sort", "name", "--limit", "1") == ["killed"]
    assert names(capsys, str(killed.path)) == ["killed"]
    table = shown(capsys)
    assert "7/80 9 %" in table
    assert "learner.lr=0.001" in table
    assert "#paper" in table
    assert shown(capsys, "--tag", "none") == "no such runs\n"
    assert main(["runs", "nowhere"]) == 2
    assert "there is no folder 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_list_that_cannot_be_written_is_a_failure(make, form):
    make("done")
    command = [sys.executable, "-m", "asyncrl.cli.main", "runs", *form]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, "No space left on device" in ended.stderr) == (1, True)


def test_what_an_attempt_before_the_last_one_left_is_not_how_a_run_ended(make, capsys):
    killed, stopped, foreign = make("killed"), make("stopped"), make("foreign")
    for folder in (killed, stopped):
        summary(status=Status.INTERRUPTED, steps=3).write(folder.summary)
        EventLog(folder.events).tell(RunEnded(status=Status.INTERRUPTED, steps=3))
    killed.count_resume()  # and that was killed
    EventLog(killed.events).tell(StepDone(progress=progress(5)))
    foreign.summary.write_text('{"format": 99}')
    rows = {row["name"].partition("-")[0]: row for row in map(json.loads, shown(capsys, "--json").splitlines())}
    assert {name: (row["status"], row["step"]) for name, row in rows.items()} == {
        "killed": ("killed", 5),
        "stopped": ("interrupted", 3),
        "foreign": ("unreadable", 0),
    }
    assert "has format 99" in rows["foreign"]["reason"]


def test_a_detached_resume_begins_in_the_folder_that_was_named_here(make, monkeypatch, tmp_path):
    run, asked = make("moved"), []
    (tmp_path / "project").mkdir()
    monkeypatch.setattr("asyncrl.cli.driving.start.start_detached", lambda request: asked.append(request) or run.path)
    assert main(["launch", "--resume", str(run.path), "--from", "project", "--detach"]) == 0
    assert asked[0].start == str(tmp_path / "project")


def test_a_value_that_is_none_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as end:
        main(["runs", "--where", "name=["])
    assert end.value.code == 2
    assert "'[' is no value in YAML" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "asked", "other"),
    [
        ("2026-11-28", "2026-11-28", "2026-11-29"),
        ("on", "on", "off"),
        ("'1:30'", "1:30", "90.5"),
        ("'12'", "12", "13"),
        ("1", "1", "true"),
        ("1", "1.0", "false"),
        ("true", "true", "1"),
        ("1e-5", "1e-5", "1e-4"),
        ("[1, 2]", "[1, 2]", "[2, 1]"),
        ("null", "null", "0"),
    ],
)
def test_a_value_is_found_as_it_was_given_to_the_run(make, capsys, given, asked, other):
    make("done", f"environment.options.note={given}")
    assert names(capsys, "--where", f"environment.options.note={asked}") == ["done"]
    assert names(capsys, "--where", f"environment.options.note={other}") == []


@pytest.mark.parametrize(("key", "remedy"), [("lerner.lr", "did you mean `learner.lr`?"), ("x.y.z", "name one that a run's")])
def test_a_key_that_no_recipe_has_is_refused_rather_than_found_in_no_run(make, capsys, key, remedy):
    make("done")
    assert main(["runs", "--where", f"{key}=1e-4"]) == 2
    assert f"no recipe of these runs has the key {key!r}; {remedy}" in " ".join(capsys.readouterr().err.split())


def test_labels_are_added_taken_away_and_kept(make, capsys):
    run = make("labelled", "steps=3")
    assert main(["tag", str(run.path), "good", "v1.2", "good", "--note", "a baseline"]) == 0
    assert capsys.readouterr().out == "tags: good, v1.2\nnote: a baseline\n"
    assert main(["tag", str(run.path), "--remove", "good"]) == 0
    assert Labels.read(run.labels) == Labels("quickstart", ("steps=3",), ("v1.2",), "a baseline")
    assert main(["tag", str(run.path), "two words"]) == 2
    assert "'two words' is no tag" in capsys.readouterr().err


def test_those_who_label_a_run_at_once_lose_nothing_of_each_other(make):
    run, tags = make("labelled"), [f"tag-{number:02}" for number in range(40)]
    with ThreadPoolExecutor(8) as people:
        list(people.map(lambda tag: change_labels(run.labels, lambda before: before.with_tags([tag])), tags))
    assert sorted(Labels.read(run.labels).tags) == tags


@pytest.mark.parametrize(("folder", "lock"), [(0o755, 0o644), (0o775, 0o664), (0o2777, 0o666)])
def test_whoever_may_write_in_the_folder_may_label_its_run(make, folder, lock):
    run = make("labelled")
    run.path.chmod(folder)
    change_labels(run.labels, lambda before: before.with_tags(["good"]))
    assert (run.path / ".labels.json.lock").stat().st_mode & 0o777 == lock


def test_labels_that_another_process_is_changing_for_long_are_refused(make, capsys, monkeypatch):
    run = make("labelled")
    monkeypatch.setattr("asyncrl.run.folder.labels.CHANGED_WITHIN_S", 0.0)
    with (run.path / ".labels.json.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["tag", str(run.path), "good"]) == 2
    assert f"another process is changing '{run.labels}'" in capsys.readouterr().err
    assert Labels.read(run.labels).tags == ()


def test_what_a_repeated_resume_changes_again_is_listed_once_and_last(make):
    run = make("resumed", "learner.lr=0.001", "steps=3")
    for _ in range(3):
        label(run, "", ["learner.lr=0.001"], [], "")
    assert Labels.read(run.labels).overrides == ("steps=3", "learner.lr=0.001")


def test_a_resume_that_changes_no_label_writes_none_and_so_needs_no_room(make):
    run = make("resumed", "steps=3")
    before = run.labels.stat()
    label(run, "", [], [], "")
    assert (run.labels.stat().st_ino, run.labels.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_whatever_labels_hold_is_shown_and_does_nothing_to_the_terminal(make, capsys):
    run = make("hostile")
    Labels("quickstart", ("a=\x1b[31mred",), ("b\x1b[2J",), "c\u202ed [bold]größe").write(run.labels)
    for command in (["runs"], ["runs", "--json"], ["tag", str(run.path)]):
        assert main(command) == 0
        said = capsys.readouterr().out
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert "[bold]größe" in said


@pytest.mark.parametrize("content", [b'{"tags": ["paper",], "note": "by hand"}', b"", b"null", b"\xff"])
def test_labels_that_cannot_be_read_are_not_overwritten(make, capsys, content):
    run = make("labelled")
    run.labels.write_bytes(content)
    assert main(["tag", str(run.path), "good"]) == 2
    assert f"cannot read '{run.labels}', whose labels would be lost" in capsys.readouterr().err
    with pytest.raises(RecipeError, match="whose labels would be lost"):  # a run that is resumed
        label(run, "", ["steps=90"], ["again"], "")
    assert run.labels.read_bytes() == content
    run.labels.rename(run.path / "moved away")
    assert main(["tag", str(run.path), "good"]) == 0
    assert Labels.read(run.labels).tags == ("good",)


def test_a_terminal_and_a_disk_that_are_not_utf8_are_listed_and_labelled(make, capsys):
    latin = make("latin")
    there = latin.path.rename(latin.path.with_name(os.fsdecode(b"caf\xe9")))
    assert main(["tag", str(there), "--note", os.fsdecode(b"caf\xe9")]) == 0
    assert capsys.readouterr().out.endswith("note: caf\\udce9\n")
    row = json.loads(shown(capsys, "--json"))
    assert (row["name"], row["note"]) == ("caf\\udce9", "caf\\udce9")
    assert "caf\\udce9" in shown(capsys)


def test_a_run_that_is_named_in_several_ways_is_listed_once(make, capsys, tmp_path: Path):
    run = make("once")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    assert main(["runs", "runs", "runs/", "link", str(run.path), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"] == run.path.name


def test_a_run_is_stopped_as_by_a_signal_and_only_by_whoever_reaches_its_driver(make, driven, capsys):
    run = make("stopped")
    assert main(["stop", str(run.path)]) == 2
    assert "is not running" in capsys.readouterr().err
    process = driven(run)
    assert main(["stop", str(run.path)]) == 0
    assert f"{run.path} has stopped; go on with: asyncrl launch --resume" in capsys.readouterr().out
    assert process.wait(30) == -signal.SIGTERM
    assert not run.is_driven


def test_a_run_that_cannot_be_stopped_does_not_keep_the_others(make, driven, capsys):
    over, run = make("over"), make("stopped")
    process = driven(run)
    assert main(["stop", str(over.path), "file:///nowhere/run", str(run.path)]) == 2
    shown = capsys.readouterr()
    assert f"the run in '{over.path}' is not running" in " ".join(shown.err.split())
    assert "nobody drives the run at file:///nowhere/run" in " ".join(shown.err.split())
    assert f"{run.path} has stopped" in shown.out
    assert process.wait(30) == -signal.SIGTERM


def test_a_driver_that_opens_and_closes_files_all_the_time_is_known_as_such(make, driven):
    run = make("busy")
    process = driven(run, BUSY)
    assert all(holds(process.pid, run.lock) for _ in range(50))
    assert main(["stop", str(run.path)]) == 0
    assert process.wait(30) == -signal.SIGTERM


def test_no_process_that_only_has_the_number_of_the_driver_is_signalled(make, driven, capsys):
    run, other = make("far"), make("other")
    stranger = driven(other)
    process = driven(run)
    os.pwrite(fd := os.open(run.lock, os.O_WRONLY), str(stranger.pid).encode().ljust(32), 0)
    os.close(fd)
    assert main(["stop", str(run.path)]) == 2
    assert "is driven on another machine, or by another user" in capsys.readouterr().err
    assert stranger.poll() is process.poll() is None


def test_another_terminal_shows_the_live_view_and_leaves_the_run_alone(make, driven):
    run = make("watched")
    log = EventLog(run.events)
    log.tell(PhaseBegun(text="Training steps 1 to 80"))
    log.tell(NoteSaid(text="version 0: evaluation reward 0.417", level=20))
    log.tell(StepDone(progress=progress(7)))
    process = driven(run)
    with terminal(["-m", "asyncrl.cli.main", "attach", str(run.path)], columns=110) as screen:
        screen.wait_for("training step 7 of")
        assert any("version 0: evaluation reward 0.417" in line for line in screen.everything)
        log.tell(StepDone(progress=progress(8)))
        screen.wait_for("training step 8 of")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130
        assert any("The run goes on: asyncrl stop" in line for line in screen.everything)
    assert process.poll() is None


def test_of_a_run_that_has_ended_the_end_is_shown(make, capsys):
    run = make("over")
    assert main(["attach", str(run.path)]) == 2
    assert "was killed: it does not go on, and has no summary; resume it" in capsys.readouterr().err
    summary(status=Status.FAILED, steps=3, reason="no coffee").write(run.summary)
    assert main(["attach", str(run.path)]) == 1
    assert "Failed: no coffee" in capsys.readouterr().out
    assert asyncrl.Run(run.path).summary.reason == "no coffee"
    run.count_resume()  # a resume, which was killed
    assert main(["attach", str(run.path)]) == 2
    assert "was killed: it does not go on, and has no summary" in capsys.readouterr().err
    with pytest.raises(asyncrl.NotThere, match="has not ended, or was killed; resume it"):
        _ = asyncrl.Run(run.path).summary


def test_a_point_of_a_sweep_is_listed_without_the_paths_that_say_where_it_is(make, capsys, tmp_path: Path):
    folder = make("0-lr-0.0002-seed-1")
    Labels(str(tmp_path / "recipes/0-lr-0.0002-seed-1.yaml"), (f"run_dir='{tmp_path}'", "learner.lr=0.0002")).write(folder.labels)
    listed = shown(capsys)
    assert "learner.lr=0.0002" in listed
    assert ".yaml" not in listed
    assert "run_dir" not in listed
