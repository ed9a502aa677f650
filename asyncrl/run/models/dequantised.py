"""Quantised models: transformers writes their weights dequantised into a folder, which is what the learner trains and engines
play. ``python -P -m asyncrl.run.models.dequantised REQUEST`` writes it.

What always holds: such a folder appears whole or not at all, in the cache of this machine, under a name that follows from the
quantised model's files and from the way in which they are dequantised; and what transformers cannot dequantise here, the plan
refuses.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.model_copies import copy_folder
from asyncrl.core.files.weight_files import DTYPES, stored_tensors
from asyncrl.run.host.helper_process import explaining, run_helper
from asyncrl.run.models.model_identity import model_files

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig

_CONFIG = "config.json"
_NOT_COPIED = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json", _CONFIG, ".*")
"""Files that hold the quantised weights, or say where they are."""
_WAY = 2
"""Raised whenever other weights are written of the same model, so that no folder of before is taken for them."""
_REMEDY = "name a folder of the model's unquantised weights"


class Request(msgspec.Struct, frozen=True):
    """What to dequantise, and the new folder for it."""

    folder: str
    made: str


def quantisation(folder: Path) -> str:
    """Name the method by which the weights in a folder are quantised, as its config.json says; empty if they are not."""
    try:
        found = json.loads((folder / _CONFIG).read_bytes()).get("quantization_config")
    except (OSError, ValueError, AttributeError):
        return ""  # whoever reads the model's shape refuses it
    return method_of(found) if found else ""


def method_of(quantization: object) -> str:
    """Name the method of a ``quantization_config``."""
    return str(quantization.get("quant_method", "unnamed")) if isinstance(quantization, dict) else str(quantization)


def dequantised_folders() -> Path:
    """Where the folders of dequantised weights are: ``$ASYNCRL_CACHE/dequantised``, or ``~/.cache/asyncrl/dequantised``."""
    return cache_folder() / "dequantised"


async def plain_folder(folder: Path, seconds: float) -> Path:
    """Return a folder with the unquantised weights of the model in ``folder``: itself, if they are not quantised.

    Raises:
        ComponentFailed: they cannot be dequantised.
        DeadlineExceeded: it took longer than ``seconds``.
    """
    if not (method := quantisation(folder)):
        return folder
    digest = hashlib.blake2b(msgspec.msgpack.encode((_WAY, model_files(folder))), digest_size=16).hexdigest()
    made = dequantised_folders() / digest
    if not made.is_dir():
        with naming(made):
            made.parent.mkdir(parents=True, exist_ok=True)
        request, task = Request(str(folder), str(made)), f"dequantising the {method} weights of {folder}"
        try:
            await run_helper("asyncrl.run.models.dequantised", request, lambda line: None, task=task, seconds=seconds)
        except ComponentFailed as error:
            raise ComponentFailed(f"{error}; the new folder is made in {made.parent}, which needs room for it") from error
    return made


def check_dequantisable(source: "PreTrainedConfig") -> None:
    """Check that transformers can dequantise a model's weights as it loads them; imports torch.

    Raises:
        RecipeError: it cannot, or not on this machine; with its own reason.
    """
    from transformers.quantizers import AutoHfQuantizer, AutoQuantizationConfig

    method = method_of(source.quantization_config)
    try:
        if not hasattr(AutoQuantizationConfig.from_dict(dict(source.quantization_config)), "dequantize"):
            raise NotImplementedError("it has no way to do so while it loads them")
        AutoHfQuantizer.from_config(_dequantising(source.quantization_config), pre_quantized=True).validate_environment()
    except Exception as error:  # whatever packages that do it raise
        reason = " ".join(str(error).split()) or type(error).__name__
        problem = f"its weights are quantised ({method}), and transformers cannot dequantise them here: {reason}"
        raise RecipeError("model.path", problem, _REMEDY) from error


def _dequantising(quantization: object) -> dict[str, Any]:
    return {**msgspec.convert(quantization, dict[str, Any]), "dequantize": True}


def _write(request: Request) -> None:
    folder, made = Path(request.folder), Path(request.made)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=made.parent) as making:
        new = Path(making) / made.name
        copy_folder(folder, new, _NOT_COPIED)
        config = json.loads((folder / _CONFIG).read_bytes())
        del config["quantization_config"]
        (new / _CONFIG).write_text(json.dumps(config, indent=2))
        _write_weights(folder, new)
        if not made.is_dir():  # another process may have been faster
            new.rename(made)


def _write_weights(folder: Path, new: Path) -> None:
    """Write the dequantised weights of ``folder`` into ``new``, which has all other files."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dequantising = AutoConfig.from_pretrained(folder)
    dequantising.update({"quantization_config": _dequantising(dequantising.quantization_config)})
    dtype = "auto" if dequantising.dtype is not None else torch.bfloat16
    read = AutoModelForCausalLM.from_pretrained(folder, config=dequantising, dtype=dtype, use_safetensors=True)
    # A model that was read quantised is saved as such: so its weights are handed to one that was never quantised.
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(new), dtype=read.dtype)
    weights: dict[str, Tensor] = read.state_dict()
    stored = stored_tensors(folder, "model.path")

    def written(name: str) -> "Tensor":
        """Some are float32 in any model, such as the biases by which routers choose experts, and stay so."""
        is_whole = name in stored and DTYPES.get(stored[name].dtype) == "float32" and weights[name].dtype is torch.float32
        return weights[name] if is_whole else weights[name].to(read.dtype)

    plain.load_state_dict({name: written(name) for name in plain.state_dict()}, assign=True)
    plain.tie_weights()
    with tempfile.TemporaryDirectory(prefix=".saved-", dir=new.parent) as saved:
        plain.save_pretrained(saved)  # with a configuration of its own, beside which the model's stays as it is
        for file in (*Path(saved).glob("*.safetensors"), *Path(saved).glob("*.index.json")):
            file.rename(new / file.name)


if __name__ == "__main__":
    with explaining():
        _write(msgspec.json.decode(sys.argv[1], type=Request))
