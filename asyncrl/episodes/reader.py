"""Reads the episodes that a run kept: any Parquet files with the columns of :mod:`asyncrl.episodes.schema`, whatever their names.

What always holds: only the columns that are asked for are read, and tokens only of the files that hold chosen rows, so that a
million rows are read in seconds. Nothing is written, so the run may be live.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.text import first_few, short, writable
from asyncrl.episodes.measures import COLUMNS, Measure, measure
from asyncrl.episodes.read_trajectory import Branch, ReadTrajectory
from asyncrl.episodes.schema import SCHEMA, Kind

_FILE = "__filename"
_NUMBERS = (pa.types.is_integer, pa.types.is_floating)
_TEXTS = (pa.types.is_string, pa.types.is_large_string)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list)
_READ = [field.name for field in msgspec.structs.fields(ReadTrajectory)]
_NEEDED = [field.name for field in msgspec.structs.fields(ReadTrajectory) if field.required]
_ORDER = [
    ("kind", "descending"),
    ("version", "ascending"),
    ("group_id", "ascending"),
    ("sample_index", "ascending"),
    ("part", "ascending"),
]
"""The order of trajectories that are sorted by nothing: training steps as they went, then evaluations."""

_FIRST_PART, _GROWTH = 128, 8
"""How many episodes are read at first where they lie scattered, and how many times as many in each further part."""
_HELD_BYTES = 2**29
"""How much memory the episodes of a part may take, by the size of those in the part before it. Two parts are held at a time."""


class EpisodesUnreadable(AsyncRLError):
    """A file of kept episodes is damaged, or is not one."""


class Choice(msgspec.Struct, frozen=True):
    """Which episodes to read; what is None chooses all.

    Attributes:
        step: the training step or, of an evaluation, the policy version that was published when it began.
        since: the first of the steps, or of these versions, in the place of ``step``.
        group, sample: the episode's name in its run.
        traffic: whether the traffic of an agent is kept with it.
    """

    kind: Kind | None = None
    step: int | None = None
    task: str | None = None
    source: str | None = None
    since: int | None = None
    group: int | None = None
    sample: int | None = None
    traffic: bool | None = None

    def expression(self) -> pc.Expression:
        """Return the choice as a filter of Arrow datasets."""
        wanted = [pc.scalar(True)]
        if self.kind is not None:
            wanted.append(pc.field("kind") == self.kind.value)
        if self.step is not None:
            in_training = (pc.field("kind") == Kind.TRAIN.value) & (pc.field("step") == self.step)
            wanted.append(in_training | ((pc.field("kind") == Kind.EVALUATION.value) & (pc.field("version") == self.step)))
        if self.since is not None:
            in_training = (pc.field("kind") == Kind.TRAIN.value) & (pc.field("step") >= self.since)
            wanted.append(in_training | ((pc.field("kind") == Kind.EVALUATION.value) & (pc.field("version") >= self.since)))
        of_columns = {"task_id": self.task, "source": self.source, "group_id": self.group, "sample_index": self.sample}
        wanted += [pc.field(name) == value for name, value in of_columns.items() if value is not None]
        if self.traffic is not None:
            wanted.append(pc.field("traffic").is_valid() == self.traffic)
        chosen = wanted[0]
        for each in wanted[1:]:
            chosen &= each
        return chosen


ALL = Choice()
"""Every kept episode."""


class EpisodeReader:
    """Reads the Parquet files of a folder.

    Raises:
        RecipeError: there are none, or the folder's name is not UTF-8.
        EpisodesUnreadable: a file is damaged, or lacks a column.
    """

    def __init__(self, folder: Path) -> None:
        if writable(str(folder)) != str(folder):
            raise RecipeError("", f"{str(folder)!r} is not UTF-8, so that Arrow cannot read it", "rename the folder")
        files = sorted(str(file) for file in folder.glob("*.parquet") if not file.name.startswith("."))
        if not files:
            raise RecipeError(
                "tracking.trajectories",
                f"no episodes are kept in {str(folder)!r}",
                "the first evaluation and the first training step write them, unless tracking.trajectories is {keep: none}; "
                "of a run that ended before, `asyncrl logs RUN --errors` says why",
            )
        self.folder = folder
        with _readable(folder):
            self._dataset = ds.dataset(files, schema=SCHEMA, format="parquet")
            for fragment in self._dataset.get_fragments():  # Arrow would read a column that is missing as null
                _check_columns(fragment.path, fragment.physical_schema)

    def table(self, choice: Choice = ALL, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the chosen rows, in the order of the files.

        Args:
            columns: the columns to read; all of the schema if None.

        Raises:
            EpisodesUnreadable: a file is damaged.
        """
        with _readable(self.folder):
            return self._dataset.to_table(columns=None if columns is None else list(columns), filter=choice.expression())

    def batches(self, choice: Choice = ALL, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield what :meth:`table` returns bit by bit, so that it need not fit into memory."""
        names = None if columns is None else list(columns)
        with _readable(self.folder):
            yield from self._dataset.to_batches(columns=names, filter=choice.expression())

    def steps(self, kind: Kind) -> list[int]:
        """Return the training steps, or the versions of evaluations, that episodes are kept of, in order."""
        column = "step" if kind is Kind.TRAIN else "version"
        found = self.table(Choice(kind=kind), [column])[column]
        return sorted(value for value in pc.unique(found).to_pylist() if value is not None)

    def places(self, choice: Choice = ALL, by: Measure | None = None, limit: int | None = None) -> pa.Table:
        """Return where the trajectories of the chosen episodes lie, in order; :meth:`read` reads them.

        Args:
            by: what to sort by; without it the order is that of training.
            limit: how many places to return at most.

        Returns:
            Columns ``file``, ``row``, kind, step, version, task_id, source, group_id, sample_index, part, reward, stop_reason,
            and ``measure`` where it is sorted by something. Each trajectory has a place of its own.
        """
        rows = self._everywhere.filter(choice.expression())
        keys = _ORDER
        if by is not None:
            rows = rows.append_column("measure", pa.array(self._measured(rows, by), from_pandas=True))
            # Rewards are often equal: then the newest comes first.
            keys = [("measure", "ascending" if by is Measure.REWARD else "descending"), ("version", "descending"), *_ORDER[2:]]
        order = pc.sort_indices(rows, sort_keys=keys)
        return rows.take(order if limit is None else order[:limit])

    def read(self, places: pa.Table) -> Iterator[ReadTrajectory]:
        """Yield the trajectories at these places, in their order.

        They may lie scattered over many files, so that they are read in parts, and each file once for a part. The first part is
        small, so that the first episodes come soon; each further one is larger, as long as it takes no more than ``_HELD_BYTES``.

        Raises:
            EpisodesUnreadable: a file is damaged.
        """
        first, count = 0, _FIRST_PART
        while first < len(places):
            part = places.slice(first, count)
            files, numbers = part["file"].to_pylist(), part["row"].to_pylist()
            chosen: dict[str, list[int]] = {}
            for file, number in zip(files, numbers, strict=True):
                chosen.setdefault(file, []).append(number)
            tables = [self._rows_of_file(file, _READ).take(pa.array(rows)) for file, rows in chosen.items()]
            rows_of = {file: _each_row(table) for file, table in zip(chosen, tables, strict=True)}
            for file, number in zip(files, numbers, strict=True):
                try:
                    yield ReadTrajectory.from_row(next(rows_of[file]).to_pylist()[0])
                except (ValueError, TypeError) as error:
                    problem = f"row {number} of {file} is no episode: {error}; see asyncrl.episodes.schema"
                    raise EpisodesUnreadable(problem) from error
            first += count
            bytes_a_row = sum(table.nbytes for table in tables) / len(part)
            count = max(1, min(count * _GROWTH, int(_HELD_BYTES / bytes_a_row)))

    def tree(self, of: ReadTrajectory) -> list[Branch]:
        """Return the trajectories of the episode that a trajectory belongs to, in their order; none if it is the only one.

        Raises:
            EpisodesUnreadable: a file is damaged.
        """
        if (of.parts or 1) == 1:
            return []
        identity = {name: getattr(of, name) for name in ("version", "task_id", "group_id", "sample_index")}
        chosen = pc.field("kind") == of.kind.value
        for name, value in identity.items():
            chosen &= pc.field(name) == value
        columns = ["part", "role", "parent", "shared", "why", "trained", "token_ids"]
        with _readable(self.folder):
            rows = self._dataset.to_table(columns=columns, filter=chosen).sort_by("part")
        tokens = pc.fill_null(pc.list_value_length(rows["token_ids"]), 0)
        counted = rows.drop_columns("token_ids").append_column("tokens", tokens)
        return msgspec.convert(counted.to_pylist(), list[Branch])

    @cached_property
    def _everywhere(self) -> pa.Table:
        """Every row's place, and what it is chosen by; read once."""
        columns = ["kind", "step", "version", "task_id", "source", "group_id", "sample_index", "part", "reward", "stop_reason"]
        with _readable(self.folder):
            rows = self._dataset.to_table(columns=[*columns, _FILE])
        return rows.append_column("row", pa.array(_rows_of(rows[_FILE]))).rename_columns([*columns, "file", "row"])

    def _measured(self, rows: pa.Table, by: Measure) -> np.ndarray:
        if by is Measure.REWARD:
            return measure(rows, by)
        numbers, starts = rows["row"].to_numpy(), _starts(rows["file"])
        found = [np.zeros(0)]
        for start, end in pairwise([*starts, len(rows)]):
            file = rows["file"][int(start)].as_py()
            try:
                of_file = measure(self._rows_of_file(file, COLUMNS[by]), by)
            except (ValueError, IndexError, TypeError) as error:
                problem = f"the lists of an episode's tokens in {file} are not all as long as token_ids; move the file away"
                raise EpisodesUnreadable(problem) from error
            found.append(of_file[numbers[start:end]])
        return np.concatenate(found)

    def _rows_of_file(self, file: str, columns: Sequence[str]) -> pa.Table:
        with _readable(Path(file)):
            return pq.ParquetFile(file).read(columns=list(columns))


def no_such_episodes(reader: EpisodeReader, choice: Choice) -> RecipeError:
    """Make the error of a choice that no episode fits; it says which would."""
    kind = choice.kind or Kind.TRAIN
    unit, other = ("training step", "evaluation") if kind is Kind.TRAIN else ("evaluation of version", "training")
    steps = reader.steps(kind)
    if not steps:
        remedy = "show the others with --evaluation" if kind is Kind.TRAIN else "leave --evaluation out"
        return RecipeError("", f"{reader.folder} holds no episodes of {kind.value}, only of {other}", remedy)
    if choice.step is not None and choice.step not in steps:
        return RecipeError("", f"no episodes of {unit} {choice.step} are kept", f"there are: {_ranges(steps)}")
    column = "task_id" if choice.task is not None else "source"
    there = reader.table(msgspec.structs.replace(choice, task=None, source=None), [column])[column]
    found = pc.unique(there).drop_null().to_pylist()
    wanted = choice.task if choice.task is not None else choice.source
    some = first_few([short(value) for value in sorted(found)], 8)
    where = "" if choice.step is None else f" in {unit} {choice.step}"
    return RecipeError("", f"no episodes with {column} {short(wanted)} are kept{where}", f"there are: {some}")


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ``1 to 4, 6, 8 to 9``; of many ranges only the outermost."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    return ", ".join(texts if len(texts) <= 12 else [*texts[:6], "...", *texts[-6:]])


def _each_row(table: pa.Table) -> Iterator[pa.Table]:
    return (table.slice(row, 1) for row in range(len(table)))


def _starts(files: pa.ChunkedArray) -> np.ndarray:
    """Return where the rows of each file begin; the rows of a file lie together."""
    if not len(files):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.diff(files.combine_chunks().dictionary_encode().indices.to_numpy(), prepend=-1))


