"""Has numba make machine code of loops over numbers, in Python, for the processor at hand.

The code is made when it is called first, and kept where numba keeps such code: beside the file, or in the user's cache. What
always holds: while it runs, other threads of Python do, too.
"""

import logging
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

FAST_FLOATS = {"reassoc", "contract", "nsz", "arcp"}
"""What numba may change in the arithmetic of float numbers: their order and rounding, but nothing of infinity or what is not a
number."""


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a loop; its arguments are numbers and arrays, whose types choose the code."""
    options = {"nogil": True, "error_model": "numpy", "fastmath": FAST_FLOATS}
    try:
        made: Callable[..., Any] = numba.njit(loop, cache=True, **options)
    except RuntimeError as error:  # numba's word for that no folder can be written to
        logger.info("the machine code of %s is made anew in each process: %s", loop.__name__, error)
        made = numba.njit(loop, **options)
    return made
