"""The safetensors files of a Hugging Face folder by their headers: which tensors there are, and of what shape and type.

What always holds: no weight is read, but those of an output layer that should be the embedding, to compare the two; a file that
is shorter or longer than its header says is refused; and a folder that :func:`check_weights` takes is read alike by the learner,
which looks for the tensors that it knows, and by vLLM, which loads every tensor of every file that the index names, or of all
files if there is no index.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from asyncrl.core.architectures.architecture import EMBEDDING, OUTPUT, ModelTensor
from asyncrl.core.architectures.joint_experts import names_in
from asyncrl.core.errors import RecipeError
from asyncrl.core.text import first_few

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLED = "pytorch_model*.bin"
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The types that weights are read from, by safetensors' names."""
_POINTER = b"version https://git-lfs"
_AGAIN = "download or save the model again"
_FITTING = "name a folder whose weights fit its config.json"
_COMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Ends of the names of tensors that old releases stored, and that every reader computes instead."""
_PIECE_BYTES = 2**24


class StoredTensor(NamedTuple):
    """One tensor as the header of its ``file`` describes it; ``dtype`` is safetensors' name of the type. An expert's part of a
    tensor that all experts of a layer share is a tensor of its own here; see :mod:`asyncrl.core.architectures.joint_experts`."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def stored_tensors(folder: Path, place: str) -> dict[str, StoredTensor]:
    """Read the headers of the weights in ``folder``: of one file, or of all that an index names.

    Args:
        place: recipe key to blame.

    Raises:
        RecipeError: there are no safetensors, one of their files is missing or not whole, a file lacks a tensor that the index
            puts there, the index is that of other weights, or there is an adapter, which nobody would read.
    """
    if (folder / ADAPTER).is_file():
        raise adapter_refusal(folder, place)
    if not (folder / INDEX).is_file():
        if not (folder / SINGLE).is_file():
            raise _without_safetensors(folder, place)
        return _needed(_header(folder / SINGLE, place))
    named = _index(folder / INDEX, place)
    if (folder / SINGLE).is_file() and SINGLE not in named.values():
        problem = f"{folder} holds {SINGLE}, which transformers reads, and {INDEX}, which names other files to engines"
        raise RecipeError(place, problem, f"remove the one that is not the model's: saving it anew leaves the {INDEX} of before")
    headers = {file: _header(folder / file, place) for file in sorted(set(named.values()))}
    for name, file in named.items():
        if name not in headers[file]:
            raise RecipeError(place, f"{folder / file} lacks tensor {name}, which {INDEX} puts there", _AGAIN)
    return _needed({name: tensor for header in headers.values() for name, tensor in header.items()})


def check_weights(stored: Mapping[str, StoredTensor], wanted: Iterable[ModelTensor], folder: Path, place: str) -> None:
    """Check that ``folder`` has the wanted tensors and no others, in files of which engines read no others.

    An output layer that is stored beside an embedding to which it is tied must be equal to it, and is then left out.

    Raises:
        RecipeError: it names the first tensor that is missing, cannot be read, is of no use, or differs from the embedding.
    """
    names = check_present(stored, wanted, folder, place)
    if further := sorted(stored.keys() - names):
        problem = f"{stored[further[0]].file} has tensor {first_few(further, 1)}, which the model in its config.json has not"
        raise RecipeError(place, problem, _FITTING)
    read = {tensor.file for tensor in stored.values()}
    if not (folder / INDEX).is_file() and (others := sorted(set(folder.glob("*.safetensors")) - read)):
        problem = f"{folder} holds {others[0].name} beside {SINGLE} and no {INDEX}, so that engines would read both"
        raise RecipeError(place, problem, f"move {others[0].name} elsewhere")


def check_present(stored: Mapping[str, StoredTensor], wanted: Iterable[ModelTensor], folder: Path, place: str) -> set[str]:
    """Check that ``folder`` has the wanted tensors, and return the names of those that are of use.

    Raises:
        RecipeError: as :func:`check_weights`.
    """
    names = {tensor.name for tensor in wanted if check_tensor(stored, tensor.name, tensor.shape, folder, place)}
    if OUTPUT not in names and OUTPUT in stored:
        _refuse_another_output(stored[OUTPUT], stored[EMBEDDING], folder, place)
        names.add(OUTPUT)
    return names


