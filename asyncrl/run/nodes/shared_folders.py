"""Finds out which nodes of a cluster see the folders of this machine that a run needs, before the run's own process joins, how
much memory is free there for files, and whether this program is there in the same version.

What always holds: a folder counts as seen where a file that was put there a moment ago is seen under the same path, so that no
folder of the same name is taken for it; a model's folder counts as seen where it holds the same model.

``python -m asyncrl.run.nodes.shared_folders`` joins the cluster that ``RAY_ADDRESS`` names, asks the nodes that its standard
input names, and leaves it.
"""

import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.files.file_errors import refusing
from asyncrl.core.files.hub import is_hub_id
from asyncrl.core.files.memory_files import free_memory
from asyncrl.core.measures.units import memory
from asyncrl.core.process.asked_python import ask_python
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.weights import DiskWeightsConfig
from asyncrl.core.storage.address import is_address, local_run_dir
from asyncrl.learners.tiny.cache import default_cache_root
from asyncrl.run.host.brought_folder import file_system, folder_to_bring
from asyncrl.run.models.model_identity import ModelFile, model_files
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.nodes.cluster_nodes import Nodes
from asyncrl.run.nodes.process_kinds import LEARNER, REWARD_MODEL, TEACHER

LOOK_S = 120.0
"""How long the nodes may take to look, in seconds; each starts a process for it."""
_Seen = tuple[list[str], int]
"""The names of the folders that a node sees, and the bytes that are free in its memory file system."""
_CURRENT, _RUN, _WEIGHTS, _MODEL = "current folder", "run folder", "folder of weights", "model"


class FolderOnNodes(msgspec.Struct, frozen=True):
    """A folder of this machine, and what other nodes of a run have of it.

    Attributes:
        name: what it is for.
        path: where it lies, or will lie, on this machine.
        blind: hosts of the run that do not see it.
        instead: what is done for these.
    """

    name: str
    path: Path
    blind: tuple[str, ...]
    instead: str


class OtherNodes(msgspec.Struct, frozen=True):
    """What the other nodes of a planned run said.

    Attributes:
        folders: what they have of this machine's folders.
        free_memory: bytes that are free in the memory file system of each, by its id.
    """

    folders: tuple[FolderOnNodes, ...] = ()
    free_memory: Mapping[str, int] = {}


class _Answer(msgspec.Struct, frozen=True):
    """What nodes answered, by their ids.

    Attributes:
        versions: this program's version on each; empty if that is not known, None if it is not there.
        seen: what each node sees; of none if a node does not have this program.
    """

    versions: Mapping[str, str | None]
    seen: Mapping[str, _Seen] = {}


class _Look(msgspec.Struct, frozen=True):
    """What nodes are asked: files that they may see, and models that they may hold, each by the name of its folder.

    Attributes:
        from_here: the file system of who asks.
    """

    nodes: Sequence[str]
    from_here: tuple[str, str]
    marks: Mapping[str, str]
    models: Mapping[str, tuple[str, tuple[ModelFile, ...]]]


def ask_other_nodes(recipe: Recipe, placed: Mapping[str, Sequence[str]], nodes: Nodes, run: Path | None) -> OtherNodes:
    """Ask the other nodes of a planned run what they see of its folders; nobody is asked if it only uses this machine.

    Args:
        placed: the ids of the nodes of each part's processes.
        run: the folder of a run that is resumed; None for a new one.

    Raises:
        RecipeError: a folder that several nodes must share is not shared, a node has another version of this program, or
            the nodes did not answer.
    """
    others = sorted({node for places in placed.values() for node in places} - {nodes.driver})
    if not others:
        return OtherNodes()
    runs = run or local_run_dir(recipe.run_dir)
    wanted = {_RUN: runs}
    if isinstance(recipe.weights, DiskWeightsConfig) and recipe.weights.folder is not None:
        wanted[_WEIGHTS] = Path(recipe.weights.folder)
    models = {_MODEL: recipe.model.path}
    if isinstance(recipe.reward, ModelRewardConfig):
        models[REWARD_MODEL] = recipe.reward.path
    if recipe.algorithm.teacher is not None and recipe.algorithm.teacher.path is not None:
        models[TEACHER] = recipe.algorithm.teacher.path
    here = {name: Path(path).resolve() for name, path in models.items() if not _is_fetched(path)}
    caches = {name: _cache_of(path) for name, path in models.items() if name not in here}
    to_come = {name: path for name, path in caches.items() if os.access(_existing(path), os.W_OK)}
    with ExitStack() as stack:
        marks = {name: _mark(path, stack) for name, path in (wanted | to_come).items()}
        looks = _Look(others, file_system(), marks, {name: (str(path), model_files(path)) for name, path in here.items()})
        answer = _ask(looks)
    hosts = {node.id: node.host for node in nodes.alive}
    refuse_other_versions(answer.versions, hosts)
    seen = answer.seen
    blind = {name: {node for node in others if name not in seen[node][0]} for name in (_CURRENT, *marks, *here)}
    refuse_blind(recipe, runs, hosts, blind[_RUN], placed)
    if blind.get(_WEIGHTS):
        raise _not_shared("weights.folder", wanted[_WEIGHTS], hosts, blind[_WEIGHTS], "weights go through it")
    described = _described(wanted, here | to_come)
    folders = tuple(
        FolderOnNodes(name, path, tuple(sorted(hosts[node] for node in blind[name])), instead)
        for name, path, instead in described
    )
    return OtherNodes(folders, {node: free for node, (_, free) in seen.items()})


