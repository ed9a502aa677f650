"""Imports large libraries without looking for garbage meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_import() -> Iterator[None]:
    """Return the context of an import of a large library.

    Nearly all that such an import makes stays. Python would look through it for garbage again and again, which takes a tenth to a
    fifth of the processor time of importing vLLM. The next collection after it finds what garbage there is.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
