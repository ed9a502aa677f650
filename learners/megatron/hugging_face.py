"""Reads rectangles of the tensors in a Hugging Face folder, and writes a new folder from the parts that all ranks
hold."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from asyncrl.core.architectures.architecture import EMBEDDING
from asyncrl.core.architectures.joint_experts import stored_in
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.model_copies import copy_file, copy_folder, is_licence
from asyncrl.core.files.weight_files import check_tensor, stored_tensors
from asyncrl.core.publication import Shard

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FILE_BYTES = 4 * 2**30
_SOURCE_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model"})
"""Kinds of files that are copied from the source folder, beside its licence: configuration, tokenizer and chat template, but
never weights."""
_INDICES = ".index.json"
"""End of the names of files that say where the source folder has which weights."""
_TEMPLATES = "additional_chat_templates"
"""A folder with further chat templates, by name."""


class HuggingFaceTensors(contextlib.ExitStack):
    """The tensors of a folder's safetensors files: one file, or several with an index. A context manager, which keeps
    files open.

    Raises:
        RecipeError: see :func:`asyncrl.core.files.weight_files.stored_tensors`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._stored = stored_tensors(folder, "model.path")
        self._open: dict[Path, safe_open] = {}

    def rectangle(self, name: str, shape: Sequence[int], start: Sequence[int], extent: Sequence[int]) -> Tensor:
        """Read one rectangle of tensor ``name``, which must have ``shape``; see :func:`.stored_in` for those of experts.

        Raises:
            RecipeError: see :func:`asyncrl.core.files.weight_files.check_tensor`.
        """
        file = check_tensor(self._stored, name, shape, self._folder, "model.path").file
        if file not in self._open:
            self._open[file] = self.enter_context(safe_open(file, "pt"))
        there = stored_in(name)
        stored = self._open[file].get_slice(there.name)
        window = tuple(slice(begin, begin + size) for begin, size in zip(start, extent, strict=True))
        read: Tensor = stored[window if there.expert is None else (there.expert, *window)]
        return read


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a safetensors file.

    Raises:
        OSError: the disk refuses. The library raises an error of its own, which names no file.
    """
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        if (code := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(file)) from error


class _Held(msgspec.Struct, frozen=True):
    """What each rank tells the others about a shard that it holds. Not all have one type: router biases are float32."""

    rank: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: tuple[int, ...]
    extent: tuple[int, ...]


class PeftAdapter(msgspec.Struct, frozen=True):
    """What PEFT reads in addition to the frozen weights.

    Attributes:
        config: the content of ``adapter_config.json``, on rank 0.
        shards: this rank's parts of the adapter's tensors; over all ranks, every element exactly once.
    """

    config: dict[str, Any]
    shards: list[Shard]


def save_pretrained(shards: Iterable[Shard], source: Path, folder: Path, adapter: PeftAdapter | None = None) -> None:
    """Write a folder that ``from_pretrained`` reads. Rank 0 assembles it tensor by tensor from the parts that all ranks
    hold.

    Collective: all ranks call it. Rank 0 holds the tensors of one output file at a time. The folder appears whole or
    not at all.

    Args:
        shards: this rank's parts of the tensors; over all ranks, every element exactly once.
        source: folder whose configuration and tokenizer are copied.
        folder: where to write; only rank 0 needs to reach it.
        adapter: also written, if given, to a subfolder; directly beside merged weights, it would be added to them a
            second time.

    Raises:
        FileExistsError: on every rank, if ``folder`` exists.
    """
    exists = [dist.get_rank() == 0 and folder.exists()]
    dist.broadcast_object_list(exists)
    if exists[0]:
        raise FileExistsError(f"{folder} exists; save to a new folder, or remove it first")
    partial = folder.with_name(f".{folder.name}.partial")
    _collect(shards, lambda tensors, counts: _write(tensors, counts, source, partial))
    if adapter is not None:
        _collect(adapter.shards, lambda tensors, _: _write_adapter(dict(tensors), adapter.config, partial / "adapter"))
    if dist.get_rank() == 0:
        partial.rename(folder)
    dist.barrier()


_Holders = dict[str, dict[str, list[_Held]]]
"""Who holds the parts of each tensor of a folder, by the names of the shards: one, or one for each expert."""


def _collect(shards: Iterable[Shard], write: Callable[[Iterator[tuple[str, Tensor]], list[int]], None]) -> None:
    """Have rank 0 call ``write`` with the whole tensors of the folder, one by one, and with the number of tensors in each file.
    Collective."""
    mine = {shard.name: shard for shard in shards}
    rank = dist.get_rank()
    gathered: list[dict[str, _Held]] = [{}] * dist.get_world_size()
    told = {s.name: _Held(rank, s.tensor.dtype, s.shape, s.start, tuple(s.tensor.shape)) for s in mine.values()}
    dist.all_gather_object(gathered, told)
    holders: _Holders = {}
    for held_by_name in gathered:
        for name, held in held_by_name.items():
            holders.setdefault(stored_in(name).name, {}).setdefault(name, []).append(held)
    if rank == 0:
        write(_assembled(holders, mine), _planned(holders))
    else:
        for name in (name for of_stored in holders.values() for name in of_stored):
            if name in mine:
                dist.send(mine[name].tensor, 0)


def _assembled(holders: _Holders, mine: dict[str, Shard]) -> Iterator[tuple[str, Tensor]]:
    """On rank 0, yield the whole tensors, in the order in which the other ranks send their parts."""
    device = next(iter(mine.values())).tensor.device
    for stored, of_stored in holders.items():
        whole = torch.empty(_stored_shape(of_stored), dtype=_dtype(of_stored))
        for name, parts in of_stored.items():
            expert = stored_in(name).expert
            into = whole if expert is None else whole[expert]
            for part in parts:
                if part.rank == 0:
                    values = mine[name].tensor
                else:
                    values = torch.empty(part.extent, dtype=part.dtype, device=device)
                    dist.recv(values, part.rank)
                into[tuple(slice(begin, begin + size) for begin, size in zip(part.start, part.extent, strict=True))] = values
        yield stored, whole


def _stored_shape(of_stored: dict[str, list[_Held]]) -> tuple[int, ...]:
    """The shape of a tensor of a folder."""
    (name, (part, *_)), *_ = of_stored.items()
    return part.shape if stored_in(name).expert is None else (len(of_stored), *part.shape)


def _dtype(of_stored: dict[str, list[_Held]]) -> torch.dtype:
    """The type of a tensor of a folder."""
    (part, *_), *_ = of_stored.values()
    return part.dtype


def _planned(holders: _Holders) -> list[int]:
    """How many tensors go into each file, file by file."""
    counts, size = [0], 0
    for of_stored in holders.values():
        bytes_ = _dtype(of_stored).itemsize * torch.Size(_stored_shape(of_stored)).numel()
        if counts[-1] and size + bytes_ > _FILE_BYTES:
            counts.append(0)
            size = 0
        counts[-1] += 1
        size += bytes_
    return counts


def _write(tensors: Iterator[tuple[str, Tensor]], counts: list[int], source: Path, partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    file_of: dict[str, str] = {}
    dtype = ""
    for number, count in enumerate(counts, 1):
        file = _SINGLE if len(counts) == 1 else f"model-{number:05d}-of-{len(counts):05d}.safetensors"
        content = dict(next(tensors) for _ in range(count))
        if EMBEDDING in content:
            dtype = str(content[EMBEDDING].dtype).removeprefix("torch.")
        file_of |= dict.fromkeys(content, file)
        save_tensors(content, partial / file)
    if len(counts) > 1:
        _write_json(partial / _INDEX, {"metadata": {}, "weight_map": file_of})
    for path in sorted(source.iterdir()):
        if path.is_file() and _is_kept(path):
            copy_file(path, partial / path.name)
    if (source / _TEMPLATES).is_dir():
        copy_folder(source / _TEMPLATES, partial / _TEMPLATES)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    _write_json(partial / "config.json", {**config, "dtype": dtype})


def _is_kept(path: Path) -> bool:
    return is_licence(path.name) or (path.suffix in _SOURCE_SUFFIXES and not path.name.endswith(_INDICES))


def _write_adapter(tensors: dict[str, Tensor], config: dict[str, Any], folder: Path) -> None:
    folder.mkdir()
    save_tensors(tensors, folder / "adapter_model.safetensors")
    _write_json(folder / "adapter_config.json", config)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    with naming(file):
        file.write_text(json.dumps(content, indent=2))
