"""Task groups raise groups of errors; the first of them is the cause, the others only followed from it."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def first_error() -> Iterator[None]:
    """Raise the first error of a group that the enclosed task groups raise, instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
