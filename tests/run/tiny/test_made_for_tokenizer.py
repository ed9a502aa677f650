"""A tiny model is made for a tokenizer that was there before: runs take its folder, which appears whole or not at all."""

import json
from pathlib import Path

import msgspec
import pytest
from model_folders import write_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from asyncrl.cli.main import main
from asyncrl.cli.outcome import ExitCode
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.tiny.settings import Size, WarmUp
from asyncrl.learners.tiny.warmup import WarmUpFailed
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose_for
from asyncrl.run.tiny.made_for_tokenizer import make_for_tokenizer

ENTRIES = 9024
SHORT = WarmUp(
    steps=3,
    lr_steps=1,
    batch_size=4,
    measure_every=2,
    skill=0.0,
    threads=1,
    training_tasks=30,
    held_out_tasks=12,
    size=Size(hidden=32, heads=2, key_value_heads=1, head=16, feed_forward=64, entries=ENTRIES, context=512),
)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return compose_for(Machine.here(), "quickstart", (), str(folder))[0]


def test_the_folder_has_the_tokenizer_the_template_and_all_entries(recipe: Recipe, tmp_path: Path) -> None:
    told: list[str] = []
    made = tmp_path / "made"
    make_for_tokenizer(recipe, made, SHORT, lambda share, text: told.append(text))
    tokenizer, given = AutoTokenizer.from_pretrained(made), AutoTokenizer.from_pretrained(recipe.model.path)
    assert tokenizer.get_vocab() == given.get_vocab()
    assert tokenizer.chat_template == given.chat_template
    assert json.loads((made / "config.json").read_text())["vocab_size"] == ENTRIES
    assert AutoModelForCausalLM.from_pretrained(made).get_input_embeddings().weight.shape == (ENTRIES, 32)
    assert told[-1].startswith("mean reward of held-out tasks")
    assert [each.name for each in tmp_path.iterdir()] == ["made"]


def test_a_model_that_has_not_learned_leaves_nothing(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(WarmUpFailed, match="solves 0% of the tasks"):
        make_for_tokenizer(recipe, tmp_path / "made", msgspec.structs.replace(SHORT, skill=0.8), lambda share, text: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "problem"), [(".", "exists already"), ("no/made", "is no folder")])
def test_where_it_cannot_be_made_it_is_refused_at_once(recipe: Recipe, tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        make_for_tokenizer(recipe, tmp_path / name, SHORT, lambda share, text: None)


def test_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = main(["tiny", "quickstart", "--tokenizer", str(tmp_path), "--to", str(tmp_path / "made")])
    assert code == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert "--tokenizer" in said
    assert "holds no tokenizer" in said
