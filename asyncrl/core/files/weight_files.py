"""The safetensors files of a Hugging Face folder by their headers: which tensors there are, and of what shape and type.

What always holds: no weight is read; a file that is shorter or longer than its header says is refused; and whoever reads the
weights refuses what :func:`check_weights` refuses, in the same words.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from asyncrl.core.architecture import ModelTensor
from asyncrl.core.errors import RecipeError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_POINTER = b"version https://git-lfs"
_AGAIN = "download or save the model again"


class StoredTensor(NamedTuple):
    """One tensor as the header of its ``file`` describes it; ``dtype`` is safetensors' name of the type."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def stored_tensors(folder: Path, place: str) -> dict[str, StoredTensor]:
    """Read the headers of the weights in ``folder``: of one file, or of all that an index names.

    Args:
        place: recipe key to blame.

    Raises:
        RecipeError: there are no safetensors, one of their files is missing or not whole, or a file lacks a tensor that the
            index puts there.
    """
    if not (folder / _INDEX).is_file():
        if not (folder / _SINGLE).is_file():
            problem = f"{folder} holds neither {_SINGLE} nor {_INDEX}"
            raise RecipeError(place, problem, "save the model as safetensors (save_pretrained)")
        return _header(folder / _SINGLE, place)
    named = _index(folder / _INDEX, place)
    headers = {file: _header(folder / file, place) for file in sorted(set(named.values()))}
    for name, file in named.items():
        if name not in headers[file]:
            raise RecipeError(place, f"{folder / file} lacks tensor {name}, which {_INDEX} puts there", _AGAIN)
    return {name: headers[file][name] for name, file in named.items()}


def check_weights(stored: Mapping[str, StoredTensor], wanted: Iterable[ModelTensor], folder: Path, place: str) -> None:
    """Check that ``folder`` has the wanted tensors; a ``RecipeError`` names the first that it lacks or that cannot be read."""
    for tensor in wanted:
        check_tensor(stored, tensor.name, tensor.shape, folder, place)


def check_tensor(stored: Mapping[str, StoredTensor], name: str, shape: Sequence[int], folder: Path, place: str) -> StoredTensor:
    """Return tensor ``name`` of ``folder``, which must have ``shape``.

    Raises:
        RecipeError: there is no such tensor, or its shape differs, or its data type is not one that weights are read from.
    """
    fitting = "name a folder whose weights fit its config.json"
    tensor = stored.get(name)
    if tensor is None:
        raise RecipeError(place, f"{folder} lacks tensor {name}", fitting)
    if tensor.shape != tuple(shape):
        raise RecipeError(place, f"tensor {name} has shape {tensor.shape}, but its config.json implies {tuple(shape)}", fitting)
    if tensor.dtype not in _DTYPES:
        problem = f"tensor {name} in {tensor.file} is stored as {tensor.dtype}, not as {', '.join(_DTYPES.values())}"
        raise RecipeError(place, problem, "name a folder of unquantised weights")
    return tensor


def _index(path: Path, place: str) -> dict[str, str]:
    try:
        named = json.loads(path.read_bytes())["weight_map"]
        return {str(name): str(file) for name, file in named.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecipeError(place, f"cannot read {path}: {type(error).__name__}: {error}", _AGAIN) from error


def _header(file: Path, place: str) -> dict[str, StoredTensor]:
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            is_pointer = opened.read(len(_POINTER)) == _POINTER
        if is_pointer:
            raise RecipeError(place, f"{file} is a Git LFS pointer to the weights", "fetch the file itself with `git lfs pull`")
        with safe_open(file, "np") as found:
            slices = {name: found.get_slice(name) for name in found.keys()}  # noqa: SIM118 - it is no mapping
            return {name: StoredTensor(file, tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()}
    except FileNotFoundError as error:
        raise RecipeError(place, f"there is no {file}, which {_INDEX} names", _AGAIN) from error
    except OSError as error:
        raise RecipeError(place, f"cannot read {file}: {error.strerror or error}", "let it be readable") from error
    except SafetensorError as error:
        problem = f"{file}, of {size:,} bytes, is not a whole safetensors file: {error}"
        raise RecipeError(place, problem, _AGAIN) from error
