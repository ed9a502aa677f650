import logging
import resource
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from made_trajectories import trajectory, words

from asyncrl.core.errors import DeadlineExceeded
from asyncrl.episodes.files import evaluation_file, training_file
from asyncrl.episodes.kept import untrained
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import table, write
from asyncrl.run import tracking
from asyncrl.run.compose import compose, resolved_yaml
from asyncrl.run.disk import ROOM_BYTES
from asyncrl.run.folder import RunFolder
from asyncrl.run.summary import Status
from asyncrl.run.tracking import Tracker, TrackingFailed


def make(tmp_path, *overrides: str):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", *overrides])
    return recipe, RunFolder.create(recipe)


def test_a_run_is_kept_whole_in_its_folder(tmp_path, capfd):
    recipe, folder = make(tmp_path)
    played, kept = trajectory(prompt=3, turns=2), folder.trajectories
    for step in (100, 200):
        episodes = [untrained(played, Kind.TRAIN, step=step, version=step - 1, source="s")]
        write(table(episodes, "w", words), training_file(kept, step, 0))
    episodes = [untrained(played, Kind.EVALUATION, step=None, version=200, source=None)]
    write(table(episodes, "w", words), evaluation_file(kept, 200, "generator-0"))
    tracker = Tracker(recipe, folder)
    began = time.monotonic()
    tracker.start()
    for step in range(1, 301):
        tracker.log(step, {"reward/mean": step / 300, "staleness/max": 3.0, "learner/loss": float("nan")})
        if step in (100, 200):
            tracker.log_trained(step)
            tracker.log_evaluated(step)
    queued = time.monotonic() - began
    tracker.finish(Status.INTERRUPTED, seconds=120)
    took = time.monotonic() - began
    assert queued < min(1.0, took / 2), "the training loop waited for MLflow"

    from mlflow import MlflowClient

    client = MlflowClient(tracker.uri)
    experiment = client.get_experiment_by_name("asyncrl")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    assert run.info.run_name == folder.path.name
    assert run.data.params["learner.lr"] == str(recipe.learner.lr)
    assert run.data.params["algorithm.correction.anchor"] == "behaviour"
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [(point.step, point.value) for point in history] == [(step, step / 300) for step in range(1, 301)]
    assert [file.read_text() for file in folder.artifacts.rglob("recipe.yaml")] == [resolved_yaml(recipe)]
    first = traces_of(client, run, "train")
    assert [trace.info.tags["step"] for trace in first] == ["100"], "the next one's time had not come"
    (trace,) = traces_of(client, run, "evaluation")
    assert (trace.info.tags["version"], trace.info.tags["task_id"], trace.info.tags["reward"]) == ("200", "task-0", "0.5")
    assert (trace.info.request_time, trace.info.execution_duration) == (1_700_000_000_500, 6_750)
    spans = [
        (span.name, str(span.span_type), span.end_time_ns - span.start_time_ns, span.status.status_code)
        for span in trace.data.spans
    ]
    assert sorted(spans) == [
        ("calculator", "TOOL", 250_000_000, "OK"),
        ("evaluation task-0", "AGENT", 6_750_000_000, "OK"),
        ("turn 1", "LLM", 2_000_000_000, "OK"),
        ("turn 2", "LLM", 2_000_000_000, "OK"),
        ("unreadable call", "TOOL", 0, "ERROR"),
    ]
    texts = {span.name: (span.inputs, span.outputs) for span in trace.data.spans}
    assert texts["turn 2"] == ("t5", "t6 t7")
    assert texts["unreadable call"][1] == {"outcome": "malformed", "problem": "no JSON"}
    assert texts["evaluation task-0"][1]["metrics"] == {"tool_calls": 2.0}

    # Resumed from an earlier step: the steps done again are not tracked twice, evaluations and later steps are.
    again = Tracker(recipe, folder)
    again.start()
    for step in range(291, 311):
        again.log(step, {"reward/mean": step / 300})
    again.log(300, {"evaluation/reward": 0.5})
    again.log_evaluated(200)
    again.log_trained(200)
    again.finish(Status.COMPLETED, seconds=60)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "reward/mean")
    assert [point.step for point in history] == list(range(1, 311))
    assert run.data.metrics["evaluation/reward"] == 0.5
    assert len(traces_of(client, run, "evaluation")) == 1, "an episode has one trace, however often it is logged"
    assert sorted(trace.info.tags["step"] for trace in traces_of(client, run, "train")) == ["100", "200"]
    assert capfd.readouterr() == ("", "")


