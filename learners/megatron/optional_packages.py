"""Hides from Megatron the installed packages that it would import by itself and that cannot be used in this process.

What always holds after :func:`hide_unusable`: Megatron sees an optional package either working or not at all. By itself, Megatron
takes a package for usable that it can begin to import, expects no other error than ``ImportError`` from it, and prefers its
optimizers to torch's.
"""

import importlib
import importlib.util
import logging
import sys

import torch

from asyncrl.learners.megatron.engine import PACKAGE, why_unusable

logger = logging.getLogger(__name__)

KERNELS = ("deep_ep", "flash_attn", "flash_attn_3", "flash_mla", "flashattn_hopper", "flashinfer", "grouped_gemm")
"""Packages with code for GPUs, compiled against one version of torch, that Megatron and TransformerEngine import if they are
installed."""
NEVER_USED = "apex"
"""Megatron takes its optimizer where TransformerEngine's is lacking; checkpoints are made for that one and for torch's alone."""


def hide_unusable() -> None:
    """Hide what cannot be used. Call it before the first import of ``megatron.core``; without a GPU, all of it is hidden."""
    _hide(NEVER_USED)
    on_gpu = torch.cuda.is_available()
    for package in KERNELS:
        if not (on_gpu and _can_be_imported(package)):
            _hide(package)
    if why_unusable():
        _hide(PACKAGE)


def _can_be_imported(package: str) -> bool:
    if importlib.util.find_spec(package) is None:
        return False
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - a broken installation raises anything; none of these is needed
        logger.warning("%s is installed, but cannot be imported, so it is not used: %s: %s", package, type(error).__name__, error)
        return False
    return True


def _hide(package: str) -> None:
    """Have each import of the package say that there is none, whatever a failed import of it has left."""
    if sys.modules.get(package, package) is None:
        return  # it has been hidden, and so nothing of it was imported since
    for name in [name for name in list(sys.modules) if name.partition(".")[0] in (package, f"{package}_torch")]:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment] # as importlib documents it
