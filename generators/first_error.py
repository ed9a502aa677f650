"""Task groups raise groups of errors; the first of them is the cause, the others only followed from it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def first_error() -> Iterator[None]:
    """Raise, of a group of errors out of the enclosed task groups, the first."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
