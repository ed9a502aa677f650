"""Where learner and engine differ is found among kept episodes, with the tokens and what it probably comes from."""

import numpy as np
import pytest
from made_episodes import row, write

from asyncrl.episodes.reader import EpisodeReader
from asyncrl.run.report.gap_table import GapTable, gap_table

FLOATS = {"learner.dtype": "float32", "generators.dtype": "float32"}


def table(tmp_path, rows, recipe=FLOATS, *, routed=False) -> GapTable:
    write(tmp_path, rows, "train")
    found = gap_table(EpisodeReader(tmp_path / "trajectories"), recipe, routed=routed)
    assert found is not None
    return found


def odd(step: int, turn: int, token: int, size: float, **changed: object) -> dict:
    made = row(step, gap=0.0, **changed)
    place = made["turns"][turn - 1]["start"] + token - 1
    learner = list(made["learner_logprobs"])
    learner[place] -= size
    return {**made, "learner_logprobs": learner}


def test_the_worst_tokens_are_named_by_their_place_and_counted_by_what_they_share(tmp_path):
    rows = [row(1, gap=0.0), odd(3, 2, 3, 5.0, sampled_by=0), odd(2, 1, 1, 2.0, turns=1)]
    found = table(tmp_path, rows)
    first, second, *_ = found.worst
    assert (first.task, first.step, first.turn, first.token, first.staleness) == ("train-3", 3, 2, 3, 2)
    assert first.learner - first.engine == pytest.approx(-5.0)
    assert (second.task, second.turn, second.token, second.gap) == ("train-2", 1, 1, pytest.approx(2.0))
    means = {each.what: (round(each.mean, 6), each.tokens) for each in found.means}
    assert means["staleness 2"] == (5 / 8, 8)
    assert means["turn 1"] == (round(2 / 12, 6), 12)
    assert means["turn 2"] == (5 / 8, 8)
    assert means["sampled token 1 to 16"] == (7 / 20, 20)


def at_temperature(step: int, temperature: float) -> dict:
    """As if the engine had sampled at a temperature that the learner does not know: of two tokens, the log-odds are divided."""
    made = row(step, sampled_by=step - 1)
    place = np.arange(len(made["versions"]))
    learner = np.where(made["versions"] >= 0, np.log(0.05 + 0.9 * (place % 7) / 7), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = (learner - np.log(-np.expm1(learner))) / temperature
    engine = np.where(made["versions"] >= 0, -np.log1p(np.exp(-odds)), 0.0)
    return {**made, "logprobs": engine, "learner_logprobs": learner}


@pytest.mark.parametrize(
    ("rows", "recipe", "cause"),
    [
        ([row(1, sampled_by=0, gap=0.0)], FLOATS, "rounding: "),
        ([row(1, sampled_by=0, gap=0.0), row(2, sampled_by=0, gap=0.5)], FLOATS, "stale weights: tokens of older versions"),
        ([row(2, sampled_by=1, gap=0.2), row(2, sampled_by=0, gap=0.5)], FLOATS, "stale weights: fresh tokens differ by 0.2"),
        ([at_temperature(1, 0.7)], FLOATS, "temperature convention: the engine's log-odds are 1.43 times"),
        ([row(1, sampled_by=0, gap=0.05)], FLOATS, "dtype: the gap is no larger than the rounding of bfloat16"),
        ([row(1, sampled_by=0, gap=0.5)], {**FLOATS, "generators.dtype": "bfloat16"}, "dtype: learner (float32) and engines"),
        ([odd(1, 2, 1, 9.0, sampled_by=0)], FLOATS, "template: the first tokens of turns"),
        ([row(1, sampled_by=0, gap=0.5)], FLOATS, "it is of fresh tokens"),
        ([row(3, sampled_by=0, gap=0.5)], FLOATS, "so its cause cannot be told"),
    ],
)
def test_a_cause_is_told_where_it_can_be(tmp_path, rows, recipe, cause):
    assert cause in table(tmp_path, rows, recipe).cause


@pytest.mark.parametrize(("recipe", "named"), [(FLOATS, True), ({**FLOATS, "learner.experts.replay": "true"}, False)])
def test_experts_are_told_where_each_side_chooses_its_own(tmp_path, recipe, named):
    found = table(tmp_path, [row(1, sampled_by=0, gap=0.5)], recipe, routed=True)
    assert ("routing of experts" in found.cause) is named
