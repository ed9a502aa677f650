"""Runs that are copied to an object store beside training, and gone on with from there where nothing else of them is."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_checkpoints import make_checkpoint
from object_store import ObjectStore, served
from test_resuming import Run

from asyncrl.buffers.journal.journal_copy import copy_journal
from asyncrl.core.errors import DeadlineExceeded, RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.storage import address as addresses
from asyncrl.core.storage.storage import Storage
from asyncrl.episodes.files import training_file
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose
from asyncrl.run.resume import check_resumable
from asyncrl.run.storage import upload as upload_module
from asyncrl.run.storage.driver_mark import Driver, RunTakenOver, ask_to_end, read_mark, wait_for_silence
from asyncrl.run.storage.fetched_run import copy_of, fetch_run, resumed_run, settle
from asyncrl.run.storage.known_copies import read_known_copies
from asyncrl.run.storage.stored_checkpoints import journal_copy_of
from asyncrl.run.storage.upload_places import Uploads, check_addresses, check_not_elsewhere

SOON_S = 60.0


class StoredRun(Run):
    """A made run, each of whose checkpoints has a copy of the journal as it was."""

    def checkpoint(self, version):
        super().checkpoint(version)
        copy_journal(self.journal, journal_copy_of(checkpoints.path_of(self.folder.checkpoints, version)))
        training_file(self.folder.trajectories, version, 0).parent.mkdir(exist_ok=True)
        training_file(self.folder.trajectories, version, 0).write_bytes(b"episodes of %d" % version)


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with served() as store:
        yield store


@pytest.fixture
def bucket(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(upload_module, "RETRY_S", 0.01)
    monkeypatch.setattr(upload_module, "LONGEST_RETRY_S", 0.05)
    monkeypatch.setattr(addresses, "ATTEMPTS", 1)
    yield store.make_bucket()
    store.refuse = lambda method, path: None


class Notes:
    """What the user reads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait_for(self, words: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(words in line for line in self.lines), SOON_S), self.lines


def uploaded(run: Run, notes: Notes | None = None) -> str:
    """Upload a run as its driver does, and return its address."""
    uploads = Uploads(run.recipe, run.folder, notes or Notes())
    uploads.start()
    uploads.finish(SOON_S)
    return uploads.addresses[0]


def gone_on_with(at: str, tmp_path: Path, name: str = "elsewhere") -> tuple[RunFolder, object]:
    """Resume a run on a machine that has nothing of it, up to where its processes would start."""
    there = tmp_path / name
    there.mkdir()
    os.chdir(there)
    folder, fetched = fetch_run(at, Notes())
    assert fetched
    recipe = compose(str(folder.recipe))
    settle(recipe, folder)
    return folder, check_resumable(recipe, folder)


def test_a_run_is_gone_on_with_on_another_machine_with_its_ledger(store: ObjectStore, bucket: str, tmp_path: Path):
    run = StoredRun(f"{bucket}/runs", steps=6, versions=(2, 4, 6))
    at = uploaded(run)
    names = store.names(at)
    assert "checkpoints/version-000006.manifest.json" in names
    assert not [name for name in names if name.startswith(("buffer/", "driver.lock", "."))]
    folder, reached = gone_on_with(at, tmp_path)
    assert folder.path == tmp_path / "elsewhere" / "runs" / run.folder.path.name
    assert checkpoints.versions(folder.checkpoints) == [6]
    assert reached.totals.steps == 6
    ledger = reached.statistics.ledger
    assert (reached.statistics.version, ledger.trained, ledger.committed) == (6, 12, 0)
    assert ledger.issued == ledger.trained + ledger.failed + ledger.running
    assert training_file(folder.trajectories, 4, 0).read_bytes() == b"episodes of 4"
    assert folder.database == folder.own_database  # none was uploaded yet, and the metrics from here on are to be
    check_resumable(compose(str(folder.recipe)), folder)  # a second look finds the same
    assert settle(compose(str(folder.recipe)), folder) is None


