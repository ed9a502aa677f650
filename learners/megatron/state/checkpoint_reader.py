"""Reads Megatron's checkpoint format without running any code that a checkpoint might contain.

A pickle can name any function of any installed package and have it called. Megatron and torch store four things as
pickles: the index of where tensors lie (``.metadata``), everything that is not a tensor (``common.pt``, and objects
among the tensors in ``*.distcp``), the tensors themselves, and, within those objects, the extra state of
TransformerEngine's layers. What always holds: only the classes and functions that Megatron and torch write there
(:mod:`asyncrl.learners.checkpointing.checkpoint_names`) are resolved, and members of enumerations among them; any other is
refused by its name before it is looked up.

TransformerEngine unpickles its extra state without a check. That state is not needed here, because fp8 scales are
computed from the tensors as they are. So it is neither saved nor loaded; see :func:`without_extra_state`.
"""

import io
import pickle
from collections.abc import Iterable, Mapping
from enum import EnumType
from pathlib import Path
from typing import IO, Any

import torch
from megatron.core.dist_checkpointing.dict_utils import merge, nested_values
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor, StateDict, apply_factory_merges
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess
from megatron.core.dist_checkpointing.strategies import torch as torch_strategy
from megatron.core.dist_checkpointing.utils import extract_sharded_base, force_all_tensors_to_non_fp8
from megatron.core.dist_checkpointing.validation import determine_global_metadata, validate_sharding_integrity
from torch.distributed.checkpoint import FileSystemReader, Metadata, load_state_dict
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from asyncrl.learners.checkpointing.checkpoint_manifest import CheckpointDamaged, UnknownClass
from asyncrl.learners.checkpointing.checkpoint_names import COMMON, IN_INDEX, INDEX, MEMBER, NO_PICKLE, check_classes

_EXTRA_STATE = "_extra_state"
"""Part of every name under which layers keep extra state."""


def read_index(folder: Path, files: Iterable[str]) -> Metadata:
    """Read the index of the checkpoint in ``folder``: where its tensors and objects lie, and what shapes they have.

    Args:
        folder: the checkpoint.
        files: names of the checkpoint's files; the index may point to no others.

    Raises:
        UnknownClass: if the index names something that Megatron and torch do not write there.
        CheckpointDamaged: if the file is not an index, or points to other files.
    """
    path = folder / INDEX
    try:
        with path.open("rb") as file:
            index = _IndexUnpickler(file, folder).load()
    except OSError as error:
        raise CheckpointDamaged(folder, f"{INDEX} cannot be read ({error.strerror})") from error
    except NO_PICKLE as error:
        raise CheckpointDamaged(folder, f"{INDEX} is not an index of a checkpoint ({error})") from error
    if not isinstance(index, Metadata) or not isinstance(index.storage_data, dict):
        raise CheckpointDamaged(folder, f"{INDEX} is not an index of a checkpoint")
    if elsewhere := sorted({str(place.relative_path) for place in index.storage_data.values()} - set(files)):
        raise CheckpointDamaged(folder, f"{INDEX} points to {elsewhere[0]}, which is not one of the checkpoint's files")
    return index


def read_common(folder: Path) -> StateDict:
    """Read what is not a tensor and is the same for all ranks: settings and step counters of the optimizers.

    Raises:
        UnknownClass, CheckpointDamaged: as :func:`read_index`.
    """
    try:
        common = _load_object((folder / COMMON).read_bytes(), folder, COMMON)
    except OSError as error:
        raise CheckpointDamaged(folder, f"{COMMON} cannot be read ({error.strerror})") from error
    if not isinstance(common, dict):
        raise CheckpointDamaged(folder, f"{COMMON} holds a {type(common).__name__}, not a dictionary")
    return common


def check_objects(folder: Path, index: Metadata) -> None:
    """Check that every object among the tensors can be loaded, without loading any.

    Raises:
        UnknownClass, CheckpointDamaged: as :func:`read_index`.
    """
    for place, info in index.storage_data.items():
        if isinstance(index.state_dict_metadata.get(place.fqn), BytesStorageMetadata):
            with (folder / info.relative_path).open("rb") as file:
                file.seek(info.offset)
                check_classes(file.read(info.length), folder, info.relative_path)


