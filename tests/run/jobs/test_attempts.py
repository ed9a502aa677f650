"""Runs that are tried again: by processes that end as a driver may, and with what there is of the run between them."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_checkpoints import make_checkpoint
from object_store import ObjectStore, served

from asyncrl.cli.main import main
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.storage.storage import Storage
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.jobs import attempts
from asyncrl.run.jobs.attempts import NamedRun, keep_at_it
from asyncrl.run.jobs.submission import submittable
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.recipe.compose import compose


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with served() as store:
        yield store


class Tried:
    """A run whose drivers end with the codes that a test names, each after what it does to the run."""

    def __init__(self, parent: Path, *ends: tuple[int, int | None]) -> None:
        self.recipe = compose("quickstart", [f"run_dir={parent}", "steps=5"])
        self.run = NamedRun(self.recipe, "one")
        self.ends, self.places, self.waits, self.notes = list(ends), list[str | None](), list[float](), list[str]()

    def _command(self, place: str | None) -> list[str]:
        self.places.append(place)
        if place is None:
            RunFolder.create(self.recipe, "one")
        code, version = self.ends.pop(0)
        if version is not None:
            make_checkpoint(checkpoints.path_of(self.run.folder.checkpoints, PolicyVersion(version)), PolicyVersion(version))
        dies = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
        return [sys.executable, "-c", f"import os, sys; {dies}"]

    def end(self, retries: int) -> int:
        return keep_at_it(self.run, self._command, retries, self.notes.append, self.waits.append)


@pytest.mark.parametrize(
    ("ends", "retries", "code", "waits"),
    [
        ([(0, None)], 0, 0, []),
        ([(1, None)], 0, 1, []),
        ([(2, None)], 5, 2, []),
        ([(130, None)], 5, 130, []),
        ([(1, None), (0, None)], 1, 0, [5]),
        ([(-9, None), (2, None), (1, None)], 2, 1, [5, 10]),
        ([(1, None), (1, 2), (1, None), (1, 4), (0, None)], 2, 0, [5, 5, 10, 5]),
    ],
    ids=["completed", "failed", "refused", "interrupted", "again", "killed, refused, failed", "with progress between"],
)
def test_a_run_is_gone_on_with_until_it_completes_or_fails_too_often(
    tmp_path: Path, ends: list[tuple[int, int | None]], retries: int, code: int, waits: list[float]
):
    tried = Tried(tmp_path, *ends)
    assert tried.end(retries) == code
    assert (tried.waits, tried.ends) == (waits, [])
    assert tried.places == [None, *[str(tmp_path / "one")] * (len(ends) - 1)]


WAITS = "import signal, sys; signal.signal(15, lambda *a: sys.exit(130)); print('up', flush=True); signal.pause()"


def test_who_asks_it_to_end_reaches_the_run_and_it_is_not_tried_again(tmp_path: Path):
    code = f"""
import sys
from asyncrl.run.jobs.attempts import NamedRun, keep_at_it
from asyncrl.run.recipe.compose import compose

