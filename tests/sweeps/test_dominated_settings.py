"""Which settings a plan drops."""

import pytest
from made_predictions import made_prediction

from asyncrl.planning.prediction import Prediction
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recipe.sweep_axes import Axis
from asyncrl.sweeps.dominated_settings import without_dominated
from asyncrl.sweeps.sweep import settings_of


def dropped(axis: Axis, *predictions: Prediction | None, fixed: tuple[str, ...] = ()) -> list[str]:
    import msgspec

    settings = [msgspec.structs.replace(each, foreseen=own) for each, own in zip(settings_of([axis]), predictions, strict=True)]
    recipes = [compose("quickstart", [*fixed, *each.overrides]) for each in settings]
    return [each.dropped for each in without_dominated(settings, recipes)]


MORE = ("+generators.pools.more={count: 16, max_running: 16, dtype: bfloat16}",)
COUNTS = Axis("generators.count", ("1", "2"))


def test_what_is_slower_and_no_fresher_is_dropped_and_says_why():
    first, second = dropped(COUNTS, made_prediction(5.0, 1.0), made_prediction(8.0, 1.0))
    assert second == ""
    assert first == "count=2 is foreseen to be faster and no staler (8 against 5 trajectories/s, staleness 1.00 against 1.00)"


def test_what_is_staler_and_no_faster_is_dropped():
    axis = Axis("buffer.pipeline_depth", ("1", "3"))
    assert dropped(axis, made_prediction(8.0, 1.0), made_prediction(8.0, 2.5))[1].startswith(
        "pipeline_depth=1 is foreseen to be fresher"
    )


@pytest.mark.parametrize(
    ("axis", "one", "other"),
    [
        (COUNTS, made_prediction(5.0, 0.5), made_prediction(8.0, 1.0)),  # each is better in one
        (COUNTS, made_prediction(8.0, 1.0), made_prediction(8.1, 1.0)),  # within the intervals
        (COUNTS, made_prediction(5.0, 1.0, wide=0.5), made_prediction(8.0, 1.0, wide=0.5)),
        (COUNTS, made_prediction(5.0, 1.0, gpus=2), made_prediction(8.0, 1.0, gpus=3)),  # the other takes more
        (COUNTS, None, made_prediction(8.0, 1.0)),
        (Axis("learner.lr", ("1e-4", "1e-5")), made_prediction(5.0, 1.0), made_prediction(8.0, 1.0)),  # they learn differently
        (Axis("batch.group_size", ("4", "8")), made_prediction(5.0, 1.0), made_prediction(8.0, 1.0)),
    ],
)
def test_what_cannot_be_told_or_learns_differently_is_kept(axis, one, other):
    assert dropped(axis, one, other) == ["", ""]


@pytest.mark.parametrize("key", ["count", "max_running"])
def test_sizes_of_further_pools_are_sizes(key):
    axis = Axis(f"generators.pools.more.{key}", ("16", "32"))
    first, second = dropped(axis, made_prediction(5.0, 1.0), made_prediction(8.0, 1.0), fixed=MORE)
    assert first.startswith(f"{key}=32 is foreseen to be faster and no staler")
    assert second == ""


def test_what_further_pools_compute_with_is_none():
    axis = Axis("generators.pools.more.dtype", ("bfloat16", "float32"))
    assert dropped(axis, made_prediction(5.0, 1.0), made_prediction(8.0, 1.0), fixed=MORE) == ["", ""]


def test_of_two_that_would_drop_each_other_one_is_run():
    exact = 1e-6
    found = dropped(COUNTS, made_prediction(8.0, 1.03, wide=exact), made_prediction(7.9, 1.0, wide=exact))
    assert found.count("") == 1
