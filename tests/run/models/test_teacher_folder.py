"""A teacher's folder is looked at before anything starts."""

import json
from pathlib import Path

import pytest
from model_folders import SMALL, write_model

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.run.dry_run.plan import Plan, make_plan
from asyncrl.run.models.further_models import weight_bytes
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.process_kinds import TEACHER
from asyncrl.run.recipe.compose import compose

ROOMY = Machine(memory=64 << 30, free=60 << 30, cores=8)
LARGER = {**SMALL, "num_hidden_layers": 3, "intermediate_size": 2 * SMALL["intermediate_size"]}


def plan(policy: Path, teacher: str, *overrides: str) -> Plan:
    named = [f"model.path={policy}", f"+algorithm.teacher={{path: {teacher}}}", "model.max_context=256"]
    return make_plan(compose("quickstart", [*named, *overrides]), ROOMY)


def test_a_larger_teacher_of_the_same_tokens_is_planned(tmp_path: Path):
    policy, teacher = write_model(tmp_path / "policy", SMALL), write_model(tmp_path / "teacher", LARGER)
    planned = plan(policy, str(teacher), "+algorithm.teacher.engines=2")
    (engines,) = [each for each in planned.processes if each.part == TEACHER]
    assert engines.count == 2
    assert str(teacher) in engines.what
    assert (
        weight_bytes(TeacherConfig(path=str(teacher)), "float32") > weight_bytes(TeacherConfig(path=str(policy)), "float32") > 0
    )


def other_tokens(folder: Path) -> None:
    read = json.loads((folder / "tokenizer.json").read_bytes())
    vocabulary = read["model"]["vocab"]
    names = list(vocabulary)
    vocabulary[names[-1]], vocabulary[names[-2]] = vocabulary[names[-2]], vocabulary[names[-1]]
    (folder / "tokenizer.json").write_text(json.dumps(read))


def short(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (
            other_tokens,
            "token '.*' has id [0-9]+ for the policy, and id [0-9]+ in the tokenizer of .*with the policy's tokenizer",
        ),
        (
            short,
            "its 256 positions cannot hold an episode of model.max_context 256 tokens, and one more; lower that to at most 255",
        ),
        (lambda folder: (folder / "config.json").unlink(), "there is no .*config.json; name a Hugging Face folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no safetensors|safetensors"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_by_name(tmp_path: Path, spoil, problem: str):
    policy, teacher = write_model(tmp_path / "policy", SMALL), write_model(tmp_path / "teacher", LARGER)
    spoil(teacher)
    with pytest.raises(RecipeError, match=problem) as caught:
        plan(policy, str(teacher))
    assert caught.value.place == "algorithm.teacher.path"


def test_the_tiny_model_is_no_teacher(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"algorithm\.teacher\.path: tiny is made anew"):
        plan(write_model(tmp_path / "policy", SMALL), "tiny")


@pytest.mark.parametrize(
    ("argument", "place"),
    [
        ("no_such_argument: 1", "algorithm.teacher.engine.no_such_argument"),
        ("max_model_len: 9", "algorithm.teacher.engine.max_model_len"),
    ],
)
def test_arguments_of_its_engines_are_checked(tmp_path: Path, argument: str, place: str):
    policy = write_model(tmp_path / "policy", SMALL)
    with pytest.raises(RecipeError) as caught:
        plan(policy, str(policy), f"+algorithm.teacher.engine={{{argument}}}")
    assert caught.value.place == place
