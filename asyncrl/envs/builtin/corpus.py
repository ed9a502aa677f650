"""A corpus of documents with a full-text index, in memory: SQLite's FTS5, ranked by BM25 (Robertson and Zaragoza 2009).

What always holds: every document has an id of its own, and text. Searching has no side effects, and any text can be a query.
"""

import re
import sqlite3
import threading
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.text import short

TITLE_WEIGHT = 4.0
"""How much more a word in the title counts than one in the text."""
LONGEST_QUERY = 64
"""Words of a query that are looked for."""

_WORD = re.compile(r"\w+")


class CorpusError(AsyncRLError):
    """A corpus cannot be read; the text names file and line."""


class Document(msgspec.Struct, frozen=True):
    """A line of a corpus."""

    id: str
    text: str
    title: str = ""


class Found(msgspec.Struct, frozen=True):
    """A document that a query has found, with the part of its text that fits best."""

    id: str
    title: str
    snippet: str


class _Line(msgspec.Struct):
    """A line of a corpus file; keys that are not known are left out."""

    id: str | int
    text: str
    title: str = ""


def read_corpus(path: Path) -> Iterator[Document]:
    """Yield the documents of a JSON-lines file.

    Raises:
        CorpusError: there is no such file, a line is no document, or two documents have the same id.
    """
    seen: dict[str, int] = {}
    decoder = msgspec.json.Decoder(_Line)
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                line = line.removeprefix(BOM_UTF8)
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    read = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise CorpusError(f'{where}: {error}; write each line as {{"id": ..., "title": ..., "text": ...}}') from error
                document = Document(str(read.id), read.text, read.title)
                if first := seen.get(document.id):
                    raise CorpusError(f"{where}: id {short(document.id)} is that of line {first}; give each document its own")
                if not document.text.strip():
                    raise CorpusError(f"{where}: document {short(document.id)} has no text; leave it out")
                seen[document.id] = number
                yield document
    except OSError as error:
        raise CorpusError(f"cannot read the corpus {path}: {error.strerror or error}; name a JSON-lines file") from error
    if not seen:
        raise CorpusError(f"the corpus {path} holds no document; write one on each line")


class Index:
    """The documents of a corpus, ready to be searched. May be used in several threads."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute("CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT UNIQUE)")
        tokenize = "unicode61 remove_diacritics 2"
        self._database.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (title, text, tokenize = '{tokenize}')")
        with self._database:
            for number, document in enumerate(documents, start=1):
                self._database.execute("INSERT INTO documents VALUES (?, ?)", (number, document.id))
                row = (number, document.title, document.text)
                self._database.execute("INSERT INTO texts (rowid, title, text) VALUES (?, ?, ?)", row)

    def search(self, query: str, count: int, snippet_words: int) -> Sequence[Found]:
        """Return the documents that fit ``query`` best, the best first: those that have any of its words."""
        words = dict.fromkeys(word.lower() for word in _WORD.findall(query))
        if not words:
            return ()
        terms = " OR ".join(f'"{word}"' for word in list(words)[:LONGEST_QUERY])
        snippet = f"snippet(texts, 1, '', '', ' ... ', {snippet_words})" if snippet_words else "''"
        sql = (
            f"SELECT documents.id, title, {snippet} FROM texts JOIN documents ON number = texts.rowid "
            f"WHERE texts MATCH ? ORDER BY bm25(texts, {TITLE_WEIGHT}, 1.0), texts.rowid LIMIT ?"
        )
        with self._lock:
            return [Found(*row) for row in self._database.execute(sql, (terms, count))]

    def read(self, document: str) -> Document | None:
        """Return the document of an id; None if there is none."""
        sql = "SELECT documents.id, text, title FROM documents JOIN texts ON number = texts.rowid WHERE documents.id = ?"
        with self._lock:
            row = self._database.execute(sql, (document,)).fetchone()
        return None if row is None else Document(*row)

    def close(self) -> None:
        """Free the memory."""
        with self._lock:
            self._database.close()