def test_the_machine_that_drove_a_run_last_goes_on_with_its_own_folder(bucket: str, tmp_path: Path):
    run = StoredRun(f"{bucket}/runs", steps=7, versions=(4, 6))
    at, notes = uploaded(run), Notes()
    folder, fetched = fetch_run(at, notes)
    assert (folder.path, fetched) == (run.folder.path, False)
    assert notes.lines[-1] == f"This machine has driven the run last: it goes on in {run.folder.path}"
    check_not_elsewhere(run.recipe, run.folder)
    folder, _ = gone_on_with(at, tmp_path)
    uploaded_again = Uploads(compose(str(folder.recipe)), folder, Notes())
    uploaded_again.start()
    uploaded_again.finish(SOON_S)
    assert uploaded_again.addresses == (at,)
    with pytest.raises(RecipeError, match=f"was gone on with by process .*; resume it from where .* --resume {at}"):
        check_not_elsewhere(run.recipe, run.folder)
    os.chdir(tmp_path)
    again, fetched = fetch_run(at, Notes())
    assert fetched
    assert again.path.name == f"{run.folder.path.name}-2"
    assert read_known_copies(again).name == run.folder.path.name


def test_checkpoints_and_episodes_go_where_the_recipe_says(store: ObjectStore, bucket: str, tmp_path: Path):
    keys = [f"checkpoint.dir={bucket}/checkpoints", f"tracking.trajectories.dir={bucket}/episodes"]
    run = StoredRun(tmp_path / "local", steps=6, versions=(4, 6), overrides=keys)
    uploads = Uploads(run.recipe, run.folder, Notes())
    uploads.start()
    (run.folder.logs / "driver.log").write_text("a line")
    uploads.finish(SOON_S)
    name = run.folder.path.name
    at = f"{bucket}/checkpoints/{name}"
    assert not [each for each in store.names(at) if each.startswith(("logs", "trajectories"))]
    assert {each for each in store.names(f"{bucket}/episodes/{name}") if "/" in each} == {
        "trajectories/train-000004-0.parquet",
        "trajectories/train-000006-0.parquet",
    }
    shutil.rmtree(tmp_path / "local")
    folder, reached = gone_on_with(at, tmp_path)
    assert folder.path == tmp_path / "local" / name
    assert reached.statistics.version == 6


def test_older_checkpoints_are_removed_and_what_a_killed_upload_left(store: ObjectStore, bucket: str):
    run = StoredRun(f"{bucket}/runs", steps=6, versions=(2, 4, 6), overrides=["checkpoint.keep=1"])
    at = f"{bucket}/runs/{run.folder.path.name}"
    left = Storage(at)
    left.put_bytes("checkpoints/version-000003/__0_0.distcp", b"half")
    for version in (1, 2):
        left.put_bytes(f"checkpoints/version-{version:06d}/__0_0.distcp", b"whole")
        left.put_bytes(f"checkpoints/version-{version:06d}.manifest.json", b'{"objects": []}')
    uploaded(run)
    there = {name.split("/")[1].partition(".")[0] for name in store.names(at) if name.startswith("checkpoints/")}
    assert there == {"version-000006"}


@pytest.mark.parametrize(("lost", "done_again"), [((8,), 8), ((6, 8), 6)])
def test_a_checkpoint_of_steps_that_are_done_again_replaces_those_before(
    store: ObjectStore, bucket: str, lost: tuple[PolicyVersion, ...], done_again: PolicyVersion
):
    """A run whose newest checkpoints were moved away, as a refused resume asks for, goes on from an older one."""
    run = StoredRun(f"{bucket}/runs", steps=8, versions=(2, 4, 6, 8))
    at = uploaded(run)
    for version in lost:
        path = checkpoints.path_of(run.folder.checkpoints, version)
        shutil.rmtree(path)
        shutil.rmtree(journal_copy_of(path))
    assert uploaded(run) == at
    assert "checkpoints/version-000008.manifest.json" in store.names(at)  # it has no newer one yet
    uploads = Uploads(run.recipe, run.folder, Notes())
    run.checkpoint(done_again)
    (checkpoints.path_of(run.folder.checkpoints, done_again) / "done").write_text("again")
    uploads.start()
    uploads.finish(SOON_S)
    assert store.content(f"{at}/checkpoints/version-{done_again:06d}/done") == b"again"
    assert max(name for name in store.names(at) if name.endswith(".manifest.json")).endswith(f"{done_again:06d}.manifest.json")


