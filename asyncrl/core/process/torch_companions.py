"""Hides packages that were built for GPUs where torch was built for CPUs.

vLLM's build for CPUs requires them, pip takes torch from one index and them from another, and neither vLLM nor transformers can
then be imported, because both import them wherever they are installed. Models of texts do without them.
"""

import re
import sys
from contextlib import suppress
from pathlib import Path

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
_CPU, _GPU = re.compile(r"^cuda\b.*= None$", re.MULTILINE), re.compile(r"^__version__ = '[^']*\+cu\d+'$", re.MULTILINE)


def hide_those_for_gpus() -> None:
    """Have each import of such a package say that there is none. Call it before anything imports torch, which it does not."""
    if not _CPU.search(_version_file("torch")):
        return
    for package in COMPANIONS:
        if package not in sys.modules and _GPU.search(_version_file(package)):
            sys.modules[package] = None  # type: ignore[assignment] # as importlib documents it


def _version_file(package: str) -> str:
    """The text of the file in which a package of torch's kind says what it was built for; empty if it is not installed."""
    for folder in sys.path:
        with suppress(OSError):
            return Path(folder, package, "version.py").read_text()
    return ""
