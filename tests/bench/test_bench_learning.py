"""The learning benchmark without its runs, which take minutes each: the recipes of its rows, its file and its table."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from asyncrl.bench import learning
from asyncrl.bench.learning import ROWS, CannotContinue, LearningResult, LearningRun, LearningSettings, MeasurementInterrupted
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.rules.broken_rules import broken_rules

MODEL = Path("/models/tiny, made once")
FIRST, SECOND = ROWS[0], next(row for row in ROWS if row.name == "critic")
SETTINGS = LearningSettings(rows=(FIRST, SECOND), seeds=(3, 5), steps=20)


@pytest.fixture
def measured(monkeypatch):
    """Stands in for the processes: what was measured, and by row and seed what comes of it instead of a result."""
    done, raising = [], {}

    def in_own_process(work, *arguments):
        if work is learning._make_model:
            return MODEL
        row, seed, settings, model = arguments
        assert model == MODEL
        done.append((row.name, seed))
        if error := raising.get(done[-1]):
            raise error
        return LearningRun(row.name, seed, evaluations={0: 0.4, 10: 0.8 + seed / 50, settings.steps: 0.95}, seconds=100.0)

    monkeypatch.setattr(learning, "in_own_process", in_own_process)
    return done, raising


def run(tmp_path, settings=SETTINGS):
    return learning.run(tmp_path / "learning.json", Console(file=io.StringIO()), settings)


def written(tmp_path):
    return msgspec.json.decode((tmp_path / "learning.json").read_bytes(), type=LearningResult)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_only_the_row_without_correction_breaks_a_rule(row):
    recipe = learning.recipe(row, 2, LearningSettings(), MODEL)
    assert (recipe.seed, recipe.steps, recipe.model.path) == (2, 80, str(MODEL))
    assert [error.place for error in broken_rules(recipe)] == ["algorithm.correction.weight"] * row.uncorrected
    if row.uncorrected:
        with pytest.raises(RecipeError, match="as if they were fresh"):
            decode_recipe(msgspec.to_builtins(recipe))


def test_runs_go_seed_by_seed_and_none_is_repeated(tmp_path, measured):
    done, raising = measured
    raising[FIRST.name, 5] = MeasurementInterrupted()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    assert done == [(FIRST.name, 3), (SECOND.name, 3), (FIRST.name, 5)]
    assert list(written(tmp_path).completed()) == [(FIRST.name, 3), (SECOND.name, 3)]

    raising.clear()
    done.clear()
    result = run(tmp_path)
    assert done == [(FIRST.name, 5), (SECOND.name, 5)]
    assert result == written(tmp_path)
    assert len(result.completed()) == 4


def test_a_run_that_fails_is_recorded_stops_no_other_and_is_done_again(tmp_path, measured):
    done, raising = measured
    raising[SECOND.name, 3] = MemoryError("no room")
    result = run(tmp_path)
    assert len(done) == 4
    assert [r.failure for r in written(tmp_path).runs] == ["", "MemoryError: no room", "", ""]
    assert "| PPO with a critic | failed, 0.400 | failed, 0.950 | 0.950 | failed, 10 |" in learning.markdown(result)
    assert learning.markdown(result).endswith("| 1 of 2 |")

    raising.clear()
    done.clear()
    assert not any(r.failure for r in run(tmp_path).runs)
    assert done == [(SECOND.name, 3)]


def test_a_file_of_other_settings_is_refused_and_stays(tmp_path, measured):
    run(tmp_path)
    before = (tmp_path / "learning.json").read_bytes()
    with pytest.raises(CannotContinue, match=r"steps 20 in the file, 40 now.*name another file"):
        run(tmp_path, msgspec.structs.replace(SETTINGS, steps=40))
    assert (tmp_path / "learning.json").read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"trajectories_per_s": 1}'])
def test_a_file_of_something_else_is_refused_and_stays(tmp_path, measured, content):
    (tmp_path / "learning.json").write_text(content)
    with pytest.raises(CannotContinue, match="holds no result"):
        run(tmp_path)
    assert (tmp_path / "learning.json").read_text() == content


def test_the_table_shows_each_seed_and_where_it_reached_the_bar(tmp_path, measured):
    first = learning.markdown(run(tmp_path)).splitlines()[2]
    expected = "0.400, 0.400 | 0.950, 0.950 | 0.950 | 20, 10 | 0.00, 0.00 | 0, 0 | 100, 100 | 2 of 2 |"
    assert first == f"| {FIRST.title} | {expected}"
    never = LearningRun(FIRST.name, 3, evaluations={0: 0.4, 20: 0.89})
    table = learning.markdown(LearningResult(0.9, SETTINGS, (never,)))
    assert "| never, not run |" in table
    assert table.splitlines()[2].endswith("| 0 of 2 |")
