"""Which recipes a plan compares, and which of them are worth choosing."""

import pytest
from made_predictions import made_prediction

from asyncrl.core.errors import RecipeError
from asyncrl.planning.grid import front, points, read_axis, splits, verdict
from asyncrl.run.recipe.compose import compose


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("generators.count=1:4", ("1", "2", "3", "4")),
        ("generators.count=2:8:3", ("2", "5", "8")),
        ("buffer.max_staleness=0,1,8", ("0", "1", "8")),
        ("buffer.on_stale=mask,drop", ("mask", "drop")),
    ],
)
def test_an_axis_is_a_span_or_a_list(text: str, values: tuple[str, ...]):
    assert read_axis(text).values == values


@pytest.mark.parametrize("text", ["generators.count", "=1:2", "a=", "a=4:1", "a=x:3", "a=1:2:3:4", "a=1:9:0", "a=8:1:-1", "a=,"])
def test_what_is_no_axis_is_refused(text: str):
    with pytest.raises(RecipeError, match="--vary"):
        read_axis(text)


def test_a_grid_has_every_combination_and_an_end():
    found = points([read_axis("a=1,2"), read_axis("b=x,y")])
    assert found == [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]
    assert points([]) == [()]
    with pytest.raises(RecipeError, match="1,000 points"):
        points([read_axis("a=1:1000")])


def test_a_budget_is_divided_without_remainder_where_it_can_be():
    recipe = compose("quickstart", ["learner.tensor_parallel=2", "generators.tensor_parallel=2"])
    found = splits(recipe, 16)
    sizes = {tuple(int(each.split("=")[1]) for each in point[:2]) for point in found}
    assert all(2 * ranks + 2 * engines == 16 for ranks, engines in sizes)
    assert {ranks for ranks, _ in sizes} == set(range(1, 8))
    with pytest.raises(RecipeError, match="too few"):
        splits(recipe, 3)


def test_the_front_has_what_nothing_else_beats_in_both():
    predictions = [
        made_prediction(10, 2.0, name="a"),
        made_prediction(8, 1.0, name="b"),
        made_prediction(7, 1.5, name="c"),
        made_prediction(10.1, 3.0, name="d"),
    ]
    assert [predictions[place].name for place in front(predictions)] == ["b", "a"]


def test_synchronous_training_is_named_where_it_is_as_fast():
    fast = [made_prediction(10, 2.0, name="a")]
    assert verdict(fast, made_prediction(9.95, 0.0, name="s")).startswith("synchronous is better")
    assert "synchronous training would be slower" in verdict(fast, made_prediction(6, 0.0, name="s"))
