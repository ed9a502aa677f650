"""Reads a file of tasks in columns, Parquet or an Arrow stream, once; a row becomes Python values when it is drawn.

Columns are cast to types that JSON has: text, numbers, booleans, null, lists, objects. Dates, times and decimals become text, and
categories become their values. Bytes, durations and all other types that JSON does not have are refused.

Every object in a table has the fields of all others of its column: what it did not have is null there. So a null in an object is
left out, and the object has the keys that it would have in JSON lines. Only where a field has no type, because it is null
everywhere, the null was meant, and is kept. A row has every column, and None where it is null.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from asyncrl.buffers.tasks.task_columns import Columns
from asyncrl.buffers.tasks.task_rows import Row
from asyncrl.core.errors import RecipeError
from asyncrl.core.text import short

PARQUET_MAGIC = b"PAR1"


class ArrowTable:
    """The rows of one file.

    Attributes:
        digest: digest of the file's bytes.
        whole: at first only those columns are read that tell what a row asks, and those whose values may be none: JSON text, and
            maps, which may have a key twice.
        long_integers: none, as the types of columns have at most 64 bits.

    Args:
        path: path of a Parquet file, or of an Arrow stream as Hugging Face datasets writes it.
        place: recipe key of the source, for errors.

    Raises:
        RecipeError: the file cannot be read, or a column holds values that a task cannot have.
    """

    whole = False

    def __init__(self, path: Path, place: str, columns: Columns) -> None:
        self._path, self._columns = path, columns
        self.long_integers: dict[str, None] = {}
        try:
            with pa.OSFile(str(path)) as file:
                content = file.read_buffer()
            is_parquet = content[: len(PARQUET_MAGIC)].to_pybytes() == PARQUET_MAGIC
            reader = pa.BufferReader(content)
            table = pq.ParquetFile(reader).read() if is_parquet else pa.ipc.open_stream(reader).read_all()
            table.validate(full=True)  # otherwise text that is not UTF-8 is only found when its row is drawn
        except (OSError, pa.ArrowException) as error:
            raise RecipeError(place, f"cannot read {path} ({error})", "name a readable, whole file") from error
        self.digest = blake2b(content, digest_size=16).hexdigest()
        self._types = {field.name: field.type for field in table.schema}
        self._batches = self._plain(table, place).to_batches()
        self._ends = list(accumulate(batch.num_rows for batch in self._batches))

    def rows(self) -> Iterator[Row]:
        """Yield the columns that tell what every row asks, and those that may hold what is none, in order."""
        texts = [path for key, path in self._columns.paths() if key.startswith("json")]
        named = {name for path in texts for name in (path, path.partition(".")[0])}
        named |= {*self._columns.needed(), *(name for name, found in self._types.items() if _has_map(found))}
        needed = [name for name in self._types if name in named]
        for batch in self._batches:
            for row in batch.select(needed).to_pylist():
                try:
                    yield Row({name: without_absent(value, self._types[name]) for name, value in row.items()})
                except RepeatedKey as repeated:
                    yield Row({}, f"{repeated}; leave one out")

    def has(self, path: str) -> bool:
        """Whether the table has a column, or an object in one may have the field that the path leads to."""
        if path in self._types or self._columns.leads_into_text(path):
            return True
        name, *rest = path.split(".")
        found = self._types.get(name)
        for part in rest:
            if found is None or not types.is_struct(found) or found.get_field_index(part) < 0:
                return False
            found = found.field(part).type
        return found is not None

    def names(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._types)

    def where(self, position: int) -> str:
        """Return where the row is, for messages."""
        return f"{self._path} row {position} (from 0)"

    def number(self, position: int) -> int:
        """Return the row's number, counted from 0."""
        return position

    def row(self, position: int) -> dict[str, Any]:
        """Return the row as Python values."""
        index = bisect_right(self._ends, position)
        batch = self._batches[index]
        first = self._ends[index] - batch.num_rows
        row: dict[str, Any] = batch.slice(position - first, 1).to_pylist()[0]
        return {name: without_absent(value, self._types[name]) for name, value in row.items()}

    def _plain(self, table: pa.Table, place: str) -> pa.Table:
        """Cast every column to a type that JSON has."""
        columns = table.schema.names
        if len(set(columns)) < len(columns):
            raise RecipeError(place, f"{self._path} has two columns with the same name among {columns}", "rename one")
        fields = []
        for field in table.schema:
            plain = _plain_type(field.type)
            if plain is None:
                problem = f"column {field.name!r} of {self._path} holds {field.type}, for which JSON has no type"
                raise RecipeError(place, problem, "leave that column out, or write it as text")
            fields.append(pa.field(field.name, plain))
        prompt_column = self._columns.prompt
        if prompt_column in columns:
            prompt = _plain_type(table.schema.field(prompt_column).type)
            if not (_is_text(prompt) or types.is_null(prompt) or _is_list_of_objects(prompt)):
                problem = f"column {prompt_column!r} of {self._path} holds {prompt}, but a prompt is text or chat messages"
                remedy = "name a column of text, or of lists of messages that each have a role and a content"
                raise RecipeError(f"{place}.columns.prompt", problem, remedy)
        return table.cast(pa.schema(fields))


