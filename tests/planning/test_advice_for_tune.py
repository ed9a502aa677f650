"""What the process that ``tune`` asks says of a run's folder."""

from pathlib import Path

from test_fit_run import made_run

from asyncrl.core.recipe.tune import DEPTH
from asyncrl.episodes.reader import EpisodeReader
from asyncrl.episodes.schema import Kind
from asyncrl.planning.advice_for_tune import answer
from asyncrl.planning.kept_episodes import read_kept
from asyncrl.planning.rate_fit import fit_run
from asyncrl.run.tuning.advice_question import AdviceQuestion


def test_settings_are_foreseen_and_those_that_the_rules_refuse_are_left_out(tmp_path: Path):
    run = made_run(tmp_path)
    settings = [{"generators.count": 1, DEPTH: 1}, {"generators.count": 2, DEPTH: 1}, {"generators.count": 1, DEPTH: 9}]
    found = answer(AdviceQuestion(str(run.path), 5, settings))
    assert [each.setting for each in found.foreseen] == settings[:2]
    assert all(each.rate > 0 for each in found.foreseen)


def test_why_nothing_is_foreseen_is_said(tmp_path: Path):
    run = made_run(tmp_path)
    found = answer(AdviceQuestion(str(run.path), 11, [{DEPTH: 1}]))
    assert "has 2 training steps from which rates can be fitted, and 4 are needed" in found.why


def test_only_the_last_steps_and_episodes_count(tmp_path: Path):
    run = made_run(tmp_path)
    assert [each.step for each in fit_run(run.path, since=7).measured] == [7, 8, 9, 10, 11, 12]
    reader = EpisodeReader(run.trajectories)

    def count(since: int, least: int) -> int:
        kept = read_kept(reader, Kind.TRAIN, since, least)
        return 0 if kept is None else kept.count

    assert count(11, 16) == 2 * 16
    assert count(11, 64) == 4 * 16, "older ones, where there are too few"
    assert count(1, 16) == count(0, 10_000) == 12 * 16
