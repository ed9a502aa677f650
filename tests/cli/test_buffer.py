import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from made_buffers import recovered
from played_episodes import record

from asyncrl.buffers import commands
from asyncrl.buffers.inspection import BufferReport
from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import PROMPT_TOO_LONG
from asyncrl.run.buffer.tasks import make_task_stream
from asyncrl.run.folder.buffer_folder import BufferFolder
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.recipe.compose import compose

SMALL = ["tasks.train=20", "batch.groups_per_step=2", "batch.group_size=2"]


def launched(tmp_path, *overrides):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", *SMALL, *overrides])
    return recipe, RunFolder.create(recipe)


@pytest.fixture
def run(tmp_path):
    """A run that trained its first step on the shorter of its groups, and is still being driven."""
    recipe, folder = launched(tmp_path)
    journal = drive(recipe, folder)
    yield folder.path
    journal.close()


def drive(recipe, folder):
    where = BufferFolder.of(recipe.buffer, folder.path, folder.run_id)
    taken = recovered(recipe, make_task_stream(recipe), where.journal, {})
    taken.begin()
    buffer, journal = taken.buffer, taken.journal

    def do(command):
        journal.append(commands.encode(command))
        return command.apply(buffer)

    tickets = do(commands.IssueTickets(WorkerId("generator-0"), 4, 1e9))
    for ticket, length in zip(tickets[:3], (10, 10, 1000), strict=True):
        ref = PayloadRef(0, "segment", 0, 10, 0)
        samples = tuple(
            record(
                group_id=ticket.group_id,
                sample_index=index,
                length=length,
                sampled=((PolicyVersion(0), 5),),
                reward=1.0,
                payload=ref,
            )
            for index in ticket.samples
        )
        do(commands.Commit(samples, 1e9))
    do(commands.Fail(tickets[3].group_id, 0, FailureKind.DATA, "division by zero in the calculator"))
    do(commands.Take(PolicyVersion(0), 2))
    do(commands.Trained(PolicyVersion(0)))
    do(commands.Advance(PolicyVersion(1)))
    return journal


def test_as_json_it_says_what_is_held_and_what_was_trained(run, capsys):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert main(["buffer", str(run), "--json"]) == ExitCode.COMPLETED
    report = msgspec.json.decode(capsys.readouterr().out, type=BufferReport)
    assert report.version == 1
    assert (report.ledger.issued, report.ledger.trained, report.ledger.committed) == (4, 2, 1)
    assert [(row.shortest, row.issued, row.trained) for row in report.lengths if row.issued] == [(8, 4, 4), (512, 2, 0)]
    assert {(held.version, held.staleness) for held in report.held} == {(0, 1)}
    assert [(source.name, source.drawn) for source in report.sources] == [("generated", 4)]
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_as_tables_it_shows_lengths_side_by_side(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["buffer", str(run)]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    for expected in (
        "Issued up to policy version 1",
        "Held",
        "512 to 1,023",
        "finished, 33 %",
        "trained, 0 %",
        "trained, 100 %",
        "generated",
    ):
        assert expected in shown


def test_it_names_the_tasks_whose_prompts_are_too_long(tmp_path, capsys, monkeypatch):
    recipe, folder = launched(tmp_path)
    taken = recovered(recipe, make_task_stream(recipe), BufferFolder.of(recipe.buffer, folder.path, folder.run_id).journal, {})
    taken.begin()
    taken.journal.append(commands.encode(commands.SetTooLong(512, {"generated": [1, 2]})))
    for command in (commands.IssueTickets(WorkerId("generator-0"), 1, 1e9), commands.LeaveOut(GroupId(0), "it has 600 tokens")):
        taken.journal.append(commands.encode(command))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["buffer", str(folder.path)]) == ExitCode.COMPLETED
    shown = capsys.readouterr().out
    assert "Tasks left out because their prompts leave no room for a turn: 3 of generated; met when they were played: " in shown
    assert f"filtered: {PROMPT_TOO_LONG}" in shown
    taken.journal.close()


def test_a_folder_that_is_no_run_is_told(tmp_path, capsys):
    assert main(["buffer", str(tmp_path)]) == ExitCode.REFUSED
    assert "is not a run folder" in capsys.readouterr().err


def test_a_run_without_a_journal_is_told_how_to_get_one(tmp_path, capsys):
    _, folder = launched(tmp_path, "+buffer.journal={kind: none}")
    assert main(["buffer", str(folder.path)]) == ExitCode.REFUSED
    told = capsys.readouterr().err
    assert "keeps no journal" in told
    assert "append_only" in told


def test_a_run_that_has_not_begun_its_journal_is_told(tmp_path, capsys):
    _, folder = launched(tmp_path)
    assert main(["buffer", str(folder.path)]) == ExitCode.REFUSED
    assert "has no journal in buffer/journal" in capsys.readouterr().err


FAVOURITES = """
class Favourites:
    def __init__(self, sources):
        pass

    def weights(self):
        return [0.0, 1.0]

    def observe(self, source, rewards):
        pass

    def state(self):
        return {}

    def restore(self, state):
        pass
"""


def launched_with_files(*overrides):
    """A run on task files, launched in the current folder."""
    for name in ("a", "b", "c"):
        Path(f"{name}.jsonl").write_text("".join(f'{{"prompt": "{name}{row}"}}\n' for row in range(5)))
    files = ["~tasks", "+tasks.kind=files", "+tasks.train=[{path: a.jsonl}, {path: b.jsonl, weight: 3}]"]
    files.append("+tasks.evaluation=[{path: c.jsonl}]")
    recipe = compose("quickstart", ["run_dir=runs", *files, *SMALL[1:], *overrides])
    return recipe, RunFolder.create(recipe)


def test_it_works_from_any_folder_without_the_task_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe, folder = launched_with_files()
    journal = drive(recipe, folder)
    assert main(["buffer", str(folder.path), "--json"]) == ExitCode.COMPLETED
    shown = msgspec.json.decode(capsys.readouterr().out, type=BufferReport)
    assert [(source.name, source.drawn) for source in shown.sources] == [("a.jsonl", 1), ("b.jsonl", 3)]
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.jsonl").unlink()
    monkeypatch.chdir("/")
    assert main(["buffer", str(folder.path), "--json"]) == ExitCode.COMPLETED
    again = msgspec.json.decode(capsys.readouterr().out, type=BufferReport)
    assert (again.ledger, again.sources, again.lengths) == (shown.ledger, shown.sources, shown.lengths)
    journal.close()


def test_a_curriculum_of_ones_own_is_found_where_the_run_was_launched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "favourites_of_mine.py").write_text(FAVOURITES)
    recipe, folder = launched_with_files("+tasks.curriculum.name=favourites_of_mine:Favourites")
    journal = drive(recipe, folder)
    (tmp_path / "a.jsonl").unlink()
    command = [sys.executable, "-m", "asyncrl.cli.main", "buffer", str(folder.path), "--json"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    report = msgspec.json.decode(done.stdout, type=BufferReport)
    assert [(source.name, source.drawn) for source in report.sources] == [("a.jsonl", 0), ("b.jsonl", 4)]
    journal.close()
