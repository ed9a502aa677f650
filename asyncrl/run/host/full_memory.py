"""Says of a run that failed that the memory file system of this machine is full.

The system ends processes that write there then, Ray's among them: all that shows is that they are gone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded
from asyncrl.core.files.file_errors import explained
from asyncrl.core.files.memory_files import LEAST_BYTES, free_memory, memory_file_system
from asyncrl.core.measures.units import memory


@contextmanager
def naming_full_memory() -> Iterator[None]:
    """Add to what fails in this context that the memory file system is full, if it is and the error does not name it.

    Raises:
        ComponentFailed: it is full, and in this context a ``ComponentFailed``, a ``DeadlineExceeded`` or a group of errors was
            raised.
    """
    try:
        yield
    except (ComponentFailed, DeadlineExceeded, BaseExceptionGroup) as error:
        free, place, reason = free_memory(), memory_file_system(), first_reason(error)
        if free >= LEAST_BYTES or str(place) in reason:
            raise
        remedy = "where none is left, the system ends processes that write there: make room, then resume the run"
        problem = f"{reason}; {place} of this machine has {memory(free)} free"
        raise ComponentFailed(f"{problem}; {remedy}") from error


def first_reason(error: BaseException) -> str:
    """Return the text of the error that caused the others."""
    while isinstance(error, BaseExceptionGroup):
        error = next((own for own in error.exceptions if isinstance(own, AsyncRLError)), error.exceptions[0])
    if isinstance(error, OSError):
        return explained(error)
    return str(error) if isinstance(error, AsyncRLError) else f"{type(error).__name__}: {error}"
