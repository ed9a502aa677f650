"""Checks what the pickles of a checkpoint name, without torch and without resolving any of it.

What always holds: nothing that a checkpoint names is imported or called. Only the classes and functions that Megatron and torch
write into a checkpoint may be named; :mod:`asyncrl.learners.megatron.state.checkpoint_reader` resolves no others either.
"""

import io
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from asyncrl.learners.checkpointing.checkpoint_manifest import CheckpointDamaged, UnknownClass

INDEX = ".metadata"
COMMON = "common.pt"
_METADATA, _PLANNER = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.planner"
IN_INDEX = {
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    (_PLANNER, "SavePlan"),
    (_PLANNER, "TensorWriteData"),
    (_PLANNER, "WriteItem"),
    (_PLANNER, "WriteItemType"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *(("torch", kind) for kind in ("bool", "uint8", "int8", "int16", "int32", "int64")),
    *(("torch", kind) for kind in ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")),
}
"""Module and name of everything that Megatron and torch write into an index."""
MEMBER = ("builtins", "getattr")
"""By this Python up to 3.11.3 pickles a member of an enumeration: the attribute of a class."""
_IN_OBJECTS = {
    ("collections", "OrderedDict"),
    ("torch._utils", "_rebuild_tensor_v2"),
    *(("torch", f"{kind}Storage") for kind in ("Bool", "Byte", "Char", "Short", "Int", "Long")),
    *(("torch", f"{kind}Storage") for kind in ("Half", "BFloat16", "Float", "Double")),
}
"""Module and name of everything that Megatron and torch write into objects: plain values with tensors among them."""
NO_PICKLE = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    MemoryError,
)
"""What Python raises for bytes that are no pickle, or one of something else."""


def check_names(folder: Path, files: Collection[str]) -> None:
    """Check that index, common part and objects of the checkpoint in ``folder`` name only what belongs there.

    Args:
        files: names of the checkpoint's files; the index may point to no others.

    Raises:
        UnknownClass: naming the first class or function that does not belong there.
        CheckpointDamaged: one of them cannot be read, or the index points to other files.
    """
    try:
        for file, offset, length in _objects(folder):
            if file not in files:
                raise CheckpointDamaged(folder, f"{INDEX} points to {file}, which is not one of the checkpoint's files")
            with (folder / file).open("rb") as opened:
                opened.seek(offset)
                check_classes(opened.read(length), folder, file)
        check_classes((folder / COMMON).read_bytes(), folder, COMMON)
    except OSError as error:
        name = Path(error.filename).name if error.filename else "a file"
        raise CheckpointDamaged(folder, f"{name} cannot be read ({error.strerror})") from error


def _objects(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield file, offset and length of each object that the index tells of; tensors are no objects."""
    with (folder / INDEX).open("rb") as file:
        try:
            index = _HeldIndex(file, folder).load()
            kinds, places = index.state_dict_metadata, index.storage_data
            found = [
                (str(info.relative_path), int(info.offset), int(info.length))
                for place, info in places.items()
                if type(kinds.get(place.fqn)).__name__ == "BytesStorageMetadata"
            ]
        except NO_PICKLE as error:
            raise CheckpointDamaged(folder, f"{INDEX} is not an index of a checkpoint ({error})") from error
    yield from found


class _Held:
    """Stands for an instance of a class that an index names: holds its attributes, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _HeldIndex(pickle.Unpickler):
    def __init__(self, file: Any, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == MEMBER:
            return _Held
        if (module, name) not in IN_INDEX:
            raise UnknownClass(self._folder, INDEX, f"{module}.{name}")
        return type(name, (_Held,), {})


def check_classes(data: bytes, folder: Path, name: str) -> None:
    """Check that what torch saved as ``data`` names only what belongs there. torch's own list of harmless classes is longer."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for member in archive.namelist():
                if member.endswith(".pkl"):
                    for known in _classes(archive.read(member)):
                        if known not in _IN_OBJECTS:
                            raise UnknownClass(folder, name, ".".join(known))
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise CheckpointDamaged(folder, f"{name} is not what torch saves ({error})") from error


def _classes(pickled: bytes) -> Iterator[tuple[str, str]]:
    """Yield module and name of everything that a pickle looks up. Names that it computes on its stack cannot be followed."""
    texts = ["", ""]
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name in ("GLOBAL", "INST"):
            module, _, name = str(argument).partition(" ")
            yield module, name
        elif operation.name == "STACK_GLOBAL":
            yield texts[-2], texts[-1]
        elif operation.name.startswith("EXT"):
            yield "copyreg", f"extension {argument}"
        elif isinstance(argument, str):
            texts.append(argument)
