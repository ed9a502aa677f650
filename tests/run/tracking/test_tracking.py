import logging
import re
import resource
import shlex
import shutil
import socket
import sqlite3
import sys
import threading
import time
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
import tracking_side
from fork_server import WITH_MLFLOW
from made_measure import measure
from otlp_collector import collector, use
from played_episodes import episode, words

from asyncrl.core.errors import DeadlineExceeded, RecipeError
from asyncrl.episodes.files import evaluation_file, training_file
from asyncrl.episodes.schema import Kind
from asyncrl.episodes.writer import table, untrained, write
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.disk import ROOM_BYTES
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status
from asyncrl.run.recipe.compose import compose
from asyncrl.run.report.run_record import RunRecord
from asyncrl.run.tracking import tracker as tracker_module
from asyncrl.run.tracking.further_trackers import check_further_trackers
from asyncrl.run.tracking.metric_history import metric_history
from asyncrl.run.tracking.mlflow_tables import _revisions
from asyncrl.run.tracking.sqlite_address import sqlite_file
from asyncrl.run.tracking.tracker import Tracker, TrackingFailed
from asyncrl.run.tracking.tracking_check import check_database, check_tracking


def make(tmp_path, *overrides: str):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", *overrides])
    return recipe, RunFolder.create(recipe)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database as MLflow makes it, which takes seconds, without runs."""
    tracker_module.keep_mlflow_quiet()
    from mlflow import MlflowClient

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}")
    return path


@pytest.fixture
def beside_others(tmp_path, empty_database):
    """A folder in which runs were tracked before, so that there is a database."""
    shutil.copy(empty_database, tmp_path)
    return tmp_path


@pytest.fixture
def got(monkeypatch):
    """What comes to a collector of OpenTelemetry."""
    with collector() as (made, address):
        use(address, monkeypatch)
        yield made


def test_a_run_is_kept_whole_in_its_folder(tmp_path, monkeypatch, capfd, got):
    recipe, folder = make(tmp_path, "tracking.also=[opentelemetry]")
    all_logged, make_database = threading.Event(), tracker_module.only_one_makes

    def make_it_once_all_is_logged(uri):
        assert all_logged.wait(60), "the training loop waits for MLflow"
        return make_database(uri)

    monkeypatch.setattr(tracker_module, "only_one_makes", make_it_once_all_is_logged)
    played, kept = episode(prompt=3, turns=2), folder.trajectories
    for step in (100, 200):
        episodes = [untrained(played, 0, Kind.TRAIN, step=step, version=step - 1, source="s")]
        write(table(episodes, lambda source: "w", words), training_file(kept, step, 0))
    episodes = [untrained(played, 0, Kind.EVALUATION, step=None, version=200, source=None)]
    write(table(episodes, lambda source: "w", words), evaluation_file(kept, 200, "generator-0"))
    tracker = Tracker(recipe, folder)
    tracker.start()
    for step in range(1, 301):
        tracker.log(step, {"reward/mean": step / 300, "staleness/max": 3.0, "learner/loss": float("nan")})
        if step in (100, 200):
            tracker.log_measure(measure(step))
            tracker.log_trained(step)
            tracker.log_evaluated(step)
    all_logged.set()
    tracker.finish(Status.INTERRUPTED, seconds=120)

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
    roots = [span.name for span in got.spans if not span.parent_span_id]
    assert sorted(roots) == ["evaluation task-0", "train task-0", "training step 100", "training step 200"]
    artifacts = tmp_path / "mlflow-artifacts" / run.info.run_id / "artifacts"
    assert run.info.artifact_uri == artifacts.as_uri()
    assert (artifacts / "recipe.yaml").read_text() == resolved_yaml(recipe)
    beside = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert beside == ["mlflow-artifacts", "mlflow.db", folder.path.name]

    # Resumed from an earlier step: the steps done again are not tracked twice, evaluations and later steps are.
    again = Tracker(recipe, folder)
    again.start()
    for step in range(291, 311):
        again.log(step, {"reward/mean": step / 300})
    again.log(300, {"evaluation/reward": 0.5})
    for step in (200, 301):
        again.log_measure(measure(step))
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
    assert [span.name for span in got.spans if span.name.startswith("training")][2:] == ["training step 301"]
    assert capfd.readouterr() == ("", "")


def traces_of(client, run, kind):
    return client.search_traces(locations=[run.info.experiment_id], run_id=run.info.run_id, filter_string=f"tags.kind = '{kind}'")


def tracking_process(folder, steps):
    """Track in a process of its own, as each run does: MLflow keeps databases open for as long as its process lives."""
    process = WITH_MLFLOW.Process(target=tracking_side.track, args=(folder.path, list(steps), said_in(folder)))
    process.start()
    return process


def said_in(folder):
    return folder.path / "said.txt"


def track(folder, step, told=""):
    process = tracking_process(folder, [step])
    process.join(180)
    said = said_in(folder).read_text()
    said_in(folder).unlink()
    assert (process.exitcode == 0) == ("TrackingFailed" not in said)
    assert told in said
    return process.exitcode


def test_runs_that_begin_and_write_at_once_share_a_database(tmp_path):
    """They all make it, and none may find half a database, or one that is locked for good."""
    folders = [make(tmp_path)[1] for _ in range(2)]
    processes = [tracking_process(folder, range(1, 101)) for folder in folders]
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0], [said_in(folder).read_text() for folder in folders]

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    for folder in folders:
        run = client.get_run(folder.tracked_as.read_text())
        assert (run.info.status, run.info.run_name) == ("FINISHED", folder.path.name)
        history = client.get_metric_history(run.info.run_id, "metric/7")
        assert [(point.step, point.value) for point in history] == [(step, 3.5) for step in range(1, 101)]


def test_metrics_that_wait_are_written_in_few_transactions_and_in_order(beside_others, monkeypatch):
    written, write_them = [], tracker_module._log_values

    def counted(client, run_id, records):
        written.append([record.step for record in records])
        write_them(client, run_id, records)

    monkeypatch.setattr(tracker_module, "_log_values", counted)
    tracker = Tracker(*make(beside_others))
    for step in range(1, 201):
        tracker.log(step, {"reward/mean": 1.0})
        tracker.log_trained(step)
        tracker.log_evaluated(step)
    tracker.start()
    tracker.finish(Status.COMPLETED, seconds=120)
    assert written == [list(range(1, 201))]


def test_a_database_that_another_process_holds_is_waited_for(beside_others, monkeypatch, caplog):
    def write_without_waiting(*_):
        with closing(sqlite3.connect(folder.database, timeout=0)) as mine, mine:
            mine.execute("UPDATE runs SET name = name")

    recipe, folder = make(beside_others)
    monkeypatch.setattr(tracker_module, "POLL_S", 0.01)
    tracker = Tracker(recipe, folder)
    tracker.start()
    wait_for(folder.tracked_as.is_file, "the run to be made")
    monkeypatch.setattr(tracker_module, "_log_values", write_without_waiting)
    with closing(sqlite3.connect(folder.database, timeout=60)) as other:
        other.execute("BEGIN IMMEDIATE")
        tracker.log(1, {"reward/mean": 1.0})
        wait_for(lambda: "tracking waits for other users of sqlite" in caplog.text, "the lock to be noticed")
        other.rollback()
    tracker.finish(Status.COMPLETED, seconds=60)
    assert "the database is free again" in caplog.text


def test_a_missing_package_of_a_tracker_is_told_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RecipeError, match=r'wandb cannot be imported .*; install it with `pip install "asyncrl\[wandb\]"`'):
        check_further_trackers(compose("quickstart", ["tracking.also=[wandb]"]).tracking)


def test_further_trackers_get_each_new_record_once_and_their_errors_reach_the_owner(beside_others, monkeypatch):
    class Noted:
        def __init__(self):
            self.calls = []

        def log(self, step, time_s, values):
            if values.get("bad"):
                raise OSError("no such project")
            self.calls.append((step, values))

        def flush(self):
            self.calls.append("flush")

        def end(self, status):
            self.calls.append(status)

    noted = Noted()
    monkeypatch.setattr(tracker_module, "make_further_tracker", lambda *_: noted)
    recipe, folder = make(beside_others, "tracking.also=[wandb]")
    tracker = Tracker(recipe, folder)
    tracker.start()
    tracker.log(1, {"reward/mean": 1.0})
    tracker.finish(Status.COMPLETED, seconds=120)
    assert noted.calls == [(1, {"reward/mean": 1.0}), "flush", Status.COMPLETED]

    again = Tracker(recipe, folder)
    again.start()
    again.log(1, {"reward/mean": 1.0})
    again.log(2, {"bad": 1.0})
    with pytest.raises(TrackingFailed, match=r"wandb: no such project; correct that and resume, or resume without"):
        again.finish(Status.COMPLETED, seconds=60)
    assert noted.calls[3:] == []


def test_a_further_tracker_that_cannot_be_made_is_told_as_such(beside_others, monkeypatch):
    def refuse(*_):
        raise OSError("no such entity")

    monkeypatch.setattr(tracker_module, "make_further_tracker", refuse)
    tracker = Tracker(*make(beside_others, "tracking.also=[wandb]"))
    tracker.start()
    with pytest.raises(TrackingFailed, match=r"^wandb: no such entity; correct that and resume, or resume without"):
        tracker.finish(Status.COMPLETED, seconds=120)


def test_a_resumed_run_whose_database_is_gone_is_tracked_anew(beside_others):
    recipe, folder = make(beside_others)
    assert track(folder, 1) == 0
    folder.database.unlink()
    assert track(folder, 2, f"{folder.database} is gone") == 0
    assert track(folder, 3) == 0  # and goes on with that one

    from mlflow import MlflowClient

    client = MlflowClient(tracker_module.tracking_uri(recipe.tracking, folder))
    history = client.get_metric_history(folder.tracked_as.read_text(), "reward/mean")
    assert [point.step for point in history] == [2, 3]


def test_a_folder_whose_name_means_something_in_an_address_is_tracked_in(tmp_path, empty_database):
    place = tmp_path / "50%20 a?b"
    place.mkdir()
    shutil.copy(empty_database, place)
    recipe, folder = make(tmp_path)
    folder = RunFolder(folder.path.rename(place / folder.path.name))
    assert track(folder, 1) == 0
    assert track(folder, 2) == 0
    assert metric_history(folder, recipe.tracking)["reward/mean"].steps == (1, 2)
    assert sqlite_file(tracker_module.tracking_uri(recipe.tracking, folder)) == folder.database
    assert [each.name for each in tmp_path.glob("50*")] == [place.name]  # none of what the name would mean, or encoded


def test_a_run_of_an_earlier_version_keeps_the_database_in_its_folder(beside_others, empty_database):
    recipe, folder = make(beside_others)
    shared = folder.database
    assert track(folder, 1) == 0
    own = shared.rename(folder.path / shared.name)
    shutil.copy(empty_database, shared)
    _, newer = make(beside_others)
    assert track(newer, 7) == 0
    assert (folder.database, newer.database) == (own, shared)
    check_database(folder)
    assert track(folder, 2) == 0
    assert metric_history(folder, recipe.tracking)["reward/mean"].steps == (1, 2)
    assert metric_history(newer, recipe.tracking)["reward/mean"].steps == (7,)


def test_a_resume_that_names_another_place_is_tracked_anew_there_and_the_database_stays(beside_others, empty_database):
    _, folder = make(beside_others)
    assert track(folder, 1) == 0
    before = folder.database.read_bytes()
    elsewhere = beside_others / "elsewhere.db"
    shutil.copy(empty_database, elsewhere)
    recipe = compose(str(folder.recipe), [f"tracking.uri=sqlite:///{elsewhere}"])
    for step in (2, 3):
        tracker = Tracker(recipe, folder)
        tracker.start()
        tracker.log(step, {"reward/mean": 0.5})
        tracker.finish(Status.COMPLETED, seconds=120)
    assert metric_history(folder, recipe.tracking)["reward/mean"].steps == (2, 3)
    assert folder.database.read_bytes() == before


def test_options_of_any_name_are_parameters(beside_others):
    recipe, folder = make(beside_others)
    environment = msgspec.structs.replace(recipe.environment, options={"f1@5": 1, "größe": 2})
    recipe = msgspec.structs.replace(recipe, environment=environment)
    tracker = Tracker(recipe, folder)
    tracker.start()
    tracker.finish(Status.COMPLETED, seconds=120)

    from mlflow import MlflowClient

    parameters = MlflowClient(tracker.uri).get_run(folder.read_tracked_as()).data.params
    values = {name: value for name, value in parameters.items() if name.startswith("environment.options.")}
    assert sorted(values.values()) == ["1", "2"]
    assert any(name.startswith("environment.options.f1_5-") for name in values)


def test_the_password_of_a_database_is_in_the_recipe_for_a_resume_and_shown_nowhere(beside_others, monkeypatch, caplog):
    database = f"sqlite:///{beside_others / 'mlflow.db'}"
    given, shown = "tracking.uri=postgresql://ann:s3cret@host/db", "postgresql://ann:***@host/db"
    recipe, folder = make(beside_others, given)
    monkeypatch.setattr(tracker_module, "tracking_uri", lambda config, folder: database)
    tracker = Tracker(recipe, folder)
    tracker.start()
    tracker.finish(Status.COMPLETED, seconds=120)

    from mlflow import MlflowClient

    run = MlflowClient(database).get_run(folder.read_tracked_as())
    assert run.data.params["tracking.uri"] == shown
    (kept,) = (beside_others / "mlflow-artifacts").rglob("recipe.yaml")
    assert shown in kept.read_text()
    assert compose(str(folder.recipe)) == recipe
    assert RunRecord(folder.path).recipe["tracking.uri"] == shown
    monkeypatch.undo()
    broken = Tracker(recipe, folder)  # its package is missing
    broken.start()
    with pytest.raises(TrackingFailed, match=re.escape(shown)) as failed:
        broken.finish(Status.COMPLETED, seconds=60)
    assert "s3cret" not in f"{failed.value} {caplog.text}"
    with pytest.raises(RecipeError, match=re.escape(shown)):
        metric_history(folder, recipe.tracking)


def test_a_copy_of_a_run_is_tracked_anew_and_the_metrics_of_both_do_not_mix(beside_others):
    recipe, folder = make(beside_others, f"tracking.uri=sqlite:///{beside_others / 'mlflow.db'}")
    assert track(folder, 1) == 0
    beside = RunFolder(shutil.copytree(folder.path, folder.path.with_name("experiment")))
    elsewhere = RunFolder(shutil.copytree(folder.path, beside_others / "elsewhere" / folder.path.name))
    for copy in (beside, elsewhere):
        assert track(copy, 2, f"{copy.path} is a copy of {folder.path}") == 0
        assert track(copy, 3) == 0
        assert metric_history(copy, recipe.tracking)["reward/mean"].steps == (2, 3)
    assert track(folder, 7) == 0
    moved = RunFolder(folder.path.rename(beside_others / "moved"))
    assert track(moved, 8) == 0
    assert metric_history(moved, recipe.tracking)["reward/mean"].steps == (1, 7, 8)


def test_a_damaged_database_is_told_with_a_remedy_that_helps(tmp_path):
    _, folder = make(tmp_path)
    folder.tracked_as.write_text("0123456789abcdef0123456789abcdef")
    folder.database.write_bytes(b"no database " * 1000)
    assert track(folder, 2, f"put {folder.database} back as it was, or resume with the metrics elsewhere") != 0
    folder.database.unlink()
    assert track(folder, 2) == 0


@pytest.mark.parametrize(
    ("revision", "told"),
    [
        (None, r"an earlier MLflow made its tables; copy it, then .* \(mlflow db upgrade sqlite:///.*mlflow\.db\)"),
        ("f" * 12, r"a later MLflow than the one installed here made its tables; install that one \(pip .*\)"),
    ],
)
def test_tables_of_another_mlflow_are_told_before_anything_starts(beside_others, revision, told):
    from mlflow import MlflowClient

    recipe, folder = make(beside_others)
    known, newest = _revisions()

    def have(version):
        with closing(sqlite3.connect(folder.database)) as database, database:
            database.execute("UPDATE alembic_version SET version_num = ?", (version,))

    have(revision or min(known - newest))
    folder.tracked_as.write_text("0123")
    with pytest.raises(Exception, match="out-of-date database schema"):
        MlflowClient(tracker_module.tracking_uri(recipe.tracking, folder))
    with pytest.raises(RecipeError, match=f"cannot be used: {told}, then resume; or resume with the metrics elsewhere"):
        check_database(folder)
    with pytest.raises(RecipeError, match=f"cannot be used: {told}, or track elsewhere"):
        check_tracking(recipe, resumed=False)
    with pytest.raises(RecipeError, match=f"cannot read the metrics of .*: {told}"):
        metric_history(folder, recipe.tracking)
    folder.tracked_as.unlink()
    have(*newest)
    check_database(folder)
    check_tracking(recipe, resumed=False)


def test_a_run_that_was_deleted_is_told_before_a_resume_and_can_be_restored_as_that_says(beside_others):
    from click.testing import CliRunner
    from mlflow import MlflowClient
    from mlflow.cli import cli

    def restored_as(told):
        variable, _, *words = shlex.split(told.partition("restore it (")[2].partition(")")[0])
        name, _, value = variable.partition("=")
        assert CliRunner().invoke(cli, words, env={name: value}).exit_code == 0
        check_database(folder)

    recipe, folder = make(beside_others)
    assert track(folder, 1) == 0
    client, run_id = MlflowClient(tracker_module.tracking_uri(recipe.tracking, folder)), folder.read_tracked_as()
    client.delete_run(run_id)
    with pytest.raises(RecipeError, match=r"run '\w+', which mlflow-run names, has been deleted; .*; or remove") as told:
        check_database(folder)
    restored_as(str(told.value))
    client.delete_experiment(client.get_run(run_id).info.experiment_id)
    with pytest.raises(
        RecipeError, match=r"the experiment of this run has been deleted; .*, then resume; or resume with"
    ) as told:
        check_database(folder)
    restored_as(str(told.value))
    assert track(folder, 2) == 0
    assert metric_history(folder, recipe.tracking)["reward/mean"].steps == (1, 2)


def test_a_run_that_is_deleted_while_it_is_tracked_is_told_with_a_remedy(beside_others):
    from mlflow import MlflowClient

    recipe, folder = make(beside_others)
    tracker = Tracker(recipe, folder)
    tracker.start()
    wait_for(folder.tracked_as.is_file, "the run to be made")
    MlflowClient(tracker.uri).delete_run(folder.read_tracked_as())
    tracker.log(1, {"reward/mean": 0.5})
    with pytest.raises(TrackingFailed, match=r"Current state is deleted\.; restore it \(mlflow runs restore, or .*, then resume"):
        tracker.finish(Status.COMPLETED, seconds=120)
    assert track(folder, 2, "is deleted: tracking begins anew") == 0
    assert metric_history(folder, recipe.tracking)["reward/mean"].steps == (2,)


def test_a_database_that_is_held_when_tracking_begins_is_waited_for(beside_others, monkeypatch, caplog):
    recipe, folder = make(beside_others)
    monkeypatch.setattr(tracker_module, "POLL_S", 0.01)
    tracker = Tracker(recipe, folder)
    with closing(sqlite3.connect(folder.database)) as other:
        other.execute("BEGIN EXCLUSIVE")
        tracker.start()
        wait_for(lambda: "tracking waits for other users of sqlite" in caplog.text, "the lock to be noticed")
        other.rollback()
    tracker.log(1, {"reward/mean": 1.0})
    tracker.finish(Status.COMPLETED, seconds=60)
    assert metric_history(folder, recipe.tracking)["reward/mean"].steps == (1,)


def test_a_database_that_refuses_a_record_is_told_in_a_sentence(beside_others):
    recipe, folder = make(beside_others)
    with closing(sqlite3.connect(folder.database)) as database:
        database.execute("DROP TABLE metrics")
    tracker = Tracker(recipe, folder)
    tracker.start()
    tracker.log(1, {"loss/policy": 1.0})
    with pytest.raises(
        TrackingFailed, match=rf"OperationalError\) [^;]*metrics[^;]*; put {folder.database} back as it was"
    ) as caught:
        tracker.finish(Status.COMPLETED, seconds=120)
    assert "\n" not in str(caught.value)


def test_a_file_beside_the_database_that_cannot_be_written_is_told_as_such(beside_others):
    recipe, folder = make(beside_others)
    folder.tracked_as.mkdir()
    tracker = Tracker(recipe, folder)
    tracker.start()
    with pytest.raises(TrackingFailed) as caught:
        tracker.finish(Status.COMPLETED, seconds=120)
    assert str(caught.value) == f"{folder.tracked_as}: Is a directory"


def test_a_store_that_cannot_be_opened_is_told_to_the_owner(tmp_path):
    recipe, folder = make(tmp_path, "tracking.uri=nowhere://x")
    tracker = Tracker(recipe, folder)
    tracker.start()
    with pytest.raises(TrackingFailed, match=r"check tracking\.uri"):
        tracker.finish(Status.COMPLETED, seconds=60)
    with pytest.raises(TrackingFailed, match="nowhere"):
        tracker.log(1, {"x": 1.0})


def test_a_server_that_never_answers_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        recipe, folder = make(tmp_path, f"tracking.uri=http://127.0.0.1:{silent.getsockname()[1]}")
        tracker = Tracker(recipe, folder)
        tracker.start()
        began = time.monotonic()
        tracker.log(1, {"x": 1.0})
        assert time.monotonic() - began < 30
        with pytest.raises(DeadlineExceeded, match="MLflow to take in the last records") as caught:
            tracker.finish(Status.COMPLETED, seconds=0.5)
        assert "2 records" in caught.value.remedy
    tracker._thread.join(100)
    assert not tracker._thread.is_alive(), "it would log while other tests run"


class _KnowsNobody(BaseHTTPRequestHandler):
    """A server that asks whoever does not say who they are, and does not let in those who do."""

    def do_GET(self):
        self.send_response(403 if self.headers["Authorization"] else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_a_server_that_wants_credentials_says_where_they_belong_and_gets_them(tmp_path, monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), _KnowsNobody) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        recipe, folder = make(tmp_path, f"tracking.uri=http://127.0.0.1:{server.server_port}")
        folder.tracked_as.write_text("abc")
        for code in (401, 403):
            tracker = Tracker(recipe, folder)
            tracker.start()
            with pytest.raises(TrackingFailed, match=f"error code {code} .*; set MLFLOW_TRACKING_USERNAME and"):
                tracker.finish(Status.COMPLETED, 60)
            with pytest.raises(RecipeError, match=f"error code {code} .*; set MLFLOW_TRACKING_USERNAME and"):
                metric_history(folder, recipe.tracking)
            monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
            monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
        server.shutdown()


def test_a_deadline_that_passes_names_the_tracker_that_is_called(tmp_path):
    tracker = Tracker(*make(tmp_path, "tracking.also=[wandb]"))
    called, answers = threading.Event(), threading.Event()
    tracker._thread = threading.Thread(target=tracker._call, args=("wandb", lambda: called.set() or answers.wait()))
    tracker._thread.start()
    try:
        assert called.wait(60)
        with pytest.raises(DeadlineExceeded, match="for wandb to take in the last records; 1 records wait behind it"):
            tracker.finish(Status.COMPLETED, seconds=0.01)
    finally:
        answers.set()
        tracker._thread.join()


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


def test_a_full_disk_is_told_once_and_then_counted(beside_others, monkeypatch, caplog, capfd):
    asked: list[int] = []
    free = ROOM_BYTES
    monkeypatch.setattr(tracker_module, "POLL_S", 0.01)
    monkeypatch.setattr(tracker_module, "free_bytes", lambda folder: asked.append(free) or free)
    recipe, folder = make(beside_others)
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
    records = [record for record in caplog.records if record.name == tracker_module.__name__]
    assert len(records) == 2, caplog.text
    assert records[1].getMessage().startswith("the disk has room again: tracking goes on, after ")
    assert "Traceback" not in caplog.text
    assert capfd.readouterr() == ("", "")
