"""A whole run that is kept in an object store alone: killed, its folder gone, and gone on with from there to its end."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_store import ObjectStore, served
from whole_run import ASYNCRL, Run

import asyncrl
from asyncrl.cli.main import main
from asyncrl.core.storage import address
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.storage.fetched_run import copy_of

STEPS = 6


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with served() as store:
        yield store


def overrides(model: str, bucket: str) -> list[str]:
    """What makes the quickstart small, with all that it reads and writes in the store."""
    small = ["batch.groups_per_step=4", "batch.group_size=4", "tasks.train=100", "tasks.evaluation=8", "evaluation.every=3"]
    return [*small, f"model.path={model}", f"run_dir={bucket}/runs", f"steps={STEPS}", "sampling.max_turn_tokens=16"]


@pytest.mark.timeout(1200)
def test_a_run_goes_on_where_nothing_of_it_is_but_in_the_store(
    store: ObjectStore,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    bucket, here, there = store.make_bucket(), tmp_path / "here", tmp_path / "there"
    for file in tiny_model.iterdir():
        with store.files.open_output_stream(f"{bucket.removeprefix('s3://')}/models/small/{file.name}") as out:
            out.write(file.read_bytes())
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(here)
    arguments = overrides(f"{bucket}/models/small", bucket)
    run = Run(here, *ASYNCRL, "launch", "quickstart", *arguments, "checkpoint.every=2", "buffer.journal.segment_mb=1")

    def is_stored(version: int) -> bool:
        return any(f"version-{version:06d}.manifest.json" in name for name in store.names(f"{bucket}/runs"))

    run.wait_for(lambda: is_stored(2), 500, "the checkpoint of version 2 is in the store")
    run.kill()
    (folder,) = (here / "runs").glob("quickstart-*")
    at = f"{bucket}/runs/{folder.name}"
    shutil.rmtree(here)  # with its journal, its trajectories and its checkpoints
    monkeypatch.chdir(there)
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "other-cache"))

    resumed = Run(there, *ASYNCRL, "launch", "--resume", at)
    assert resumed.end(600) == 0, resumed.output
    assert "Fetching the run, as it was at version" in resumed.output
    summary = Summary.read(there / "runs" / folder.name / "summary.json")
    ledger = summary.ledger
    assert (summary.status, summary.steps, summary.resumes) == (Status.COMPLETED, STEPS, 1)
    assert ledger.trained == STEPS * 4
    assert ledger.issued == ledger.trained + ledger.committed + ledger.running + ledger.failed + ledger.filtered + ledger.expired
    assert Summary.read(copy_of(at) / "summary.json") == summary

    shutil.rmtree(there / "runs")
    monkeypatch.chdir(tmp_path)
    read = asyncrl.Run(at)
    assert read.summary == summary
    assert read.trajectories(step=1).num_rows
    assert read.metrics().num_rows
    assert (read.model_path / "config.json").is_file()
    for command in (["show", at, "--limit", "1"], ["logs", at], ["report", at, "--output", str(tmp_path / "report.html")]):
        assert main(command) == 0, command
    assert main(["export", at, "--to", str(tmp_path / "exported")]) == 0
    assert (tmp_path / "exported" / "config.json").is_file()
    capsys.readouterr()
    assert main(["launch", "--resume", at, "--dry-run"]) == 2
    assert "has completed its 6 training steps" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_what_is_wrong_with_an_address_is_told_by_the_dry_run(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(address, "ATTEMPTS", 1)
    for named, said in {
        "s3://no-such-bucket/runs": "run_dir: s3://no-such-bucket/runs: there is no bucket 'no-such-bucket'",
        "s3://bucket/runs?endpoint_override=127.0.0.1:9&scheme=http": "the store cannot be reached",
    }.items():
        assert main(["launch", "quickstart", f"run_dir='{named}'", "--dry-run"]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    store.refuse = lambda method, path: (403, "AccessDenied")
    assert main(["launch", "quickstart", "run_dir=s3://any-bucket/runs", "--dry-run"]) == 2
    store.refuse = lambda method, path: None
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in " ".join(capsys.readouterr().err.split())
    assert os.listdir(tmp_path) == []
