import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.recipe.compose import compose
from asyncrl.run.recipe.sweep_axes import read_axes


@pytest.mark.parametrize(
    ("override", "key", "values"),
    [
        ("buffer.max_staleness=0,2,4", "buffer.max_staleness", ("0", "2", "4")),
        ("seed=range(3)", "seed", ("0", "1", "2")),
        ("learner.lr=range(0.25,1,0.25)", "learner.lr", ("0.25", "0.5", "0.75")),
        ("learner.lr=range(0.1,0.5,0.1)", "learner.lr", ("0.1", "0.2", "0.3", "0.4")),
        ("learner.lr=range(0,0.9,0.3)", "learner.lr", ("0.0", "0.3", "0.6")),
        ("learner.lr=range(3e-5,0,-1e-5)", "learner.lr", ("3e-05", "2e-05", "1e-05")),
        ("seed=sort(range(3),reverse=true)", "seed", ("2", "1", "0")),
        ("steps=choice(1,2)", "steps", ("1", "2")),
        ("environment.keep_traffic=true,False", "environment.keep_traffic", ("true", "false")),
        ("steps=sort(3,1,2)", "steps", ("1", "2", "3")),
        ("+pace=glob(*)", "+pace", ("synchronous",)),
        ("algorithm.loss={kind:ppo},{kind:dppo}", "algorithm.loss", ("{kind:ppo}", "{kind:dppo}")),
    ],
)
def test_what_hydra_calls_a_sweep_is_read(override, key, values):
    varied = read_axes("quickstart", ["steps=5" if key != "steps" else "seed=5", override])
    (axis,) = varied.axes
    assert (axis.key, axis.values) == (key, values)
    assert varied.fixed == ("steps=5" if key != "steps" else "seed=5",)


def test_each_value_stands_for_itself_as_an_override():
    text = "environment.options.note"
    (axis,) = read_axes("quickstart", [f"{text}='a,b','${{c}}',\"it's\",d\\,e,null"]).axes
    notes = [compose("quickstart", [f"{axis.key}={value}"]).environment.options["note"] for value in axis.values[2:]]
    assert (axis.values[0], notes) == ("'a,b'", ["it's", "d,e", None])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["learner.lr=interval(0,1)"], "names an interval, of which no list can be made"),
        (["steps=range(0,3,0)"], "steps of 0 and no end"),
        (["learner.lr=range(0,nan,1)"], "does not go from one number to another"),
        (["learner.lr=range(0,inf,1)"], "does not go from one number to another"),
        (["steps=shuffle(range(1,1000000000))"], "more than 400 values"),
        (["steps=range(1,1000000000)"], "more than 400 values"),
        (["steps=range(3,3)"], "gives it no value"),
        (["+pace=glob(no*)"], "it chooses from a config group: synchronous"),
        (["steps=1,1"], "gives it the value 1 twice"),
        (["steps=1,2", "steps=3"], "swept, and given a second time"),
        (["steps=3", "steps=1,2"], "swept, and given a second time"),
        (["steps=1,2)"], "cannot read the override 'steps=1,2)'"),
    ],
)
def test_what_gives_no_list_of_values_is_refused(overrides, told):
    with pytest.raises(RecipeError) as refused:
        read_axes("quickstart", overrides)
    assert told in str(refused.value)