def traces_of(client, run, kind):
    return client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, filter_string=f"tags.kind = '{kind}'")


def track(folder, step, told=""):
    """Track in a process of its own, as each resume does: MLflow keeps databases open for as long as its process lives."""
    program = f"""if True:
        import logging, pathlib, sys
        from asyncrl.run.compose import compose
        from asyncrl.run.folder import RunFolder
        from asyncrl.run.summary import Status
        from asyncrl.run.tracking import Tracker

        logging.basicConfig()
        folder = RunFolder.find(pathlib.Path({str(folder.path)!r}))
        tracker = Tracker(compose(str(folder.recipe), []), folder)
        tracker.start()
        tracker.log({step}, {{"reward/mean": 0.5}})
        tracker.finish(Status.COMPLETED, seconds=120)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert (done.returncode == 0) == ("TrackingFailed" not in done.stderr)
    assert told in done.stderr
    return done.returncode


def test_a_resumed_run_whose_database_is_gone_is_tracked_anew(tmp_path):
    recipe, folder = make(tmp_path)
    assert track(folder, 1) == 0
    folder.database.unlink()
    assert track(folder, 2, f"{folder.database} is gone") == 0
    assert track(folder, 3) == 0  # and goes on with that one

    from mlflow import MlflowClient

    client = MlflowClient(tracking.tracking_uri(recipe.tracking, folder))
    history = client.get_metric_history(folder.tracked_as.read_text(), "reward/mean")
    assert [point.step for point in history] == [2, 3]


def test_a_damaged_database_is_told_with_a_remedy_that_helps(tmp_path):
    _, folder = make(tmp_path)
    folder.tracked_as.write_text("0123456789abcdef0123456789abcdef")
    folder.database.write_bytes(b"no database " * 1000)
    assert track(folder, 2, f"put {folder.database} back, or remove it to begin the metrics anew, and resume") != 0
    folder.database.unlink()
    assert track(folder, 2) == 0


def test_a_store_that_cannot_be_opened_is_told_to_the_owner(tmp_path):
    recipe, folder = make(tmp_path, "tracking.uri=nowhere://x")
    tracker = Tracker(recipe, folder)
    tracker.start()
    with pytest.raises(TrackingFailed, match=r"check tracking\.uri"):
        tracker.finish(Status.COMPLETED, seconds=60)
    with pytest.raises(TrackingFailed, match="nowhere"):
        tracker.log(1, {"x": 1.0})


def test_a_server_that_never_answers_holds_nobody_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        recipe, folder = make(tmp_path, f"tracking.uri=http://127.0.0.1:{silent.getsockname()[1]}")
        tracker = Tracker(recipe, folder)
        tracker.start()
        began = time.monotonic()
        tracker.log(1, {"x": 1.0})
        assert time.monotonic() - began < 0.5
        with pytest.raises(DeadlineExceeded, match="MLflow to take in the last records") as caught:
            tracker.finish(Status.COMPLETED, seconds=0.5)
        assert "2 records" in caught.value.remedy


@contextmanager
def no_file_may_grow_beyond(size):
    """Make this process meet a full disk, whatever file it writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_full_disk_is_told_once_and_then_counted(tmp_path, monkeypatch, caplog, capfd):
    asked: list[int] = []
    free = ROOM_BYTES
    monkeypatch.setattr(tracking, "POLL_S", 0.01)
    monkeypatch.setattr(tracking, "free_bytes", lambda folder: asked.append(free) or free)
    recipe, folder = make(tmp_path)
    tracker = Tracker(recipe, folder)
    tracker.start()
    tracker.log(1, {"reward/mean": 1.0})
    wait_for(folder.tracked_as.is_file, "the run to be made")
    with caplog.at_level(logging.INFO), no_file_may_grow_beyond(folder.database.stat().st_size):
        free = 0
        for step in range(2, 3002):
            tracker.log(step, {"reward/mean": 1.0})
        wait_for(lambda: "tracking waits for room on the disk" in caplog.text, "the disk to be found full")
        begin = len(asked)
        wait_for(lambda: len(asked) > begin + 10, "more attempts")
    tracker.finish(Status.COMPLETED, seconds=60)
    records = [record for record in caplog.records if not record.name.startswith("urllib3")]  # of the server that never answers
    assert len(records) == 2, caplog.text
    assert records[1].getMessage().startswith("the disk has room again: tracking goes on, after ")
    assert "Traceback" not in caplog.text
    assert capfd.readouterr() == ("", "")
