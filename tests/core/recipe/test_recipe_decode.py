from typing import Any

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.decode import decode_recipe
from asyncrl.core.recipe.loss import DivergenceMaskLossConfig
from asyncrl.core.recipe.tasks import FileTasksConfig, GeneratedTasksConfig, TaskFileConfig


def mapping(**sections: Any) -> dict[str, Any]:
    return {"name": "x", "steps": 3, "model": {"path": "tiny"}, "environment": {"name": "calculator"}, **sections}


def refusal(**sections: Any) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        decode_recipe(mapping(**sections))
    return caught.value


def test_defaults_are_filled_in():
    recipe = decode_recipe(mapping(learner={"lr": 1}))
    assert recipe.learner.lr == 1.0
    assert recipe.learner.clip_grad == 1.0
    assert recipe.tasks == GeneratedTasksConfig()


@pytest.mark.parametrize(
    ("sections", "place", "meant"),
    [
        ({"learner": {"lrr": 1}}, "learner.lrr", "did you mean `learner.lr`?"),
        ({"lerner": {}}, "lerner", "did you mean `learner`?"),
        ({"lr": 1}, "lr", "did you mean `learner.lr`?"),
        ({"train": {"lr": 1}}, "train.lr", "did you mean `learner.lr`?"),
        ({"buffer": {"staleness": 1}}, "buffer.staleness", "did you mean `buffer.max_staleness`?"),
        ({"data": {"train": 1}}, "data.train", "did you mean `environment.train` or `tasks.train`?"),
        ({"data": {"zzz": 1}}, "data", "the keys of a recipe are name, steps, model"),
        ({"batch": {"zzz": 1}}, "batch.zzz", "the keys of batch are groups_per_step, group_size"),
        (
            {"algorithm": {"loss": {"kind": "ppo_clip", "cliplow": 1}}},
            "algorithm.loss.cliplow",
            "did you mean `algorithm.loss.clip_low`?",
        ),
        (
            {"algorithm": {"aggregation": {"kind": "token_mean", "zzz": 2}}},
            "algorithm.aggregation.zzz",
            "algorithm.aggregation of kind token_mean has no keys; take it out",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_real_one(sections, place, meant):
    error = refusal(**sections)
    assert (error.place, error.problem) == (place, "unknown key")
    assert meant in error.remedy


def test_a_key_of_another_kind_says_so_since_it_may_come_from_the_recipe_that_is_extended():
    member = {"name": "calculator"}
    error = refusal(environment={"name": "calculator", "kind": "mixed", "members": {"easy": member, "hard": member}})
    assert (error.place, error.problem) == ("environment.name", "a key of kind class, and not of kind mixed")
    assert "a recipe in its list `defaults` has it" in error.remedy
    assert "on the command line, as environment={kind: mixed, ...}, which takes its place" in error.remedy


def test_a_key_of_other_kinds_names_them_since_one_may_have_been_forgotten():
    error = refusal(algorithm={"kl": {"coefficient": 0.1}})
    assert "set algorithm.kl.kind to one of in_loss, in_reward, or take it out" in error.remedy


@pytest.mark.parametrize(
    ("sections", "place", "seen", "right"),
    [
        ({"steps": 0}, "steps", "0", "an integer >= 1"),
        ({"steps": "3"}, "steps", "'3'", "an integer >= 1; write it without quotes"),
        ({"learner": {"lr": "1e-4"}}, "learner.lr", "'1e-4'", "a number > 0; write it without quotes"),
        ({"evaluation": {"pinned": "true"}}, "evaluation.pinned", "'true'", "true or false; write it without quotes"),
        ({"steps": 2.5}, "steps", "2.5", "an integer >= 1"),
        ({"steps": True}, "steps", "True", "an integer >= 1"),
        ({"steps": 10**20}, "steps", "1000", "an integer >= 1, and <= 1,000,000,000"),
        ({"steps": 10**9 + 1}, "steps", "1000000001", "an integer >= 1, and <= 1,000,000,000"),
        ({"batch": {"min_group": 10**10}}, "batch.min_group", "10000000000", "an integer >= 1 or null, and <= 1,000,000,000"),
        ({"seed": 2**31}, "seed", "2147483648", "an integer >= 0 and < 2,147,483,648"),
        ({"tasks": {"train": 10**9}}, "tasks.train", "1000000000", "an integer >= 1 and <= 1,000,000"),
        ({"deadlines": {"start": 1e300}}, "deadlines.start", "1e+300", "a number > 0 and <= 1e+08"),
        ({"run_dir": "a\udcff"}, "run_dir", r"'a\udcff'", "characters that UTF-8 can hold"),
        ({"generators": {"dtype": "\udcff"}}, "generators.dtype", r"'\udcff'", "must be one of bfloat16, float16, float32"),
        ({"steps": "\udcff"}, "steps", r"'\udcff'", "must be an integer >= 1"),
        ({"environment": {"name": "x", "options": {"a": ["\ud800"]}}}, "environment.options", r"\ud800", "characters that UTF-8"),
        ({"sampling": {"temperature": 2.5}}, "sampling.temperature", "2.5", "a number >= 0.01 and <= 2"),
        ({"sampling": {"temperature": 0.001}}, "sampling.temperature", "0.001", "a number >= 0.01 and <= 2"),
        ({"evaluation": {"temperature": 2.5}}, "evaluation.temperature", "2.5", "a number >= 0 and <= 2"),
        ({"learner": {"lr": -1e-4}}, "learner.lr", "-0.0001", "a number > 0"),
        ({"learner": {"lr": float("nan")}}, "learner.lr", "nan", "a number > 0"),
        ({"learner": {"clip_grad": float("inf")}}, "learner.clip_grad", "inf", "finite"),
        ({"deadlines": {"batch": float("inf")}}, "deadlines.batch", "inf", "a number > 0 and <= 1e+08"),
        ({"learner": {"min_lr_ratio": 1.5}}, "learner.min_lr_ratio", "1.5", "a number >= 0 and <= 1"),
        ({"generators": {"dtype": "int8"}}, "generators.dtype", "'int8'", "one of bfloat16, float16, float32"),
        ({"environment": {"name": ""}}, "environment.name", "''", "text, not empty"),
        ({"environment": {"name": "x", "options": 3}}, "environment.options", "3", "a mapping"),
        ({"name": "../x"}, "name", "'../x'", "text matching"),
        ({"learner": None}, "learner", "null", "lr, warmup_steps"),
        ({"model": "tiny"}, "model", "'tiny'", "path, max_context"),
        ({"tasks": "mine.jsonl"}, "tasks", "'mine.jsonl'", "set tasks.kind to one of generated, files"),
        ({"algorithm": {"credit": {"kind": "token"}}}, "algorithm.credit.kind", "'token'", "one of episode, turn"),
        ({"algorithm": {"loss": {"kind": ["gspo"]}}}, "algorithm.loss.kind", "['gspo']", "one of"),
        ({"algorithm": {"advantage": {"kind": "vtrace"}}}, "algorithm.advantage.kind", "'vtrace'", "one of grpo"),
    ],
)
def test_a_wrong_value_is_refused_with_place_value_and_what_is_right(sections, place, seen, right):
    error = refusal(**sections)
    assert error.place == place
    assert seen in error.problem
    assert right in error.remedy


def test_a_kind_that_is_not_known_is_refused_with_the_one_that_was_meant():
    error = refusal(algorithm={"loss": {"kind": "ppo"}})
    assert error.remedy.startswith("did you mean `ppo_clip`? it must be one of ppo_clip, gspo")
    assert refusal(algorithm={"loss": {"kind": "gsp"}}).remedy.startswith("did you mean `gspo`?")
    assert refusal(algorithm={"loss": {"kind": "mine"}}).remedy.startswith("must be one of")


def test_bounds_may_be_reached():
    recipe = decode_recipe(mapping(steps=10**9, seed=2**31 - 1, tasks={"train": 10**6}))
    assert (recipe.steps, recipe.seed, recipe.tasks) == (10**9, 2**31 - 1, GeneratedTasksConfig(train=10**6))


def test_required_keys_are_asked_for():
    with pytest.raises(RecipeError) as caught:
        decode_recipe({})
    texts = [str(caught.value), *caught.value.__notes__]
    assert [text.split(":")[0] for text in texts] == ["name", "steps", "model", "environment"]
    assert "must be a section with path" in texts[2]


def test_everything_wrong_is_told_at_once():
    error = refusal(learner={"lr": -1, "lrr": 2}, steps=0)
    assert error.place == "steps"
    assert len(error.__notes__) == 2


def test_a_kind_left_out_is_the_default_s():
    recipe = decode_recipe(mapping(algorithm={"loss": {"low": 0.1}}, tasks={"train": 7}))
    assert recipe.algorithm.loss == DivergenceMaskLossConfig(low=0.1)
    assert recipe.tasks == GeneratedTasksConfig(train=7)


def files(**keys: Any) -> dict[str, Any]:
    return {"kind": "files", "train": [{"path": "a.jsonl"}], "evaluation": [{"path": "b.jsonl"}], **keys}


def test_another_kind_has_its_own_keys():
    recipe = decode_recipe(mapping(tasks=files(train=[{"path": "a.jsonl"}, {"path": "c.parquet", "weight": 2}])))
    train = (TaskFileConfig(path="a.jsonl"), TaskFileConfig(path="c.parquet", weight=2.0))
    assert recipe.tasks == FileTasksConfig(train=train, evaluation=(TaskFileConfig(path="b.jsonl"),))
    assert refusal(tasks={"kind": "files", "train": [{"path": "a.jsonl"}]}).place == "tasks.evaluation"


@pytest.mark.parametrize(
    ("sections", "place", "told"),
    [
        ({"tasks": files(train=[{"path": "a"}, {"path": "b", "wieght": 2}])}, "tasks.train[1].wieght", "`tasks.train[1].weight`"),
        ({"tasks": files(train=[{"path": "a", "weight": 0}])}, "tasks.train[0].weight", "a number > 0"),
        ({"tasks": files(train=[{"weight": 1}])}, "tasks.train[0].path", "missing"),
        ({"tasks": files(train=["a.jsonl"])}, "tasks.train[0]", "path, split"),
        ({"tasks": files(train="a.jsonl")}, "tasks.train", "a list of at least 1 section, each with path, split"),
        ({"tasks": files(train=[])}, "tasks.train", "a list of at least 1 section"),
        ({"tasks": files(curriculum={"nam": "a:B"})}, "tasks.curriculum.nam", "`tasks.curriculum.name`"),
        ({"buffer": {"filters": [{"kind": "zero"}]}}, "buffer.filters[0].kind", "one of zero_variance, accuracy_window"),
        ({"buffer": {"filters": None}}, "buffer.filters", "a list of sections"),
        ({"batch": {"min_group": 0}}, "batch.min_group", "an integer >= 1 or null"),
    ],
)
def test_lists_of_sections_and_what_may_be_null_are_checked_key_by_key(sections, place, told):
    error = refusal(**sections)
    assert error.place == place
    assert told in str(error)


def test_what_may_be_null_can_be_null_or_given():
    assert decode_recipe(mapping(batch={"min_group": None}, tasks=files(curriculum=None))).batch.min_group is None
    tasks = files(train=[{"path": "a.jsonl"}, {"path": "c.jsonl"}], curriculum={"name": "a:B", "options": {"x": 1}})
    recipe = decode_recipe(mapping(batch={"min_group": 3}, tasks=tasks))
    assert recipe.batch.min_group == 3
    assert recipe.tasks.curriculum.options == {"x": 1}


def test_no_correction_is_right_for_synchronous_training():
    uncorrected = {"correction": {"anchor": "proximal_recomputed", "weight": "none"}}
    recipe = decode_recipe(mapping(algorithm=uncorrected, buffer={"max_staleness": 0, "pipeline_depth": 0}))
    assert recipe.algorithm.correction == CorrectionConfig(anchor="proximal_recomputed", weight="none")


@pytest.mark.parametrize(
    ("sections", "place"),
    [({"tracking": {"experiment": 1000.0}}, "tracking.experiment"), ({"run_dir": 10}, "run_dir"), ({"name": False}, "name")],
)
def test_what_yaml_took_for_something_else_than_text_is_to_be_quoted(sections, place):
    error = refusal(**sections)
    assert error.place == place
    key = place.rpartition(".")[2]
    assert f'such as no, 1e3 and 012 for truth values and numbers: quote it, as in {key}: "no"' in error.remedy


def test_a_number_where_a_number_belongs_is_not_to_be_quoted():
    assert "quote" not in refusal(steps=-1).remedy
