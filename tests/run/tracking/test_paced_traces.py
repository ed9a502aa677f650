"""Which kept episodes become traces, in virtual time."""

import pytest

from asyncrl.episodes.files import evaluation_file, training_file
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.paced_traces import SHARE, PacedTraces


class World:
    """A store that takes ``cost`` seconds of the processor for each file, and the run's folder."""

    def __init__(self, folder, *overrides, cost=0.1):
        self.folder, self.cost = folder, cost
        self.now = self.busy = 0.0
        self.logged = []
        self.broken = False
        recipe = compose("quickstart", ["steps=9", "learner.warmup_steps=1", *overrides])
        self.beside = []
        stores = {"first": self.log, "second": lambda file, most: self.beside.append(file.name)}
        self.paced = PacedTraces(recipe, folder, stores, lambda name, write: write(), lambda: self.now, lambda: self.busy)

    def log(self, file, most):
        if self.broken:
            raise NotImplementedError("no traces here")
        self.busy += self.cost
        self.logged.append((file.name, most))

    def write(self, *steps, slices=1):
        for step in steps:
            for number in range(slices):
                training_file(self.folder, step, number).touch()


def test_training_steps_take_no_more_than_their_share_of_the_time(tmp_path):
    world = World(tmp_path)
    for step in range(1, 1001):
        world.write(step)
        world.paced.trained(step)
        world.now += 1.0
    expected = 1000 * SHARE / world.cost
    assert expected - 1 <= len(world.logged) <= expected + 1
    assert world.logged[0] == ("train-000001-0.parquet", 8)


def test_a_step_whose_file_comes_later_is_logged_later(tmp_path):
    world = World(tmp_path, cost=0.0)
    for step in range(1, 5):
        world.paced.trained(step)
        world.write(step)
    assert [name for name, _ in world.logged] == [f"train-00000{step}-0.parquet" for step in (1, 2, 3)]
    world.paced.completed()
    world.paced.completed()
    assert [name for name, _ in world.logged][3:] == ["train-000004-0.parquet"]


def test_a_step_is_logged_when_all_slices_have_written_it_and_shares_the_sample_out(tmp_path):
    world = World(tmp_path, "learner.data_parallel=3", "tracking.trajectories.count=4")
    world.write(1)
    world.paced.trained(1)
    assert world.logged == []
    world.write(1, slices=3)
    world.paced.trained(2)
    assert world.logged == [(f"train-000001-{number}.parquet", 2) for number in range(3)]


def test_slices_of_which_nothing_is_kept_are_not_waited_for(tmp_path):
    world = World(tmp_path, "learner.data_parallel=16", cost=0.0)
    for step in (1, 2):
        for number in (3, 11):
            training_file(tmp_path, step, number).touch()
        world.paced.trained(step)
    of_one = [("train-000001-3.parquet", 4), ("train-000001-11.parquet", 4)]
    assert world.logged == of_one
    world.paced.completed()
    assert world.logged == [*of_one, ("train-000002-3.parquet", 4), ("train-000002-11.parquet", 4)]


def test_every_evaluation_is_logged(tmp_path):
    world = World(tmp_path, cost=100.0)
    world.write(1)
    world.paced.trained(1)
    for version in (0, 2, 2):
        for number in range(2):
            evaluation_file(tmp_path, version, f"generator-{number}").touch()
        world.paced.evaluated(version)
    names = [f"evaluation-{version:06d}-generator-{number}.parquet" for version in (0, 2, 2) for number in range(2)]
    assert world.logged[1:] == [(name, 4) for name in names]


@pytest.mark.parametrize("keep", ["none", "all"])
def test_nothing_is_logged_where_nothing_is_kept(tmp_path, keep):
    world = World(tmp_path, f"tracking.trajectories={{keep: {keep}}}")
    world.write(1)
    world.paced.trained(1)
    assert world.logged == ([("train-000001-0.parquet", 8)] if keep == "all" else [])


def test_a_store_without_traces_is_asked_once_and_the_other_goes_on(tmp_path, caplog):
    world = World(tmp_path)
    world.broken = True
    world.write(1)
    world.paced.trained(1)
    world.broken = False
    world.now += 1e6
    world.write(2)
    world.paced.trained(2)
    assert world.logged == []
    assert world.beside == ["train-000001-0.parquet", "train-000002-0.parquet"]
    assert caplog.text.count("has no traces from here on") == caplog.text.count("first has no traces from here on") == 1
