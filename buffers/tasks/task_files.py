"""Finds, reads and checks the files and folders of the task sources that a recipe names.

A path is a JSON file, a Parquet file, a folder that Hugging Face datasets saved, a folder of Parquet or JSON-lines files as
dataset repositories have them, a data set of the hub, or one of these at an address of an object store. Each file is read once
and completely, so later changes of the files do not affect the run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from asyncrl.buffers.tasks.arrow_table import PARQUET_MAGIC, ArrowTable
from asyncrl.buffers.tasks.hub_datasets import is_on_hub, splits_of, subset_files
from asyncrl.buffers.tasks.json_rows import BYTE_ORDER_MARK, read_json
from asyncrl.buffers.tasks.task_columns import Columns
from asyncrl.buffers.tasks.task_rows import LabelledFile, RowFile, TaskRows
from asyncrl.buffers.tasks.task_stream import TaskSource, source_names
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.tasks import TaskFileConfig
from asyncrl.core.storage.address import is_address
from asyncrl.core.storage.fetched import fetched

Schema = TypeVar("Schema")

_DICTIONARY, _STATE = "dataset_dict.json", "state.json"

_SUPPORTED = (
    "name JSON (.jsonl or .json), Parquet (.parquet), a folder that datasets' save_to_disk wrote, a folder that holds .parquet "
    "or .jsonl files, or a data set of the Hugging Face hub (organisation/name)"
)


def read_sources(files: Sequence[TaskFileConfig], place: str, on_malformed: Literal["refuse", "skip"]) -> list[TaskSource]:
    """Read the sources, in order. Task ids are unique over all of them: with several sources, ids begin with the source's name.

    Args:
        place: recipe key of the sources, e.g. ``tasks.train``, for errors.
        on_malformed: what to do about rows that are not a task.

    Raises:
        RecipeError: a source is missing or cannot be read, has a malformed row under ``refuse``, or has no good row.
    """
    names = source_names(files, place)
    taken: set[str] = set()
    return [
        _read_source(file, name, f"{place}[{index}]", on_malformed, f"{name}/" if len(files) > 1 else "", taken)
        for index, (file, name) in enumerate(zip(files, names, strict=True))
    ]


def remarks_on_rows(sources: Iterable[TaskSource], split: str) -> Iterator[str]:
    """Yield sentences for the user about sources of which rows were left out, or read in another way than they are written."""
    for source in sources:
        if isinstance(source.tasks, TaskRows):
            yield from (f"tasks.{split} ({source.name}): {remark}" for remark in source.tasks.remarks())


def _read_source(
    file: TaskFileConfig, name: str, place: str, on_malformed: Literal["refuse", "skip"], id_prefix: str, taken: set[str]
) -> TaskSource:
    root, columns = Path(file.path), Columns(file)
    if is_address(file.path):
        root = fetched(file.path, place)
        paths = find_files(root, file.split, place)
    elif is_on_hub(file.path):
        root, paths = subset_files(file, place)
    elif file.subset:
        raise RecipeError(
            f"{place}.subset", f"{root} is no data set of the hub", "name the subset's folder as path, and leave it out"
        )
    else:
        paths = find_files(root, file.split, place)
    files = []
    for path in paths:
        label = name if path == root else f"{name}/{path.relative_to(root).as_posix()}"
        files.append(LabelledFile(label, _read(path, place, columns)))
    tasks = TaskRows(files, columns, id_prefix, taken, file.environment)
    _check_columns(columns, files, place)
    other_key = f"correct the rows, or set {place}.columns.prompt to the column that holds what is asked"
    if tasks.skipped and on_malformed == "refuse":
        remedy = "correct or remove such rows, or set tasks.on_malformed to skip" if len(tasks) else other_key
        raise RecipeError(place, tasks.problems(), remedy)
    if not len(tasks):
        problem = f"{root} holds no task" + (f": {tasks.problems()}" if tasks.skipped else "")
        raise RecipeError(place, problem, other_key if tasks.skipped else "give at least one row")
    content = "".join(found.rows.digest for found in files) + file.environment
    digest = blake2b(content.encode(), digest_size=16).hexdigest()
    return TaskSource(name, tasks, file.weight, tasks.skipped, digest)


def _check_columns(columns: Columns, files: Sequence[LabelledFile], place: str) -> None:
    """Refuse a column that the recipe names and no file has, and a table without prompts."""
    named = dict(columns.paths())
    if "columns.prompt" not in named and not any(file.rows.whole for file in files):
        named["columns.prompt"] = columns.prompt
    there = list(dict.fromkeys(name for file in files for name in file.rows.names()))
    for key, path in named.items():
        if there and not any(file.rows.has(path) for file in files):
            outer, nearest = path.partition(".")[0], get_close_matches(path, there, n=1)
            meant = f"did you mean {nearest[0]!r}? " if nearest else ""
            if outer in there and not columns.leads_into_text(path):
                meant = f"if {outer!r} holds JSON text, say so (json: [{outer}]); or "
            raise RecipeError(f"{place}.{key}", f"{files[0].label} has no column {path!r}", f"{meant}name one of {there}")


def _read(path: Path, place: str, columns: Columns) -> RowFile:
    """Read a file, by its content if that is clear, otherwise by its name."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise RecipeError(place, f"cannot read {path} ({error.strerror})", "name a readable file") from error
    if head.startswith(b"version https://git-lfs"):
        raise RecipeError(place, f"{path} is a Git LFS pointer to the file", "fetch the file itself with `git lfs pull`")
    if head.startswith(PARQUET_MAGIC) or path.suffix == ".arrow":
        return ArrowTable(path, place, columns)
    if path.suffix == ".parquet":
        raise RecipeError(place, f"{path} is not a Parquet file: it begins with {head[:8]!r}", "name a whole Parquet file")
    if path.suffix in (".jsonl", ".json") or head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{"):
        return read_json(path, place, columns)
    raise RecipeError(place, f"{path} has an unknown format", _SUPPORTED)


def find_files(root: Path, split: str, place: str) -> list[Path]:
    """Find the files of a source, in order.

    Args:
        split: the split to read, if ``root`` is a folder with several; otherwise it may be empty.
        place: recipe key of the source, for errors.

    Raises:
        RecipeError: there is no file, or it is not clear which split is meant.
    """
    if not root.exists():
        here = "" if root.is_absolute() else f" in {Path.cwd()}"
        raise RecipeError(place, f"there is no {root}{here}", _SUPPORTED)
    if root.is_file():
        if split:
            raise RecipeError(f"{place}.split", f"{root} is a single file, without a split {split!r}", "leave it out")
        return [root]
    if (root / _DICTIONARY).is_file():
        names = _decode(root / _DICTIONARY, _DatasetDictionary, place).splits
        (folder,) = _chosen({name: [root / name] for name in names}, root, split, place)
        return _saved_files(_decode(folder / _STATE, _DatasetState, place), folder, place)
    if (root / _STATE).is_file():
        state = _decode(root / _STATE, _DatasetState, place)
        return _chosen({state.split or "": _saved_files(state, root, place)}, root, split, place)
    found = (path for path in root.rglob("*") if path.is_file())
    if not (splits := splits_of(path.relative_to(root) for path in found)):
        raise RecipeError(place, f"{root} is a folder without tasks", _SUPPORTED)
    splits = {name: [root / path for path in paths] for name, paths in splits.items()}
    files = _chosen(splits, root, split, place)
    if len(kinds := sorted({f"{path.parent}/*{path.suffix}" for path in files})) > 1:
        problem = f"split {split!r} may be {' or '.join(kinds)}"
        raise RecipeError(place, problem, "name one of these folders as path, or keep one format")
    return files


def _chosen(splits: Mapping[str, list[Path]], root: Path, split: str, place: str) -> list[Path]:
    if not split and len(splits) == 1:
        return next(iter(splits.values()))
    if split and split in splits:
        return splits[split]
    known = ", ".join(sorted(filter(None, splits)))
    problem = f"{root} has no split {split!r}" if split else f"{root} has several splits"
    raise RecipeError(f"{place}.split", problem, f"set it to one of {known}" if known else "leave it out")


class _DatasetDictionary(msgspec.Struct, frozen=True):
    """Content of dataset_dict.json, which ``DatasetDict.save_to_disk`` writes."""

    splits: list[str]


class _DataFile(msgspec.Struct, frozen=True):
    filename: str


class _DatasetState(msgspec.Struct, frozen=True):
    """Content of state.json, which ``Dataset.save_to_disk`` writes.

    Old releases of datasets stored selected or shuffled rows as indices.
    """

    data_files: list[_DataFile] = msgspec.field(name="_data_files")
    split: str | None = msgspec.field(name="_split", default=None)
    indices: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


def _saved_files(state: _DatasetState, folder: Path, place: str) -> list[Path]:
    if state.indices:
        remedy = "save it again with a newer release of datasets, or after flatten_indices()"
        raise RecipeError(place, f"{folder} keeps the order of its rows in a separate file", remedy)
    return [folder / file.filename for file in state.data_files]


def _decode(path: Path, schema: type[Schema], place: str) -> Schema:
    try:
        return msgspec.json.decode(path.read_bytes(), type=schema)
    except (OSError, msgspec.DecodeError) as error:
        raise RecipeError(place, f"cannot read {path} ({error})", "save the dataset again") from error
