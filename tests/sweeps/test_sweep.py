import msgspec
import pytest
from made_sweep import made_sweep

from asyncrl.core.errors import RecipeError
from asyncrl.run.recipe.sweep_axes import Axis, Varied
from asyncrl.sweeps.sweep import check_asked, seeds_of, settings_of, split_seeds


def test_settings_are_all_combinations_named_by_the_ends_of_their_keys():
    found = settings_of([Axis("buffer.max_staleness", ("0", "4")), Axis("+pace", ("'a b'", "c\\,d"))])
    assert [each.name for each in found] == [
        "max_staleness=0 pace=a b",
        "max_staleness=0 pace=c,d",
        "max_staleness=4 pace=a b",
        "max_staleness=4 pace=c,d",
    ]
    assert found[1].overrides == ("buffer.max_staleness=0", "+pace=c\\,d")


def test_keys_that_end_alike_are_named_in_full():
    (setting,) = settings_of([Axis("learner.dtype", ("float32",)), Axis("generators.dtype", ("bfloat16",))])
    assert setting.name == "learner.dtype=float32 generators.dtype=bfloat16"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (("1", "'1'"), ["1", "'1'"]),
        (("null", "'null'"), ["null", "'null'"]),
        (("true", '"true"', "'x'"), ["true", '"true"', "'x'"]),
        (("[1\\,2]", "[1,2]"), ["[1\\,2]", "[1,2]"]),
        (("'it\\'s'", '"a\\"b"', "'c\\\\'", "d\\,e", "''"), ["it's", 'a"b', "c\\", "d,e", ""]),
        (("{a:'b c'}", "[1,'2']"), ["{a:'b c'}", "[1,'2']"]),
        (("1e-05", "0.5", "2"), [1e-05, 0.5, 2.0]),
    ],
)
def test_values_are_those_that_were_meant_and_no_two_settings_look_alike(values: tuple[str, ...], shown: list[str | float]):
    sweep = made_sweep(Axis("environment.options.note", values))
    assert [sweep.values_of(number)["environment.options.note"] for number in range(len(values))] == shown
    assert len({setting.name for setting in sweep.settings}) == len(values)


def test_points_come_seed_by_seed_and_have_names_for_files_of_their_own():
    losses = Axis("algorithm.loss", ("{kind:ppo,clip:" + "0.2" * 40 + "}", "{kind:ppo,clip:" + "0.2" * 40 + "0}"))
    sweep = made_sweep(losses, seeds=(3, 4))
    assert [(point.setting, point.seed) for point in sweep.points] == [(0, 3), (1, 3), (0, 4), (1, 4)]
    names = [point.name for point in sweep.points]
    assert len(set(names)) == 4
    assert all(len(name) < 80 and name.replace("-", "").replace(".", "").replace("_", "").isalnum() for name in names)


def test_what_a_plan_drops_is_no_point():
    settings = settings_of([Axis("steps", ("1", "2"))])
    dropped = (settings[0], msgspec.structs.replace(settings[1], dropped="slow"))
    assert {point.setting for point in made_sweep(settings=dropped).points} == {0}


def test_seeds_begin_at_the_recipes_or_are_those_of_the_key():
    varied = Varied((Axis("steps", ("1", "2")), Axis("seed", ("7", "9"))), ())
    swept, left = split_seeds(varied, None)
    assert [axis.key for axis in left.axes] == ["steps"]
    assert seeds_of(swept, None, 0) == (7, 9)
    assert seeds_of(None, 3, 5) == (5, 6, 7)
    assert seeds_of(None, None, 5) == (5,)


@pytest.mark.parametrize(
    ("values", "asked"),
    [(("1", "x"), None), (("1", "2"), 3), (("1", "01"), None), (("-1", "2"), None), ((str(2**31), "0"), None)],
)
def test_seeds_that_are_none_or_given_twice_are_refused(values, asked):
    with pytest.raises(RecipeError, match=r"^seed: "):
        split_seeds(Varied((Axis("seed", values),), ()), asked)


def test_a_last_seed_that_is_too_large_is_refused():
    with pytest.raises(RecipeError, match=r"the last of the seeds would be 2,147,483,648"):
        seeds_of(None, 2, 2**31 - 1)


@pytest.mark.parametrize(
    ("axes", "seeds", "told"),
    [
        ((), 1, "only one run"),
        ((Axis("steps", tuple(map(str, range(40)))), Axis("seed", tuple(map(str, range(40))))), 1, "has 1,600 runs"),
        ((Axis("name", ("a", "b")),), 1, "keeps them in one folder"),
        ((Axis("++run_dir", ("a", "b")),), 1, "keeps them in one folder"),
    ],
)
def test_what_is_no_sweep_is_refused(axes, seeds, told):
    with pytest.raises(RecipeError, match=told):
        check_asked(Varied(axes, ()), seeds)