def check_tensor(stored: Mapping[str, StoredTensor], name: str, shape: Sequence[int], folder: Path, place: str) -> StoredTensor:
    """Return tensor ``name`` of ``folder``, which must have ``shape``.

    Raises:
        RecipeError: there is no such tensor, or its shape differs, or its data type is not one that weights are read from.
    """
    tensor = stored.get(name)
    if tensor is None:
        remedy = f"{_FITTING}; set tie_word_embeddings to true there if the output layer is the embedding"
        raise RecipeError(place, f"{folder} lacks tensor {name}", remedy if name == OUTPUT else _FITTING)
    if tensor.shape != tuple(shape):
        problem = f"tensor {name} has shape {tensor.shape}, but its config.json implies {tuple(shape)}"
        others = name in (EMBEDDING, OUTPUT) and tensor.shape[1:] == tuple(shape[1:])
        remedy = f"set vocab_size to {tensor.shape[0]} there, which is what the weights have, padding included"
        raise RecipeError(place, problem, remedy if others else _FITTING)
    if tensor.dtype not in DTYPES:
        problem = f"tensor {name} in {tensor.file} is stored as {tensor.dtype}, not as {', '.join(DTYPES.values())}"
        raise RecipeError(place, problem, "name a folder of unquantised weights, or save it again in one of these types")
    return tensor


def adapter_refusal(folder: Path, place: str) -> RecipeError:
    """Refuse a folder with an adapter, which transformers adds to the weights that the adapter names, and nobody else reads."""
    problem = f"{folder} holds {ADAPTER}: an adapter of PEFT, which neither learner nor engines add to the weights"
    merged = "name the folder that peft's merge_and_unload() and save_pretrained make of model and adapter"
    return RecipeError(place, problem, f"{merged}, or, if these weights have it already, move {ADAPTER} elsewhere")


def _without_safetensors(folder: Path, place: str) -> RecipeError:
    pickled = sorted(folder.glob(PICKLED))
    if not pickled:
        return RecipeError(
            place, f"{folder} holds neither {SINGLE} nor {INDEX}", "save the model as safetensors (save_pretrained)"
        )
    try:
        (model,) = json.loads((folder / "config.json").read_bytes())["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        model = "AutoModelForCausalLM"
    problem, convert = pickles(folder, pickled[0].name, folder, model)
    return RecipeError(place, problem, f"if you trust it, write safetensors beside it: {convert}")


def pickles(model: str | Path, file: str, folder: str | Path, kind: str = "AutoModelForCausalLM") -> tuple[str, str]:
    """Return the problem of a model whose weights are in the pickle ``file``, and a command that writes safetensors.

    Args:
        kind: transformers' class of the model.
    """
    where = repr(str(folder))
    convert = f"from transformers import {kind} as M; M.from_pretrained({where}, dtype='auto').save_pretrained({where})"
    return f"{model} has its weights in {file}, a pickle, which can run code and is not read", f'python -c "{convert}"'


def _needed(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {
        name: tensor if name == stored else tensor._replace(shape=tensor.shape[1:])
        for stored, tensor in tensors.items()
        if not stored.endswith(_COMPUTED)
        for name in names_in(stored, next(iter(tensor.shape), 0))
    }


def _refuse_another_output(output: StoredTensor, embedding: StoredTensor, folder: Path, place: str) -> None:
    """Refuse an output layer that is not the embedding to which config.json ties it."""
    alike = (output.shape, output.dtype) == (embedding.shape, embedding.dtype)
    if alike and all(one == other for one, other in zip(_pieces(output, OUTPUT), _pieces(embedding, EMBEDDING), strict=True)):
        return
    raise RecipeError(
        place,
        f"{folder / 'config.json'} ties the output layer to the embedding, but {OUTPUT} in {output.file} differs from "
        f"{EMBEDDING} in {embedding.file}",
        f"set tie_word_embeddings to false there if the model has an output layer of its own, or save it without {OUTPUT}",
    )


def _pieces(tensor: StoredTensor, name: str) -> Iterator[bytes]:
    """Yield the bytes of a tensor, some at a time."""
    with tensor.file.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(size))[name]["data_offsets"]
        file.seek(8 + size + begin)
        for position in range(begin, end, _PIECE_BYTES):
            yield file.read(min(_PIECE_BYTES, end - position))


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
        raise RecipeError(place, f"there is no {file}, which {INDEX} names", _AGAIN) from error
    except OSError as error:
        raise RecipeError(place, f"cannot read {file}: {error.strerror or error}", "let it be readable") from error
    except SafetensorError as error:
        problem = f"{file}, of {size:,} bytes, is not a whole safetensors file: {error}"
        raise RecipeError(place, problem, _AGAIN) from error