def test_a_store_that_is_down_costs_nothing_but_time(store: ObjectStore, bucket: str):
    run, notes = StoredRun(f"{bucket}/runs", steps=4, versions=(2, 4)), Notes()
    uploads = Uploads(run.recipe, run.folder, notes)
    uploads.start()
    store.refuse = lambda method, path: (503, "SlowDown") if method in ("PUT", "POST") else None
    (run.folder.logs / "driver.log").write_text("a line")
    uploads.wake()
    notes.wait_for("the store is too busy")
    uploads.check()
    with pytest.raises(DeadlineExceeded, match=r"the run waited .* to reach s3://.* too busy.*resume it to upload the rest"):
        uploads.finish(0.3)
    store.refuse = lambda method, path: None
    uploads.finish(SOON_S)
    assert store.content(f"{uploads.addresses[0]}/logs/driver.log") == b"a line"
    assert len([line for line in notes.lines if "too busy" in line]) == 1


def test_a_checkpoint_without_its_manifest_does_not_count(store: ObjectStore, bucket: str, tmp_path: Path):
    run = StoredRun(f"{bucket}/runs", steps=6, versions=(4, 6))
    store.refuse = lambda method, path: (500, "InternalError") if "manifest" in path and method == "PUT" else None
    uploads = Uploads(run.recipe, run.folder, Notes())
    uploads.start()
    with pytest.raises(DeadlineExceeded):
        uploads.finish(2)
    assert "checkpoints/version-000006/checkpoint.json" in store.names(uploads.addresses[0])
    with pytest.raises(RecipeError, match=r"there is no whole checkpoint at .* yet"):
        fetch_run(uploads.addresses[0], Notes(), tmp_path)
    store.refuse = lambda method, path: None
    uploads.finish(SOON_S)
    assert "checkpoints/version-000006.manifest.json" in store.names(uploads.addresses[0])