class RepeatedKey(ValueError):
    """A map has a key twice; the text reads well after the row's place."""


def without_absent(value: Any, found: pa.DataType) -> Any:
    """Return a value of type ``found`` without the fields that its objects do not have; maps, which are pairs, become objects.

    Raises:
        RepeatedKey: a map has a key twice.
    """
    if isinstance(found, pa.BaseExtensionType):
        return without_absent(value, found.storage_type)
    if types.is_dictionary(found):
        return without_absent(value, found.value_type)
    if isinstance(value, list) and types.is_map(found):
        pairs = {key: without_absent(each, found.item_type) for key, each in value}
        if len(pairs) < len(value):
            twice = next(key for key, count in Counter(key for key, _ in value).items() if count > 1)
            raise RepeatedKey(f"has a map with the key {short(twice)} twice, of which one would be lost")
        return pairs
    if isinstance(value, list):
        return [without_absent(each, found.value_type) for each in value]
    if isinstance(value, dict) and types.is_struct(found):
        kinds = {found.field(index).name: found.field(index).type for index in range(found.num_fields)}
        own = {name for name, each in value.items() if each is not None or types.is_null(kinds[name])}
        return {name: without_absent(each, kinds[name]) for name, each in value.items() if name in own}
    return value


def _has_map(found: pa.DataType) -> bool:
    """Whether values of a type have maps in them."""
    return types.is_map(found) or any(_has_map(found.field(index).type) for index in range(found.num_fields))


def _plain_type(found: pa.DataType) -> pa.DataType | None:
    """Return the type that a column is cast to; None if JSON has no type for it."""
    if isinstance(found, pa.BaseExtensionType):
        return _plain_type(found.storage_type)
    if types.is_dictionary(found):
        return _plain_type(found.value_type)
    if types.is_float16(found):
        return pa.float32()
    if types.is_timestamp(found) or types.is_date(found) or types.is_time(found) or types.is_decimal(found):
        return pa.string()
    if types.is_null(found) or types.is_boolean(found) or types.is_integer(found) or types.is_floating(found) or _is_text(found):
        return found
    return _plain_nested_type(found)


def _plain_inner_type(found: pa.DataType) -> pa.DataType | None:
    # Arrow miscounts the nulls when it casts what lies in a list to the type null; as text they are as many as before.
    return pa.string() if types.is_null(found) else _plain_type(found)


def _plain_nested_type(found: pa.DataType) -> pa.DataType | None:
    if types.is_struct(found):
        inner = [(found.field(index).name, _plain_inner_type(found.field(index).type)) for index in range(found.num_fields)]
        return pa.struct(inner) if all(plain is not None for _, plain in inner) else None
    if types.is_map(found):
        plain = _plain_inner_type(found.item_type)
        return pa.map_(found.key_type, plain) if plain is not None and _is_text(found.key_type) else None
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        plain = _plain_inner_type(found.value_type)
        # Lists of a fixed size become plain lists: their size is not needed.
        return plain and (pa.large_list(plain) if types.is_large_list(found) else pa.list_(plain))
    return None


def _is_text(found: pa.DataType | None) -> bool:
    return found is not None and (types.is_string(found) or types.is_large_string(found) or types.is_string_view(found))


def _is_list_of_objects(found: pa.DataType | None) -> bool:
    if found is None or not (types.is_list(found) or types.is_large_list(found)):
        return False
    return bool(types.is_struct(found.value_type) or types.is_map(found.value_type))
