"""Looking at a training step: each row's gradient alone, in any layout, and nothing of the step changes by it."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from learner_samples import assemble, make_batch, make_model, make_recipe, untimed
from ranks import run_ranks
from watch_side import watched

from asyncrl.core.batch import Batch

BATCH, EPISODES = make_batch()


def only(*names) -> Batch:
    return msgspec.structs.replace(BATCH, episodes=tuple(each for each in BATCH.episodes if each.name in names))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("layout", [{}, {"data": 2}, {"pipeline": 2, "tensor": 2}], ids=str)
def test_a_step_that_is_looked_at_is_the_same_step(model: Path, layout: dict[str, int]):
    recipe = make_recipe(model, **layout)
    looked, plain = (run_ranks(watched, recipe, model, BATCH, EPISODES, look, **layout) for look in (True, False))
    for name, tensor in assemble([shards for _, _, shards in plain]).items():
        np.testing.assert_array_equal(assemble([shards for _, _, shards in looked])[name], tensor, err_msg=name)
    assert [untimed(readings) for _, readings, _ in looked] == [untimed(readings) for _, readings, _ in plain]
    seen = {name for watch, _, _ in looked for name in watch.seen}
    assert seen == {row.name for row in BATCH.rows}
    every = [norms for watch, _, _ in looked for norms in watch.norms]
    assert all(norms.keys() == seen for norms in every)
    assert all(norms == every[0] for norms in every), "all ranks are told the same"


@pytest.mark.parametrize("layout", [{"data": 2}, {"pipeline": 2, "tensor": 2}], ids=str)
def test_no_layout_changes_the_norms(model: Path, layout: dict[str, int]):
    one, several = (run_ranks(watched, make_recipe(model, **each), model, BATCH, EPISODES, True, **each) for each in ({}, layout))
    (norms,), (elsewhere,) = one[0][0].norms, several[0][0].norms
    assert elsewhere == pytest.approx(norms, rel=1e-4)


def test_the_norms_of_two_rows_bound_that_of_their_step(model: Path):
    batch = only((0, 1), (0, 2))
    ((watch, readings, _),) = run_ranks(watched, make_recipe(model), model, batch, EPISODES, True)
    (norms,) = watch.norms
    # Two rows whose gradients are g and h: the norm of g + h lies between the difference and the sum of theirs.
    low, high = abs(np.subtract(*norms.values())), sum(norms.values())
    assert low <= readings["learner/grad_norm"] <= high
