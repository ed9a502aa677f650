"""What a run of an earlier version left is read, or refused by file and format: real files of revision 9e1bf04, cut to a few."""

import shutil
from pathlib import Path

import pytest

import asyncrl
from asyncrl.buffers.journal.frames import FORMAT
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.journal_files import read_journal
from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.ids import PolicyVersion
from asyncrl.run.buffer.inspect_buffer import inspect_run
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.measures.totals import FORMAT as TOTALS_FORMAT
from asyncrl.run.measures.totals import SavedTotals
from asyncrl.run.recipe.compose import compose
from asyncrl.run.resume import check_resumable, totals_at

WRITTEN_BEFORE = Path(__file__).resolve().parents[2] / "data" / "9e1bf04" / "run"
REMEDY = "resume it with the asyncrl that wrote it"
REFUSED = rf"has format 4, and this version of asyncrl reads format {FORMAT}; {REMEDY}"


@pytest.fixture
def run(tmp_path):
    """A copy of the run folder: 4 training steps, completed."""
    return RunFolder(Path(shutil.copytree(WRITTEN_BEFORE, tmp_path / "run")))


def test_recipe_summary_logs_and_episodes_are_read(run, tmp_path, capsys):
    assert compose(str(run.recipe)).steps == 4
    summary = Summary.read(run.summary)
    assert (summary.status, summary.steps, summary.evaluation.first, summary.ledger.trained) == (Status.COMPLETED, 4, 0.375, 16)
    assert main(["logs", str(run.path)]) == ExitCode.COMPLETED
    assert "version 4: evaluation reward 0.375 over 8 held-out tasks" in capsys.readouterr().out
    for which in [], ["--evaluation"]:
        assert main(["show", str(run.path), *which]) == ExitCode.COMPLETED
        assert "calculator" in capsys.readouterr().out
    page = tmp_path / "report.html"
    assert main(["report", str(run.path), "--output", str(page)]) == ExitCode.COMPLETED
    assert "1,132 generated" in page.read_text()


@pytest.mark.parametrize(("kept", "gone"), [("00000001.log", "00000002.snapshot"), ("00000002.snapshot", "00000001.log")])
def test_a_journal_is_refused_by_file_and_format(run, kept, gone, capsys):
    journal = run.path / "buffer" / "journal"
    (journal / gone).unlink()
    with pytest.raises(UnknownFormat, match=rf"{journal / kept} {REFUSED}"):
        read_journal(journal)
    with pytest.raises(UnknownFormat, match=rf"{kept} {REFUSED}"):
        Journal.open(journal, fsync=False, segment_bytes=1 << 20)
    with pytest.raises(UnknownFormat, match=rf"{kept} {REFUSED}"):
        inspect_run(run.path)
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    with pytest.raises(RecipeError, match=rf"{kept} {REFUSED}"):
        check_resumable(compose(str(run.recipe), ["steps=8"]), run)
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before
    assert main(["buffer", str(run.path)]) == ExitCode.FAILED
    assert REMEDY in " ".join(capsys.readouterr().err.split())


def test_totals_are_refused_by_file_and_format(run):
    totals, problem = totals_at(run.checkpoints, PolicyVersion(4))
    assert totals == SavedTotals()
    file = run.checkpoints / "version-000004.json"
    assert problem.startswith(f"{file} has format 1, and this version of asyncrl reads format {TOTALS_FORMAT}; {REMEDY}")


def test_a_summary_of_another_format_is_refused_by_file_and_format(run, tmp_path):
    run.summary.write_text(run.summary.read_text().replace("{", '{"format": 7,', 1))
    refused = rf"{run.summary} has format 7, and this version of asyncrl reads format 1; {REMEDY}"
    with pytest.raises(UnknownFormat, match=refused):
        Summary.read(run.summary)
    with pytest.raises(UnknownFormat, match=refused):
        _ = asyncrl.Run(run.path).summary
    with pytest.raises(RecipeError, match=f"{refused}; nothing of the run was changed"):
        check_resumable(compose(str(run.recipe), ["steps=8"]), run)
    page = tmp_path / "report.html"
    assert main(["report", str(run.path), "--output", str(page)]) == ExitCode.COMPLETED
    assert "has format 7" in page.read_text(), "the report is made without it, and says so"
