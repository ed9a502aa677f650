"""Writes the columns of kept episodes into docs/reference/trajectories.md: ``python -m docs.pages.columns``.

Names, types and meanings come from :mod:`asyncrl.episodes.schema` and from nowhere else.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from asyncrl.episodes.schema import CALL, SCHEMA, TURN

_BEGIN, _END = "<!-- columns: written by `python -m docs.pages.columns` -->", "<!-- end of columns -->"


def columns() -> str:
    """The columns as Markdown: a table of the file's, of a turn's, and of a call's. A class unpacks a trajectory's experts."""
    parts = ((SCHEMA, ""), (TURN, "A turn, in `turns`:"), (CALL, "A tool call, in `turns.calls`:"))
    return "\n\n".join("\n".join(_table(fields, title)) for fields, title in parts)


def with_columns(page: str) -> str:
    """Return ``page`` with the columns between its marks as they are now."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the columns: it must have the lines {_BEGIN!r} and {_END!r}")
    return f"{before}{begin}\n\n{columns()}\n\n{end}{after}"


def _table(fields: Iterable[pa.Field], title: str) -> Iterator[str]:
    if title:
        yield f"{title}\n"
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for field in fields:
        yield f"| `{field.name}` | {_type(field.type)} | {field.metadata[b'meaning'].decode()} |"


def _type(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map of {_type(kind.key_type)} to {_type(kind.item_type)}"
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "struct"
    return "string" if pa.types.is_dictionary(kind) else str(kind)


def main(argv: Sequence[str]) -> None:
    """Write the columns into the page named, by default docs/reference/trajectories.md of the checkout."""
    parser = argparse.ArgumentParser(description="Write the columns of kept episodes into their page.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/trajectories.md"))
    file: Path = parser.parse_args(argv).file
    file.write_text(with_columns(file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
