"""Looks at what a GPU's kernels are built with: Triton compiles in each run, and TransformerEngine's part for torch once."""

import os
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from asyncrl.run.doctor.finding import Finding, fine, problem

ENGINE = "transformer-engine[core_cu13,pytorch]>=2.9.0a0,<2.12"
"""The versions of TransformerEngine that megatron-core takes."""
BUILD = f"NVTE_FRAMEWORK=pytorch pip install --no-build-isolation '{ENGINE}'"
"""Builds TransformerEngine's part for torch against the torch that is installed. pip's isolation would take the newest torch."""
REBUILD = (
    "NVTE_FRAMEWORK=pytorch pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps "
    "transformer-engine-torch==VERSION"
)
"""Builds it anew: without ``--no-cache-dir``, pip takes the build of last time."""


def check_compiler() -> Iterator[Finding]:
    """Whether Triton can compile the C code that launches its kernels: vLLM's, torch's and the learner's own."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    lacking = [] if compiler and shutil.which(compiler) else ["a C compiler (gcc)"]
    lacking += [] if header.exists() else [f"Python's headers ({header})"]
    if lacking:
        python = f"python{sysconfig.get_python_version()}"
        yield problem(
            "compiler",
            f"{' and '.join(lacking)} not found: Triton's kernels, of which engines and learner have many, cannot be built",
            f"install gcc and {python}-dev, e.g. apt-get install gcc g++ {python}-dev",
        )
    else:
        yield fine("compiler", f"{compiler}, and Python's headers")


def lacking_to_build_engine(folders: Sequence[Path] | None = None) -> list[str]:
    """Say what TransformerEngine's part for torch could not be built without.

    Args:
        folders: where headers are looked for; by default, where its compiler looks.
    """
    folders = _header_folders() if folders is None else folders
    lacking = [] if shutil.which("nvcc") or (_toolkit() / "bin" / "nvcc").exists() else ["nvcc (CUDA's toolkit)"]
    lacking += [] if shutil.which("g++") else ["g++"]
    return lacking + [name for name in ("cudnn.h", "nccl.h") if not any((folder / name).exists() for folder in folders)]


def _toolkit() -> Path:
    return Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")


def _header_folders() -> list[Path]:
    named = [Path(folder) for folder in os.environ.get("CPATH", "").split(os.pathsep) if folder]
    system = Path("/usr/include")
    return [*named, _toolkit() / "include", system, *system.glob("*-linux-gnu")]
