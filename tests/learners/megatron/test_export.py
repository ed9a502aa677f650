"""A checkpoint becomes the Hugging Face folder of its version, to the bit, whichever ranks wrote it."""

import json

import export_side
import pytest
from learner_samples import make_model, make_recipe
from ranks import RankFailed, run_ranks
from safetensors.torch import load_file
from test_learner_checkpoint import assert_identical, train_and_save

from asyncrl.core.recipe.learner import LoraConfig

CASES = {
    "tp2-pp2": {"grid": (2, 2, 1)},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"lora": LoraConfig(rank=2, alpha=4.0)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_the_folder_holds_the_weights_that_were_published(folder, tmp_path, options):
    source, target = tmp_path / "version-000008", tmp_path / "models" / "eight"
    saved, _, _ = train_and_save(folder, source, **options)
    tensor, pipeline, data = options.get("grid", (1, 1, 1))
    learner = {name: value for name, value in options.items() if name != "grid"}
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data, **learner)
    assert run_ranks(export_side.export, recipe, folder, source, target) == [8]
    stored = load_file(target / "model.safetensors")
    assert_identical({name: tensor.double().numpy() for name, tensor in stored.items()}, saved)
    assert json.loads((target / "config.json").read_text())["dtype"] == learner.get("dtype", "float32")
    with pytest.raises(RankFailed, match="FileExistsError"):
        run_ranks(export_side.export, recipe, folder, source, target)


def test_a_checkpoint_of_another_model_is_refused(folder, tmp_path):
    source = tmp_path / "version-000008"
    train_and_save(folder, source)
    recipe = make_recipe(folder, dtype="bfloat16")
    with pytest.raises(RankFailed, match="is of another model: dtype float32"):
        run_ranks(export_side.export, recipe, folder, source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
