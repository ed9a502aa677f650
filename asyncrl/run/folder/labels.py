"""What a person knows a run by: how it was launched, its tags and a note, in ``RUN/labels.json``."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.file_lock import lock_within
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.text import writable_json

CHANGED_WITHIN_S = 10.0
"""Seconds for which others may be changing the labels of a run before a change is refused."""
_TAG = re.compile(r"[\w][\w.:/+-]*")


class Labels(msgspec.Struct, frozen=True):
    """The labels of one run.

    Attributes:
        recipe: path or name of the recipe that was launched; empty if it was made in a program.
        overrides: the changes of it, as the command line takes them.
        tags: short words, each once.
        note: a sentence of the user's; empty if there is none.
    """

    recipe: str = ""
    overrides: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    note: str = ""

    @classmethod
    def read(cls, path: Path) -> "Labels":
        """Read a run's labels; a run without any, or with a file that cannot be read, has none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, ValueError, RecursionError):
            return cls()

    @classmethod
    def read_to_change(cls, path: Path) -> "Labels":
        """Read the labels of a run whose file is about to be written again; a run without a file has none.

        Raises:
            RecipeError: there is a file that cannot be read, whose labels would be lost.
        """
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, RecursionError) as error:
            problem = f"cannot read {str(path)!r}, whose labels would be lost: {getattr(error, 'strerror', None) or error}"
            raise RecipeError("", problem, "correct the file, or move it away so that the run has no labels") from error

    def write(self, path: Path) -> None:
        """Write the labels, whole or not at all.

        Raises:
            OSError: the disk refuses.
        """
        write_whole(path, msgspec.json.format(writable_json(self), indent=2) + b"\n")

    def with_tags(self, added: Sequence[str], removed: Sequence[str] = ()) -> "Labels":
        """Return the labels with some tags more and some less.

        Raises:
            RecipeError: a tag is no single word.
        """
        for tag in added:
            if not _TAG.fullmatch(tag):
                raise RecipeError("tags", f"{tag!r} is no tag", "write a word of letters, digits and . : / + - _")
        kept = (tag for tag in dict.fromkeys((*self.tags, *added)) if tag not in removed)
        return msgspec.structs.replace(self, tags=tuple(kept))


def change_labels(path: Path, change: Callable[[Labels], Labels]) -> Labels:
    """Change the labels of a run, and return them. One process at a time does so, lest one loses what another has added;
    labels that stay as they are, are not written.

    Raises:
        RecipeError: they cannot be read, or another process is changing them.
        OSError: the disk refuses.
    """
    before = Labels.read_to_change(path)
    if change(before) == before:
        return before
    with _changed_here_alone(path):
        labels = change(Labels.read_to_change(path))
        labels.write(path)
    return labels


@contextmanager
def _changed_here_alone(path: Path) -> Iterator[None]:
    lock = path.with_name(f".{path.name}.lock")
    with naming(lock), lock.open("a") as file:
        with suppress(OSError):  # another user has made it, or files have no permissions there
            os.fchmod(file.fileno(), path.parent.stat().st_mode & 0o666)  # whoever may write in the folder may label its run
        try:
            lock_within(file.fileno(), CHANGED_WITHIN_S)
        except BlockingIOError as error:
            problem = f"another process is changing {str(path)!r} for longer than {CHANGED_WITHIN_S:g} s"
            raise RecipeError("", problem, "wait for it, or stop it first") from error
        yield
