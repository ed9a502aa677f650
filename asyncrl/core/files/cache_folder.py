"""The folder of what is made once on a machine and found again from then on."""

import os
from pathlib import Path

CACHE_VARIABLE = "ASYNCRL_CACHE"


def cache_folder() -> Path:
    """The folder ``$ASYNCRL_CACHE``, or ``~/.cache/asyncrl`` if the variable is not set.

    Raises:
        OSError: the variable is not set, and this user has no home folder.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    try:
        return Path.home() / ".cache" / "asyncrl"
    except RuntimeError as error:
        raise OSError(f"user {os.getuid()} has no home folder here for what is kept; set HOME or {CACHE_VARIABLE}") from error
