"""Which recipes a plan compares, and which of them are worth choosing."""

import msgspec
import pytest
from made_predictions import made_prediction

from asyncrl.core.errors import RecipeError
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.planning.grid import axes_to_vary, front, points, shown, splits, verdict
from asyncrl.planning.prediction import Figure
from asyncrl.run.recipe.compose import compose


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("generators.count=1:4", ("1", "2", "3", "4")),
        ("generators.count=2:8:3", ("2", "5", "8")),
        ("generators.count=4", ("4",)),
        ("buffer.max_staleness=0,1,8", ("0", "1", "8")),
        ("buffer.on_stale=mask,drop", ("mask", "drop")),
        ("learner.lora={rank: 4},{rank: 8}", ("{rank:4}", "{rank:8}")),
        ("sampling.stop=[a,b],[c]", ("[a,b]", "[c]")),
        ("model.path=s3://b/m", ("s3://b/m",)),
        ("learner.lora={rank:4}", ("{rank:4}",)),
        ("sampling.stop=[a:b]", ("[a:b]",)),
        ("environment.name='my.module:Tools'", ("'my.module:Tools'",)),
        ('environment.name="my.module:Tools"', ('"my.module:Tools"',)),
        ("environment.name=choice(my.module:Tools)", (r"my.module\:Tools",)),
    ],
)
def test_an_axis_is_a_span_or_a_list(text: str, values: tuple[str, ...]):
    (axis,) = axes_to_vary("quickstart", [text])
    assert axis.values == values


@pytest.mark.parametrize(
    "texts",
    [
        *(["generators.count"], ["=1:2"], ["a="], ["a=4:1"], ["a=x:3"], ["a=1:2:3:4"], ["a=1:9:0"], ["a=8:1:-1"], ["a=,"]),
        *(["a=1,1"], ["a=1,2", "a=3"], ["a=3", "a=4"], ["a=1:10000000000000000000000"]),
    ],
)
def test_what_is_no_axis_is_refused(texts: list[str]):
    with pytest.raises(RecipeError, match="--vary"):
        axes_to_vary("quickstart", texts)


def test_a_value_given_twice_is_to_be_given_once():
    with pytest.raises(RecipeError) as refused:
        axes_to_vary("quickstart", ["generators.count=1,1"])
    assert str(refused.value) == "--vary: 'generators.count=1,1' gives a value twice; give each value once"


def test_a_grid_has_every_combination_and_an_end():
    found = points(axes_to_vary("quickstart", ["a=1,2", "b=x,y"]))
    assert found == [("a=1", "b=x"), ("a=1", "b=y"), ("a=2", "b=x"), ("a=2", "b=y")]
    assert points([]) == [()]
    for texts in (["a=1:1000"], ["a=1:20", "b=1:50"]):
        with pytest.raises(RecipeError, match="1,000 points"):
            points(axes_to_vary("quickstart", texts))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ((), "as it is"),
        (("sampling.temperature=0.5",), "temperature=0.5"),
        (("steps=10", "environment.name=my.module:Tools"), "steps=10 name=my.module:Tools"),
        (("generators.count=1", "generators.pools.a.count=2"), "generators.count=1 generators.pools.a.count=2"),
    ],
)
def test_a_point_is_named_by_keys_without_sections_and_whole_values(overrides: tuple[str, ...], name: str):
    assert shown(overrides) == name


def test_a_budget_is_divided_without_remainder_where_it_can_be():
    recipe = compose("quickstart", ["learner.tensor_parallel=2", "generators.tensor_parallel=2"])
    found = splits(recipe, 16)
    sizes = {tuple(int(each.split("=")[1]) for each in point[:2]) for point in found}
    assert all(2 * ranks + 2 * engines == 16 for ranks, engines in sizes)
    assert {ranks for ranks, _ in sizes} == set(range(1, 8))
    with pytest.raises(RecipeError, match="too few"):
        splits(recipe, 3)


def test_each_rank_of_a_split_has_an_episode_in_each_optimizer_step():
    alone = ["algorithm.advantage={kind: gae}", "batch.group_size=1", "batch.groups_per_step=16", "algorithm.minibatches=4"]
    found = splits(compose("quickstart", alone), 12)
    assert {point[0] for point in found} == {f"learner.data_parallel={ranks}" for ranks in (1, 2, 3, 4)}
    for point in found:
        compose("quickstart", [*alone, *point])
    recipe = compose("quickstart", alone)
    shared = msgspec.structs.replace(recipe, learner=msgspec.structs.replace(recipe.learner, expert_parallel=8))
    with pytest.raises(RecipeError, match=r"batch.groups_per_step 16 is too few for the 8 ranks .* to at least 32$"):
        splits(shared, 40)


def test_ranks_of_a_split_can_divide_the_experts():
    recipe = compose("quickstart", ["batch.groups_per_step=64", "learner.data_parallel=8"])
    recipe = msgspec.structs.replace(recipe, learner=msgspec.structs.replace(recipe.learner, expert_parallel=8))
    assert {point[:2] for point in splits(recipe, 40)} == {
        (f"learner.data_parallel={ranks}", f"generators.count={40 - ranks}") for ranks in (8, 16, 24, 32)
    }
    with pytest.raises(RecipeError, match="8 GPUs are too few for a learner of 8 and an engine of 1"):
        splits(recipe, 8)
    few = msgspec.structs.replace(recipe, batch=msgspec.structs.replace(recipe.batch, groups_per_step=4))
    with pytest.raises(RecipeError, match=r"--gpus: batch.groups_per_step 4 is too few for the 8 ranks .* to at least 8$"):
        splits(few, 40)
    assert ParallelLayout(tensor=2, context=2, expert=4, expert_tensor=2).least_data == 2


def test_the_front_has_what_nothing_else_beats_in_both():
    predictions = [
        made_prediction(10, 2.0, name="a"),
        made_prediction(8, 1.0, name="b"),
        made_prediction(7, 1.5, name="c"),
        made_prediction(10.1, 3.0, name="d"),
    ]
    assert [predictions[place].name for place in front(predictions)] == ["b", "a"]
    predictions.append(made_prediction(6, 0.995, name="as fresh as b, within its interval"))
    assert [predictions[place].name for place in front(predictions)] == ["b", "a"]


def test_synchronous_training_is_named_where_it_is_as_fast():
    fast = [made_prediction(10, 2.0, name="a")]
    assert verdict(fast, made_prediction(9.95, 0.0, name="s")).startswith("synchronous is better")
    assert "synchronous training would be slower" in verdict(fast, made_prediction(6, 0.0, name="s"))


def test_what_waits_in_a_batch_too_old_to_be_trained_counts_for_nothing():
    fresh = made_prediction(10, 1.0, name="fresh")
    old = msgspec.structs.replace(made_prediction(13, 2.0, name="old"), masked=Figure(0.31, 0.3, 0.32))
    assert verdict([fresh, old], None).startswith("fastest: fresh, 10 trajectories/s")
    assert [(fresh, old)[place].name for place in front([fresh, old])] == ["fresh"]
    said = verdict([old], made_prediction(8.9, 0.0))
    assert "synchronous is better" in said, "13 of which 31 % bring nothing are 8.97"
    assert "but 31 % of the sampled tokens are too old" in verdict([old], made_prediction(6, 0.0))
