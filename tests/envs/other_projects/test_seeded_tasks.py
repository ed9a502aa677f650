"""Tasks of environments that differ in their seeds alone."""

import pytest

from asyncrl.envs.other_projects.playing import SEEDS, Seeded


class Game(Seeded):
    """A game that anybody can play."""

    @classmethod
    def check(cls, **options):
        pass


@pytest.mark.parametrize("seed", [0, 7, SEEDS // 7, 2**31 - 1])
def test_no_seed_is_in_training_and_in_evaluation(seed: int):
    train, held_out = (
        {task.data["seed"] for task in Game.make_tasks(split, 7, seed, name="g")} for split in ("train", "evaluation")
    )
    assert len(train) == len(held_out) == 7
    assert max(train) < SEEDS <= min(held_out)
