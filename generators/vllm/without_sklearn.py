"""Imports transformers, and vLLM, which imports it, without scikit-learn."""

from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.core.process.long_import import long_import

_ASKED = "is_sklearn_available"
"""The function of ``transformers.utils`` that its modules ask before they import scikit-learn."""


@contextmanager
def without_sklearn() -> Iterator[None]:
    """Return the context of a :func:`asyncrl.core.process.long_import` within which transformers says that scikit-learn is not
    installed.

    Where it is installed, transformers imports it with every language model, and pandas with it, for assisted generation alone:
    about a second of processor time and 75 MB. Modules imported within keep the answer and do without. Everybody else
    gets the true answer afterwards, and may import scikit-learn at any time.
    """
    with long_import():
        from transformers import utils

        answer = getattr(utils, _ASKED, None)
        if answer is None or answer is _no:  # another version of transformers, or another thread, which will restore the answer
            yield
            return
        setattr(utils, _ASKED, _no)
        try:
            yield
        finally:
            setattr(utils, _ASKED, answer)


def _no() -> bool:
    return False