def without_extra_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's state without its layers' extra state. Only TransformerEngine's layers have any, so without it a
    checkpoint of either kind of layer can be loaded into the other."""
    return {name: value for name, value in state.items() if _EXTRA_STATE not in name}


def load(folder: Path, index: Metadata, common: StateDict, wanted: ShardedStateDict) -> StateDict:
    """Load what ``wanted`` describes, using what :func:`read_index` and :func:`read_common` have read. Collective.

    Megatron's own loading changed in 0.19, but not what it is made of.

    Raises:
        CheckpointingException, CheckpointException: something that is wanted is not in the checkpoint, or not in this shape.
    """
    force_all_tensors_to_non_fp8(wanted)
    prepared, own, factories = load_preprocess(wanted)
    merge(common, own)
    sharded, _ = extract_sharded_base(prepared)
    validate_sharding_integrity(determine_global_metadata(sharded)[1])
    merge(common, _load_sharded(folder, index, sharded))
    loaded: StateDict = apply_factory_merges(common, factories)
    return loaded


def _load_sharded(folder: Path, index: Metadata, sharded: ShardedStateDict) -> StateDict:
    """Load tensors and objects as Megatron does, but unpickle with the checks of this module."""
    tensors = [value for value in nested_values(sharded) if isinstance(value, ShardedTensor)]
    by_key, places, names = torch_strategy._replace_state_dict_keys_with_sharded_keys(sharded)
    wanted = torch_strategy.mcore_to_pyt_state_dict(by_key, True)
    planner = _Planner(
        folder,
        shapes_validation_sharded_tensors=[tensor for tensor in tensors if not tensor.allow_shape_mismatch],
        allow_shape_mismatch_sharded_tensors={tensor.key: tensor for tensor in tensors if tensor.allow_shape_mismatch},
    )
    load_state_dict(wanted, _Reader(folder, index), planner=planner)
    unwrapped = {key: torch_strategy._unwrap_pyt_sharded_tensor(value) for key, value in wanted.items()}
    loaded: StateDict = torch_strategy._replace_sharded_keys_with_state_dict_keys(unwrapped, places, names)
    torch_strategy._restore_dict_types(loaded, sharded)
    return loaded


class _Reader(FileSystemReader):
    """torch's reader with an index that was read before. Tensors are loaded with torch's own list of harmless
    classes."""

    def __init__(self, folder: str | Path, index: Metadata) -> None:
        super().__init__(folder)
        self._index = index

    def read_metadata(self) -> Metadata:
        return self._index


class _Planner(torch_strategy.MCoreLoadPlanner):
    """Megatron's planner, except that objects are loaded by :func:`_load_object`."""

    def __init__(self, folder: Path, **tensors: Any) -> None:
        super().__init__(**tensors)
        self._folder = folder

    def load_bytes(self, read_item: ReadItem, value: IO[bytes]) -> None:
        name = read_item.dest_index.fqn
        set_element(self.original_state_dict, self.mappings[name], _load_object(value.read(), self._folder, name))


class _IndexUnpickler(pickle.Unpickler):
    def __init__(self, file: IO[bytes], folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == MEMBER:
            return _member
        if (module, name) not in IN_INDEX:
            raise UnknownClass(self._folder, INDEX, f"{module}.{name}")
        return super().find_class(module, name)


def _member(enumeration: Any, name: Any) -> Any:
    """Return a member of an enumeration; of nothing else is an attribute read."""
    if not isinstance(enumeration, EnumType) or name not in enumeration.__members__:
        raise pickle.UnpicklingError(f"{name!r} is no member of an enumeration")
    return enumeration[name]


def _load_object(data: bytes, folder: Path, name: str) -> Any:
    """Load the plain values and tensors that torch saved as ``data``."""
    check_classes(data, folder, name)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise CheckpointDamaged(folder, f"{name} cannot be loaded ({type(error).__name__}: {first})") from error
