"""Two folders hold the same model: what counts, and what does not."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from asyncrl.run.models import model_identity
from asyncrl.run.models.model_identity import model_files


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with two matrices of 1 MiB, which are not read whole here."""
    monkeypatch.setattr(model_identity, "WHOLE_BYTES", 1 << 10)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write(folder, {"a": torch.zeros(512, 512), "b": torch.ones(512, 512)})
    return folder


def write(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    save_file(weights, folder / "model.safetensors")


def test_a_download_of_the_same_model_is_the_same(model: Path) -> None:
    before = model_files(model)
    assert [file.name for file in before] == ["config.json", "model.safetensors"]
    for path in model.iterdir():
        os.utime(path, (1, 1))
    (model / ".lock").touch()
    assert model_files(model) == before


@pytest.mark.parametrize(
    "weights",
    [
        {"a": torch.zeros(512, 512), "b": torch.full((512, 512), 1.001)},
        {"a": torch.zeros(512, 512), "c": torch.ones(512, 512)},
        {"a": torch.zeros(512, 512), "b": torch.ones(256, 1024)},
        {"a": torch.zeros(512, 512)},
    ],
    ids=["one matrix was trained", "another name", "another shape", "a matrix less"],
)
def test_other_weights_are_another_model(model: Path, weights: dict[str, torch.Tensor]) -> None:
    before = model_files(model)
    write(model, weights)
    assert model_files(model) != before


def test_other_small_files_are_another_model(model: Path) -> None:
    before = model_files(model)
    (model / "config.json").write_text("[]")
    assert model_files(model) != before
    (model / "config.json").write_text("{}")
    (model / "adapter.safetensors").touch()
    assert model_files(model) != before


def test_no_folder_has_no_files(tmp_path: Path) -> None:
    assert model_files(tmp_path / "nowhere") == ()
