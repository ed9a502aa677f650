"""What the kept episodes say of a training step: which of their tokens moved the policy, and how many went which way."""

import math

import pytest
from made_episodes import row, write

from asyncrl.episodes.reader import EpisodeReader
from asyncrl.run.report import trained_steps as module
from asyncrl.run.report.trained_steps import TrainedStep, trained_steps


def steps(folder, rows) -> list[TrainedStep]:
    write(folder, rows, "train")
    return trained_steps(EpisodeReader(folder / "trajectories"), 0, None)


def moved(step: int, turn: int, token: int, advantage: float, weight: float, **changed: object) -> dict:
    made = row(step, **changed)
    place = made["turns"][turn - 1]["start"] + token - 1
    lists = {"advantages": advantage, "weights": weight, "learner_logprobs": math.log(0.25)}
    return {**made, **{name: [*made[name][:place], value, *made[name][place + 1 :]] for name, value in lists.items()}}


def test_the_tokens_of_the_largest_pull_are_named_with_what_it_is_made_of(tmp_path):
    rows = [row(1), moved(2, 2, 3, -8.0, 0.5, task_id="hard", reward=0.0), row(2, reward=1.0, task_id="easy", group_id=7)]
    first, second = steps(tmp_path, rows)
    assert (first.step, first.rows, first.tasks) == (1, 1, 1)
    assert (second.step, second.rows, second.tasks) == (2, 2, 2)
    assert (second.lowest, second.mean, second.highest) == (0.0, 0.5, 1.0)
    assert (second.up, second.down) == (15, 1)
    token = second.tokens[0]
    assert (token.task, token.turn, token.advantage, token.weight, token.probability) == ("hard", 2, -8.0, 0.5, 0.25)
    assert token.pull == pytest.approx(8 * 0.5 * 0.75)
    place = rows[1]["turns"][1]["start"] + 2
    assert token.token == f"⟨{rows[1]['token_ids'][place]}⟩"
    assert token.text == rows[1]["turns"][1]["text"]
    assert len(second.tokens) == module.TOKENS_EACH
    assert second.pull > sum(each.pull for each in second.tokens)


def test_what_no_loss_saw_moves_nothing_and_what_has_no_weights_counts_as_it_is(tmp_path):
    unseen = {**row(1), "learner_logprobs": None, "advantages": None, "weights": None}
    ((only),) = steps(tmp_path, [unseen, {**row(1), "weights": None}])
    assert (only.rows, only.up, only.down) == (2, 8, 0)
    assert {each.weight for each in only.tokens} == {1.0}


def test_of_many_steps_some_are_explained_the_last_among_them(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_STEPS", 3)
    assert [each.step for each in steps(tmp_path, [row(step) for step in range(1, 11)])] == [1, 5, 10]
