"""The folder of what is made once on a machine and found again from then on."""

import os
from pathlib import Path

CACHE_VARIABLE = "ASYNCRL_CACHE"


def cache_folder() -> Path:
    """The folder ``$ASYNCRL_CACHE``, or ``~/.cache/asyncrl`` if the variable is not set."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "asyncrl")