def refuse_other_versions(versions: Mapping[str, str | None], hosts: Mapping[str, str]) -> None:
    """Refuse nodes without this program, or with another version of it: its processes would not understand each other.

    Args:
        versions: the version on each node, as :func:`installed` returns it.
        hosts: the host of each node.

    Raises:
        RecipeError: a node has none, or another one.
    """
    here = installed()
    for node, there in versions.items():
        if there is None or (here and there and there != here):
            has = "no asyncrl" if there is None else f"asyncrl {there}"
            remedy = "install the same on each node, for the Python that Ray runs with"
            raise RecipeError("", f"{hosts[node]} has {has}, and this machine has {here or 'one without a version'}", remedy)


def refuse_blind(
    recipe: Recipe, run: Path, hosts: Mapping[str, str], blind: Collection[str], placed: Mapping[str, Collection[str]]
) -> None:
    """Refuse a run that needs its folder on nodes that do not see it.

    Args:
        hosts: the host of each node.
        blind: the nodes that do not see the run's folder.
        placed: the nodes of each part.

    Raises:
        RecipeError: learner ranks write checkpoints there, or weights go through it.
    """
    if ranks := set(blind).intersection(placed[LEARNER]):
        raise _not_shared("run_dir", run, hosts, ranks, "learner ranks there write checkpoints into it")
    if blind and isinstance(recipe.weights, DiskWeightsConfig) and recipe.weights.folder is None:
        raise _not_shared("run_dir", run, hosts, blind, "new weights go through it, since weights.folder names no other")


def _not_shared(key: str, path: Path, hosts: Mapping[str, str], blind: Collection[str], why: str) -> RecipeError:
    problem = f"{path} is not seen on {', '.join(sorted(hosts[node] for node in blind))}, and {why}"
    return RecipeError(key, problem, "name a folder on a file system that these nodes share with this machine")


def _described(wanted: Mapping[str, Path], models: Mapping[str, Path]) -> Iterator[tuple[str, Path, str]]:
    current = folder_to_bring(Path.cwd())
    copied = f"Ray brings a copy of {memory(current.size)}{current.without_links}"
    yield _CURRENT, current.path, f"not brought, {current.problem}; {current.remedy}" if current.problem else copied
    yield _RUN, wanted[_RUN], "logs and kept episodes of processes there are brought to it"
    if _WEIGHTS in wanted:
        yield _WEIGHTS, wanted[_WEIGHTS], ""
    for name, path in models.items():
        yield name, path, "fetched there, into the node's cache"


def _is_fetched(model: str) -> bool:
    """Whether a model is made or fetched at launch."""
    return model == TINY or is_hub_id(model) or is_address(model)


def _cache_of(model: str) -> Path:
    """Where a model will lie that is made or fetched at launch."""
    if model == TINY:
        return default_cache_root()
    if is_address(model):
        return cache_folder()
    from huggingface_hub.constants import HF_HUB_CACHE  # takes a moment

    return Path(HF_HUB_CACHE)


def _mark(path: Path, stack: ExitStack) -> str:
    """Put a file into a folder, or into the one in which it will be made, until ``stack`` is closed; returns its path."""
    there = _existing(path)
    with refusing(f"write to {str(there)!r}", "name a folder that you may write to, e.g. with run_dir=runs", "run_dir"):
        return stack.enter_context(tempfile.NamedTemporaryFile(prefix=".asyncrl-seen-", dir=there)).name


def _existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _ask(look: _Look) -> _Answer:
    """Return what the nodes answer."""
    remedy = "see whether its nodes are alive with `ray status`"
    try:
        return ask_python(_Answer, ("-m", "asyncrl.run.nodes.shared_folders"), LOOK_S, msgspec.json.encode(look))
    except TimeoutError as late:
        raise RecipeError("", f"the cluster's nodes did not say within {LOOK_S:g} s which folders they see", remedy) from late
    except ComponentFailed as failure:
        raise RecipeError("", f"the cluster's nodes cannot say which folders they see: {failure}", remedy) from failure


def installed() -> str | None:
    """Return this program's version; empty if that is not known, None if it is not there.

    It runs on nodes that may not have this program, and so calls nothing of it.
    """
    from importlib import metadata, util

    try:
        return metadata.version("asyncrl")
    except metadata.PackageNotFoundError:
        return None if util.find_spec("asyncrl") is None else ""


def _seen(from_here: tuple[str, str], marks: Mapping[str, str], models: Mapping[str, tuple[str, tuple[ModelFile, ...]]]) -> _Seen:
    """Return what is seen on this node."""
    seen = [name for name, path in marks.items() if Path(path).exists()]
    seen += [name for name, (path, files) in models.items() if model_files(Path(path)) == files]
    return ([_CURRENT, *seen] if from_here == file_system() else seen), free_memory()


def _main() -> None:
    import logging

    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = msgspec.json.decode(sys.stdin.buffer.read(), type=_Look)
    ray.init(log_to_driver=False, logging_level=logging.ERROR)  # RAY_ADDRESS says which cluster

    def ask(function: Any, *arguments: object) -> dict[str, Any]:
        asking = ray.remote(num_cpus=0)(function)
        nodes = {node: NodeAffinitySchedulingStrategy(node, soft=False) for node in look.nodes}
        answers = [asking.options(scheduling_strategy=node).remote(*arguments) for node in nodes.values()]
        return dict(zip(nodes, ray.get(answers, timeout=LOOK_S), strict=True))

    answer = _Answer(ask(installed))
    if None not in answer.versions.values():
        answer = _Answer(answer.versions, ask(_seen, look.from_here, look.marks, look.models))
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    ray.shutdown()


if __name__ == "__main__":
    _main()
