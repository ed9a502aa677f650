import msgspec
import pytest
from made_buffers import recovered

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.payload import PayloadRef, TrajectoryRecord
from asyncrl.core.trajectory import StopReason
from asyncrl.run.buffer_folder import BufferFolder
from asyncrl.run.compose import compose
from asyncrl.run.folder import RunFolder
from asyncrl.run.tasks import make_task_stream
from buffers import commands
from buffers.inspection import BufferReport

SMALL = ["tasks.train=20", "batch.groups_per_step=2", "batch.group_size=2"]


def launched(tmp_path, *overrides):
    recipe = compose("quickstart", [f"run_dir={tmp_path}", *SMALL, *overrides])
    return recipe, RunFolder.create(recipe)


@pytest.fixture
def run(tmp_path):
    """A run that trained its first step on the shorter of its groups, and is still being driven."""
    recipe, folder = launched(tmp_path)
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
            TrajectoryRecord(ticket.group_id, index, length, ((PolicyVersion(0), 5),), 1.0, StopReason.MAX_TURNS, ref)
            for index in ticket.samples
        )
        do(commands.Commit(samples, 1e9))
    do(commands.Fail(tickets[3].group_id, 0, FailureKind.DATA, "division by zero in the calculator"))
    do(commands.Take(PolicyVersion(0), 2))
    do(commands.Trained(PolicyVersion(0)))
    do(commands.Advance(PolicyVersion(1)))
    yield folder.path
    journal.close()


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
        "Issued by version 1",
        "Held",
        "512 to 1,023",
        "finished, 33 %",
        "trained, 0 %",
        "trained, 100 %",
        "generated",
    ):
        assert expected in shown


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