def _rows_of(files: pa.ChunkedArray) -> np.ndarray:
    """Return the number of each row in its file."""
    starts = _starts(files)
    numbers: np.ndarray = np.arange(len(files)) - np.repeat(starts, np.diff(starts, append=len(files)))
    return numbers


def _check_columns(file: str, found: pa.Schema) -> None:
    """Check that a file has the columns that no episode can be without, and that all have the types of the schema, or similar."""
    missing = [name for name in _NEEDED if name not in found.names]
    if missing:
        problem = f"{file} lacks the column {missing[0]}, so it holds no kept episodes; move it away"
        raise EpisodesUnreadable(problem)
    for field in SCHEMA:
        if field.name in found.names and not _alike(found.field(field.name).type, field.type):
            problem = f"column {field.name} of {file} is {found.field(field.name).type}, not {field.type}; move the file away"
            raise EpisodesUnreadable(problem)


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether both types are read alike; other programs write wider numbers, and texts without a dictionary."""
    if pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found) or pa.types.is_dictionary(wanted):
        return _alike(*(each.value_type if pa.types.is_dictionary(each) else each for each in (found, wanted)))
    for kinds in _NUMBERS, _TEXTS, _BYTES, _LISTS:
        if any(kind(wanted) for kind in kinds):
            if not any(kind(found) for kind in kinds):
                return False
            return kinds is not _LISTS or _alike(found.value_type, wanted.value_type)
    if pa.types.is_struct(wanted):
        inside = {found.field(place).name: found.field(place).type for place in range(found.num_fields)}
        return pa.types.is_struct(found) and all(
            each.name in inside and _alike(inside[each.name], each.type) for each in (wanted[i] for i in range(wanted.num_fields))
        )
    return bool(found.id == wanted.id)


@contextmanager
def _readable(where: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise EpisodesUnreadable(f"cannot read the episodes in {where}: {error}; move the damaged file away") from error
