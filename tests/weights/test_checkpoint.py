import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from asyncrl.core.errors import WeightMismatch
from asyncrl.core.publication import ShardRecord
from asyncrl.weights.checkpoint import Checkpoint


def record(name: str, *shape: int) -> ShardRecord:
    return ShardRecord(name, shape, (0,) * len(shape), shape, "float32", 0, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file({"embed": torch.zeros(4, 2)}, tmp_path / "model-1.safetensors")
    save_file({"norm": torch.zeros(2)}, tmp_path / "model-2.safetensors")
    save_file({"unnamed": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    named = {"embed": "model-1.safetensors", "norm": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    return tmp_path


def test_takes_exactly_the_tensors_of_the_folder(folder: Path) -> None:
    checkpoint = Checkpoint(str(folder))
    checkpoint.check([record("embed", 4, 2), record("norm", 2)])
    checkpoint.check([record("embed", 4, 2), record("norm", 2), record("lm_head.weight", 4, 2)])


@pytest.mark.parametrize(
    ("published", "problem"),
    [
        ([record("embed", 4, 2)], "lacks norm,"),
        ([record("embed", 4, 2), record("norm", 2), record("bias", 2)], "has unknown bias,"),
        ([record("embed", 2, 4), record("norm", 2)], r"has embed as \[2, 4\] instead of \[4, 2\]"),
    ],
)
def test_names_what_does_not_fit(folder: Path, published: list[ShardRecord], problem: str) -> None:
    with pytest.raises(WeightMismatch, match=problem):
        Checkpoint(str(folder)).check(published)


def test_refuses_a_folder_it_cannot_compare_with(tmp_path: Path) -> None:
    with pytest.raises(WeightMismatch, match="holds neither"):
        Checkpoint(str(tmp_path))