def test_a_checkpoint_that_was_changed_in_the_store_is_refused_by_name(store: ObjectStore, bucket: str, tmp_path: Path):
    run = StoredRun(f"{bucket}/runs", steps=6, versions=(4, 6))
    at = uploaded(run)
    Storage(at).put_bytes("checkpoints/version-000006/common.pt", b"something else")
    with pytest.raises(RecipeError, match=r"version-000006/common.pt is damaged.*remove .*version-000006.manifest.json"):
        fetch_run(at, Notes(), tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_a_driver_that_was_cut_off_ends_when_the_run_goes_on_elsewhere(bucket: str):
    run = StoredRun(f"{bucket}/runs", steps=4, versions=(4,))
    uploads = Uploads(run.recipe, run.folder, Notes())
    uploads.start()
    other = Driver(Storage(uploads.addresses[0]), lambda: None)
    other.mark()
    mine = Driver(Storage(uploads.addresses[0]), lambda: None)
    mine.mark()
    with pytest.raises(RunTakenOver, match="has resumed this run"):
        other.mark(ended=True)
    assert read_mark(Storage(uploads.addresses[0])).token == mine.token
    uploads._uploads[0]._driver._next = 0.0  # as if a while had passed
    with pytest.raises(RunTakenOver):
        uploads.finish(SOON_S)
    with pytest.raises(RunTakenOver):
        uploads.check()


def test_a_run_is_not_taken_from_a_driver_that_lives(bucket: str):
    storage, notes, now = Storage(f"{bucket}/runs/one"), Notes(), [0.0]
    storage.put_bytes("driver.json", json.dumps({"token": "t", "machine": "host-a boot", "process": 7}).encode())

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    wait_for_silence(storage, notes, clock=lambda: now[0], sleep=pass_time)
    assert "process 7 on host-a has driven the run" in notes.lines[0]
    assert now[0] >= 60

    def mark_again(seconds: float) -> None:
        pass_time(seconds)
        storage.put_bytes("driver.json", json.dumps({"token": "t", "machine": "host-a boot", "process": 7, "beats": 1}).encode())

    with pytest.raises(RecipeError, match="process 7 on host-a is still running"):
        wait_for_silence(storage, notes, clock=lambda: now[0], sleep=mark_again)


def test_a_driver_is_asked_to_end_by_its_address(bucket: str):
    storage, now, stopped = Storage(f"{bucket}/runs/one"), [0.0], list[float]()
    with pytest.raises(RecipeError, match="nobody drives the run at"):
        ask_to_end(storage)
    driver = Driver(storage, lambda: stopped.append(now[0]), clock=lambda: now[0])
    driver.mark()
    with pytest.raises(RecipeError, match=r"which drove the run at .*, has not answered for 80 s; go on with it"):
        ask_to_end(storage, lambda seconds: None)

    def pass_time(seconds: float) -> None:
        now[0] += seconds
        driver.mark()

    ask_to_end(storage, pass_time)
    assert stopped == [20]
    driver.mark(ended=True)
    assert stopped == [20]
    with pytest.raises(RecipeError, match="nobody drives the run at"):
        ask_to_end(storage)


KILLED = """
import sys
from pathlib import Path
from asyncrl.core.storage.storage import Storage
from asyncrl.run.storage.stored_checkpoints import upload

upload(Storage(sys.argv[1]), Path(sys.argv[2]), 6, lambda: None)
"""


@pytest.mark.parametrize("before", ["__0_0.distcp", "manifest"])
def test_an_upload_that_is_killed_in_the_middle_leaves_the_checkpoint_before(
    store: ObjectStore, bucket: str, tmp_path: Path, before: str
):
    run = StoredRun(f"{bucket}/runs", steps=4, versions=(4,))
    at = uploaded(run)
    checkpoint = checkpoints.path_of(run.folder.checkpoints, PolicyVersion(6))
    make_checkpoint(checkpoint, PolicyVersion(6))
    (checkpoint / "__0_0.distcp").write_bytes(os.urandom(24 << 20))
    checkpoint.with_suffix(".json").write_bytes(b"{}")
    copy_journal(run.journal, journal_copy_of(checkpoint))
    reached, go_on = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> tuple[int, str] | None:
        if before not in path or "000006" not in path or method != "PUT":
            return None
        reached.set()
        go_on.wait(SOON_S)
        return 500, "InternalError"  # the process is gone before it could have sent all

    store.refuse = hold
    uploading = subprocess.Popen([sys.executable, "-c", KILLED, at, str(run.folder.checkpoints)])
    try:
        assert reached.wait(SOON_S)
    finally:
        uploading.send_signal(signal.SIGKILL)
        uploading.wait()
        go_on.set()
    store.refuse = lambda method, path: None
    assert "checkpoints/version-000006.manifest.json" not in store.names(at)
    folder, reached_version = gone_on_with(at, tmp_path)
    assert checkpoints.versions(folder.checkpoints) == [4]
    assert reached_version.statistics.version == 4
    os.chdir(tmp_path)
    uploaded(run)
    assert "checkpoints/version-000006.manifest.json" in store.names(at)
    assert not list(run.folder.checkpoints.glob(".*"))


def test_what_is_read_of_a_run_in_a_store_is_what_is_there_now(store: ObjectStore, bucket: str):
    run = StoredRun(f"{bucket}/runs", steps=6, versions=(4, 6))
    at = uploaded(run)
    copy = copy_of(at)
    assert RunFolder.find(copy).path.name == run.folder.path.name
    assert not (copy / "checkpoints").exists()
    assert training_file(copy / "trajectories", 6, 0).read_bytes() == b"episodes of 6"
    training_file(run.folder.trajectories, 6, 0).unlink()
    Summary(status=Status.FAILED, reason="it was stopped").recorded(run.folder.summary)
    uploads = Uploads(run.recipe, run.folder, Notes())
    uploads.start()
    uploads.finish(SOON_S)
    Storage(at).remove("trajectories/train-000006-0.parquet")
    assert copy_of(at, weights=True) == copy
    assert Summary.read(copy / "summary.json").reason == "it was stopped"
    assert not training_file(copy / "trajectories", 6, 0).exists()
    assert checkpoints.versions(copy / "checkpoints") == [6]
    with pytest.raises(RecipeError, match=r"there is no run at .*/runs: it has no recipe.yaml"):
        copy_of(f"{bucket}/runs")


def test_episodes_of_a_step_that_is_done_again_are_removed_there_too(store: ObjectStore, bucket: str):
    run = StoredRun(f"{bucket}/runs", steps=4, versions=(4,))
    file = training_file(run.folder.trajectories, 4, 0)
    uploads = Uploads(run.recipe, run.folder, Notes())
    uploads.start()
    until = time.monotonic() + SOON_S
    while f"trajectories/{file.name}" not in store.names(uploads.addresses[0]):
        assert time.monotonic() < until
    file.unlink()
    uploads.finish(SOON_S)
    assert f"trajectories/{file.name}" not in store.names(uploads.addresses[0])


def test_episodes_of_a_step_that_was_done_again_replace_those_of_their_size(store: ObjectStore, bucket: str, tmp_path: Path):
    run = StoredRun(f"{bucket}/runs", steps=4, versions=(2, 4))
    same, again = (training_file(run.folder.trajectories, version, 0) for version in (2, 4))
    an_hour_ago = time.time_ns() - 3600 * 10**9
    os.utime(same, ns=(an_hour_ago, an_hour_ago))  # of what was just written, a store's time in seconds could be too early
    at = uploaded(run)
    again.write_bytes(b"episodes of 5")  # by a resume that was lost before it had uploaded them
    assert len(b"episodes of 5") == len(store.content(f"{at}/trajectories/{again.name}"))
    before = len(store.requests)
    assert uploaded(run) == at
    assert store.content(f"{at}/trajectories/{again.name}") == b"episodes of 5"
    (kept,) = {
        file for method, path in store.requests[before:] if method == "PUT" and (file := Path(path)).suffix == again.suffix
    }
    assert kept.name == again.name
    before = len(store.requests)
    there, _ = gone_on_with(at, tmp_path)  # what was fetched is as old as it is in the store
    recipe = compose(str(there.recipe))
    uploads = Uploads(recipe, there, Notes())
    uploads.start()
    uploads.finish(SOON_S)
    assert not [path for method, path in store.requests[before:] if method == "PUT" and Path(path).suffix == again.suffix]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("run_dir=s3://no-such-bucket/runs", "run_dir: s3://no-such-bucket/runs: there is no bucket 'no-such-bucket'; make it"),
        ("checkpoint.dir=checkpoints", "checkpoint.dir: 'checkpoints' is no address; name an address such as s3://BUCKET/FOLDER"),
        ("tracking.trajectories.dir=gopher://a/b", "tracking.trajectories.dir: gopher://a/b: gopher:// is of no known kind"),
    ],
)
def test_addresses_that_cannot_be_written_to_are_refused_by_key(bucket: str, override: str, said: str):
    with pytest.raises(RecipeError) as refused:
        check_addresses(compose("quickstart", [override]))
    assert str(refused.value).startswith(said)


def test_a_run_that_is_refused_leaves_nothing_of_what_was_fetched(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    at = uploaded(StoredRun(f"{bucket}/runs", steps=4, versions=(4,)))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")

    def refuse(folder: RunFolder) -> None:
        assert folder.recipe.is_file()
        raise RecipeError("", "no", "never")

    with pytest.raises(RecipeError, match="no"), resumed_run(at, Notes()) as folder:
        refuse(folder)
    with resumed_run(at, Notes(), to_look=True) as folder:
        assert folder.recipe.is_file()
    assert not folder.path.exists()
    assert not list((tmp_path / "other").rglob("recipe.yaml"))
