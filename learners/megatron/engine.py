"""Whether the layers are TransformerEngine's, decided before Megatron's configuration is made: its fusions depend on it."""

import importlib
import importlib.util
import logging
from functools import lru_cache

import torch

logger = logging.getLogger(__name__)

PACKAGE = "transformer_engine"
_NOT_INSTALLED = "it is not installed"


def engine_layers(dtype: torch.dtype) -> bool:
    """Whether the layers are TransformerEngine's, whose attention takes packed rows in half precision only."""
    if not torch.cuda.is_available() or dtype is torch.float32:
        return False
    unusable = why_unusable()
    if unusable and unusable != _NOT_INSTALLED:
        _warn_once(unusable)
    return not unusable


@lru_cache(maxsize=1)
def why_unusable() -> str:
    """Say why TransformerEngine cannot be used in this process; empty if it can.

    The answer is kept, because a package that cannot be used is hidden afterwards (``learners/megatron/optional_packages.py``).
    """
    # Check for a GPU first: without one, the package may be installed all the same, and its import fails in many ways.
    if not torch.cuda.is_available():
        return "there is no GPU"
    if importlib.util.find_spec(PACKAGE) is None:
        return _NOT_INSTALLED
    try:
        importlib.import_module(f"{PACKAGE}.pytorch")
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything, and the layers do without it
        return f"it is installed, but cannot be imported: {type(error).__name__}: {error}"
    return ""


@lru_cache(maxsize=1)
def _warn_once(unusable: str) -> None:
    logger.warning(
        "TransformerEngine is not used, and layers are Megatron's plain ones: %s; `asyncrl doctor` says what would mend it",
        unusable,
    )