run = NamedRun(compose("quickstart", ["run_dir={tmp_path}"]), "one")
sys.exit(keep_at_it(run, lambda place: [sys.executable, "-c", {WAITS!r}], 5, print))
"""
    driving = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert driving.stdout is not None
    assert driving.stdout.readline() == "up\n"
    threading.Timer(0.0, driving.send_signal, [signal.SIGTERM]).start()
    assert driving.wait(60) == 130


def test_a_run_in_a_store_is_gone_on_with_from_there_once_it_has_a_checkpoint(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    runs = f"{store.make_bucket()}/runs"
    recipe = compose("quickstart", [f"run_dir={runs}", "steps=5"])
    run, there = NamedRun(recipe, "one"), Storage(f"{runs}/one")
    assert (run.place, run.progress) == (None, -1)
    there.put_bytes("recipe.yaml", b"steps: 5")
    there.put_bytes("checkpoints/version-000002/common.pt", b"half")
    assert (run.place, run.progress) == (None, -1)
    there.put_bytes("checkpoints/version-000002.manifest.json", b"{}")
    assert (run.place, run.progress) == (f"{runs}/one", 2)
    assert not run.has_completed(5)
    summary = tmp_path / "summary.json"
    Summary(status=Status.COMPLETED, reason="", steps=5).recorded(summary)
    there.put_bytes("summary.json", summary.read_bytes())
    assert run.has_completed(5)
    assert not run.has_completed(6)
    store.refuse = lambda method, path: (403, "AccessDenied")
    for asking in (lambda: run.place, lambda: run.has_completed(5)):
        with pytest.raises(RecipeError, match="the store refuses the credentials"):
            asking()
    store.refuse = lambda method, path: None


def test_a_store_that_is_down_between_two_attempts_costs_no_more_than_attempts(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    tried = Tried(tmp_path / "runs", (1, None), (0, None))
    run = NamedRun(compose("quickstart", [f"run_dir={store.make_bucket()}/runs"]), "one")

    def command(place: str | None) -> list[str]:
        tried.places.append(place)
        if place is None:
            RunFolder.create(tried.recipe, "one")
            store.refuse = lambda method, path: (403, "AccessDenied")
        return [sys.executable, "-c", f"import sys; sys.exit({tried.ends.pop(0)[0]})"]

    assert keep_at_it(run, command, 1, tried.notes.append, tried.waits.append) == 0
    assert tried.places == [None, str(run.folder.path)]
    store.refuse = lambda method, path: None


def test_the_same_command_does_nothing_once_the_run_has_completed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = RunFolder.create(compose("quickstart", [f"run_dir={tmp_path}"]), "one")
    Summary(status=Status.COMPLETED, reason="", steps=7).recorded(folder.summary)
    assert main(["launch", "quickstart", f"run_dir={tmp_path}", "steps=7", "--as", "one"]) == 0
    assert "has completed its 7 training steps" in " ".join(capsys.readouterr().err.split())


def test_what_is_said_of_a_run_that_is_there_already_is_passed_on_or_said_to_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run, commands = f"run_dir={tmp_path}", list[list[str]]()
    monkeypatch.setattr(attempts, "_attempt", lambda words: commands.append(list(words[words.index("launch") + 1 :])) or 0)
    asked = ["launch", "quickstart", run, "steps=7", "--as", "one", "--quiet", "--tag", "first"]
    assert main(asked) == 0
    RunFolder.create(compose("quickstart", [run]), "one")
    assert main(asked) == 0
    further = ["--tag", "first", "--quiet"]
    assert commands == [
        ["quickstart", run, "steps=7", *further, "--folder-name", "one"],
        ["--resume", str(tmp_path / "one"), "--from", str(Path.cwd()), "steps=7", *further],
    ]
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("by the recipe that it has there") == 1
    assert f"whatever {run} says" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["quickstart", "--retries", "2"], "--retries goes with --as NAME or --submit"),
        (["--resume", "runs/one", "--as", "one"], "--as and --submit go with a RECIPE"),
        (["quickstart", "--as", "../one"], "must be letters, digits, dots, dashes and underscores"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["launch", *words])
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_a_job_would_lose_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RecipeError, match="'runs' would be in the folder of the job, which is removed with it"):
        submittable(compose("quickstart"), "quickstart")
    shared = compose("quickstart", [f"run_dir={tmp_path}"])
    assert submittable(shared, "quickstart") == "quickstart"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("defaults: [quickstart, _self_]")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(RecipeError, match="is not below"):
        submittable(shared, str(recipe))
    assert os.listdir(tmp_path / "other") == []
    monkeypatch.chdir(tmp_path)
    assert [submittable(shared, named) for named in (str(recipe), "other/../recipe.yaml")] == ["recipe.yaml"] * 2
