"""What others' tools leave in the folders of models: one folder with all of it that learner and engines take."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"


def change_config(folder: Path, *without: str, **changes: object) -> None:
    """Set keys of a folder's config.json, and take others away."""
    file = folder / "config.json"
    read = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in read.items() if key not in without}))


def make_foreign(folder: Path) -> dict[str, Tensor]:
    """Rewrite the folder of a model with a tied output layer as others might have saved it; return the model's own tensors.

    Norms are float32 and all else float16, config.json names no type; there are three files with an index, a redundant output
    layer, frequencies that old releases stored, and a file of which the index says nothing.
    """
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    mixed = {name: tensor.to(torch.float32 if "norm" in name else torch.float16) for name, tensor in whole.items()}
    stored = mixed | {
        "lm_head.weight": mixed["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(16),
    }
    names = sorted(stored)
    files = {f"part-{number}.safetensors": names[number::3] for number in range(3)}
    for file, some in files.items():
        save_file({name: stored[name] for name in some}, folder / file, metadata={"format": "pt"})
    save_file({"consolidated": torch.ones(2)}, folder / "consolidated.safetensors")
    named = {name: file for file, some in files.items() for name in some}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": named}))
    change_config(folder, "dtype", "torch_dtype")
    return mixed
