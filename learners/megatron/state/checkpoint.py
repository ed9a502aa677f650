"""The learner's state on disk, by Megatron's dist_checkpointing: trained weights, optimizer, random streams, version.

What always holds: a checkpoint appears under its name whole or not at all. It is the state at the call of
:func:`start_saving`, however much is trained while it is written. Ranks in any layout can load it; in the same layout,
training continues exactly as it would have, to the bit. The learning rate is a function of the version, so a schedule
has no state to save.
"""

import shutil
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedStateDict, StateDict
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from torch.distributed.checkpoint import CheckpointException, Metadata

from asyncrl.core.errors import AsyncRLError, DeadlineExceeded
from asyncrl.core.files.durable import sync
from asyncrl.core.files.file_errors import cause_and_remedy
from asyncrl.device.pinning import HostArena
from asyncrl.learners.checkpointing import checkpoint_manifest, checkpoints
from asyncrl.learners.checkpointing.checkpoint_manifest import (
    CheckpointDamaged,
    CheckpointNotWritten,
    CheckpointShape,
    Manifest,
    Progress,
    StoredFile,
)
from asyncrl.learners.megatron import lora, optimizer_state, parallel
from asyncrl.learners.megatron.model import PolicyModel
from asyncrl.learners.megatron.model_config import PolicyConfig, has_experts
from asyncrl.learners.megatron.network import Network
from asyncrl.learners.megatron.state import checkpoint_reader
from asyncrl.learners.megatron.state.checkpoint_writer import PlannedSave, Written
from asyncrl.learners.rank import RankSpec

_T = TypeVar("_T")
_PREFIXES = ("", "critic.")
"""What the names of each network's tensors start with."""


class LearnerState(msgspec.Struct, frozen=True):
    """What one rank saves and loads: the policy and, if there is one, the critic.

    Attributes:
        arena: where a checkpoint is copied before it is written.
    """

    networks: Sequence[Network]
    shape: CheckpointShape
    spec: RankSpec
    arena: HostArena


def shape_of(config: PolicyConfig, critic: bool) -> CheckpointShape:
    """The shape of the model that ``config`` describes, alone or with a critic."""
    transformer = config.transformer
    return CheckpointShape(
        layers=transformer.num_layers,
        hidden=transformer.hidden_size,
        feed_forward=transformer.ffn_hidden_size,
        heads=transformer.num_attention_heads,
        key_value_heads=transformer.num_query_groups,
        head_dim=transformer.kv_channels,
        vocabulary=config.architecture.vocabulary,
        tied_embeddings=config.tied,
        qkv_bias=transformer.add_qkv_bias,
        qk_norm=transformer.qk_layernorm,
        experts=transformer.num_moe_experts or 0,
        expert_feed_forward=transformer.moe_ffn_hidden_size if transformer.num_moe_experts else 0,
        expert_layers=tuple(layer for layer in range(transformer.num_layers) if has_experts(transformer, layer)),
        dtype=str(transformer.params_dtype).removeprefix("torch."),
        critic=critic,
    )


class Saving:
    """A checkpoint that is being written, made by :func:`start_saving`. :meth:`finish` is collective and is called
    once."""

    def __init__(self, target: Path, manifest: Manifest, planned: PlannedSave, written: Future[Written]) -> None:
        self._target, self._manifest, self._planned, self._written = target, manifest, planned, written

    def finish(self, seconds: float) -> None:
        """Wait up to ``seconds`` until all ranks have written, and give the checkpoint its name.

        Raises:
            CheckpointNotWritten: on all ranks, if one could not write.
            DeadlineExceeded: on all ranks, if one has not written in time.
        """
        first = dist.get_rank() == 0
        partial = checkpoints.partial_of(self._target)
        try:
            written = _agreed(lambda: self._own_part(seconds))
            _agreed(lambda: self._complete(partial, written) if first else None)
        except AsyncRLError:
            if first:
                shutil.rmtree(partial, ignore_errors=True)
            raise

    def _own_part(self, seconds: float) -> Written:
        try:
            return self._written.result(seconds)
        except TimeoutError as error:
            remedy = "the disk is slow or does not answer; write elsewhere (run_dir), or raise deadlines.step"
            raise DeadlineExceeded(f"learner rank {dist.get_rank()}", f"writing {self._target}", seconds, remedy) from error
        except (OSError, RuntimeError) as error:
            raise _not_written(self._target, error) from error

    def _complete(self, partial: Path, written: list[Written]) -> None:
        """On the first rank, write the files that need the results of all ranks, the manifest last. Then give the
        checkpoint its name."""
        try:
            self._planned.complete([part.parts for part in written])
            theirs = [file for part in written for file in part.files]
            known = {file.name for file in theirs}
            ours = [StoredFile.of(path) for path in sorted(partial.iterdir()) if path.name not in known]
            manifest = msgspec.structs.replace(self._manifest, files=(*theirs, *ours))
            (partial / checkpoint_manifest.NAME).write_bytes(msgspec.json.encode(manifest))
            for name in (*(file.name for file in ours), checkpoint_manifest.NAME, "."):
                sync(partial / name)
            partial.rename(self._target)
            sync(self._target.parent)
        except OSError as error:
            raise _not_written(self._target, error) from error


def start_saving(target: Path, state: LearnerState, progress: Progress) -> Saving:
    """Copy the state to host memory and start writing it. Collective. Training can continue at once.

    Args:
        target: the checkpoint, in a folder that all ranks reach; unfinished checkpoints beside it are removed.
        state: this rank's state.
        progress: how far the run has come.

    Raises:
        CheckpointNotWritten: on all ranks, if ``target`` exists or its folder cannot be made.
    """
    partial = checkpoints.partial_of(target)
    _agreed(lambda: _prepare(target, partial) if dist.get_rank() == 0 else None)
    planned = PlannedSave({**_sharded(state, is_loading=False), "random": _random_streams(state.spec)}, partial, state.arena)
    manifest = Manifest(progress=progress, shape=state.shape, layout=state.spec.layout, files=())
    writer = ThreadPoolExecutor(1, "checkpoint")
    saving = Saving(target, manifest, planned, writer.submit(planned.write))
    writer.shutdown(wait=False)
    return saving


def load(folder: Path, state: LearnerState) -> Progress:
    """Load the checkpoint in ``folder`` into ``state``. Collective. Every file is read and checked first.

    In a layout other than the checkpoint's, each rank keeps the random streams it was started with; only the
    initialisation draws from them.

    Returns:
        How far the run had come.

    Raises:
        CheckpointDamaged: on all ranks, if a file is missing or is not what was written, or if its version is not the
            folder's.
        UnknownClass: on all ranks, if a file names a class or function that asyncrl never writes into a checkpoint.
        CheckpointMismatch: on all ranks, if the checkpoint is of another model.
    """

    manifest = _checked(folder, state.shape)
    wanted = _sharded(state, is_loading=True)
    same_layout = manifest.layout == state.spec.layout
    if same_layout:
        wanted["random"] = _random_streams(state.spec)
    loaded = _read(folder, manifest, wanted)
    for name, network in zip(_PREFIXES, state.networks, strict=False):
        for number, chunk in enumerate(network.chunks):
            _set_tensors(chunk, loaded[f"{name}chunk_{number}"])
        for number, optimizer in enumerate(network.optimizer.chained_optimizers):
            optimizer_state.load_state(optimizer, loaded[f"{name}optimizer_{number}"])
    if same_layout:
        _set_random_streams(loaded["random"])
    return manifest.progress


def load_policy(folder: Path, chunks: Sequence[PolicyModel], shape: CheckpointShape) -> Progress:
    """Load only the policy's weights of the checkpoint in ``folder``, into chunks without an optimizer. Collective.

    Returns and raises what :func:`load` returns and raises.
    """
    manifest = _checked(folder, shape)
    loaded = _read(folder, manifest, {f"chunk_{number}": _tensors(chunk, "") for number, chunk in enumerate(chunks)})
    for number, chunk in enumerate(chunks):
        _set_tensors(chunk, loaded[f"chunk_{number}"])
    return manifest.progress


def _checked(folder: Path, shape: CheckpointShape) -> Manifest:
    """Read every file of the checkpoint and check that it is what was written, and of a model of this shape. Collective."""

    def checked() -> Manifest:
        manifest = Manifest.read(folder)
        manifest.require(shape, folder)
        manifest.require_name(folder)
        manifest.check(folder, manifest.files[dist.get_rank() :: dist.get_world_size()])
        return manifest

    return _agreed(checked)[0]


def _read(folder: Path, manifest: Manifest, wanted: ShardedStateDict) -> StateDict:
    """Read the tensors and objects that ``wanted`` describes. Collective."""
    index, common = _read_untrusted(folder, manifest)
    try:
        with warnings.catch_warnings():
            # torch warns about calls that Megatron makes.
            warnings.simplefilter("ignore", FutureWarning)
            return checkpoint_reader.load(folder, index, common, wanted)
    except (CheckpointingException, CheckpointException) as error:
        raise CheckpointDamaged(folder, str(error)) from error


def _set_tensors(chunk: PolicyModel, loaded: StateDict) -> None:
    """Give a chunk the tensors that were loaded for it."""
    outcome = chunk.load_state_dict(loaded, strict=False)
    # If a chunk has adapters, the checkpoint holds only those of it. Extra state is never loaded: layers keep their own.
    missing = (
        [] if lora.trained_state(chunk) else list(checkpoint_reader.without_extra_state(dict.fromkeys(outcome.missing_keys)))
    )
    if missing or outcome.unexpected_keys:
        raise RuntimeError(f"a chunk was not loaded whole: it lacks {missing}, and has no {outcome.unexpected_keys}")


def _read_untrusted(folder: Path, manifest: Manifest) -> tuple[Metadata, StateDict]:
    """Read the index and the common part on every rank, and check that all other objects can be loaded. Collective: if
    a check fails on one rank, its error is raised on all."""
    read: list[tuple[Metadata, StateDict]] = []

    def checked() -> None:
        index = checkpoint_reader.read_index(folder, [file.name for file in manifest.files])
        checkpoint_reader.check_objects(folder, index)
        read.append((index, checkpoint_reader.read_common(folder)))

    _agreed(checked)
    return read[0]


def _prepare(target: Path, partial: Path) -> None:
    if target.exists():
        raise CheckpointNotWritten(f"{target} exists; remove it first, or resume from it")
    try:
        checkpoints.remove_partials(target.parent)
        partial.mkdir(parents=True)
    except OSError as error:
        raise _not_written(target, error) from error


def _not_written(target: Path, error: Exception) -> CheckpointNotWritten:
    cause = cause_and_remedy(error) if isinstance(error, OSError) else str(error)
    return CheckpointNotWritten(f"{target} could not be written: {cause}; see to the disk, or write elsewhere (run_dir)")


def _agreed(action: Callable[[], _T]) -> list[_T]:
    """Call ``action`` on each rank and return what it returned, in order of rank. If it failed on one, its error is
    raised on all. Collective."""
    mine: _T | AsyncRLError
    try:
        mine = action()
    except AsyncRLError as error:
        mine = error
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, mine)
    for outcome in outcomes:
        if isinstance(outcome, AsyncRLError):
            raise outcome
    return outcomes


def _sharded(state: LearnerState, is_loading: bool) -> ShardedStateDict:
    """Describe weights and optimizer, each tensor with its place in the whole."""
    # The only format that any layout can load and that resumes exactly: with `dp_reshardable`, results drifted.
    metadata: dict[str, Any] = {"distrib_optim_sharding_type": "fully_reshardable"}
    if parallel.gathers_in_host_memory():
        metadata["distrib_optim_fully_reshardable_mem_efficient"] = True
    sharded: ShardedStateDict = {}
    for name, network in zip(_PREFIXES, state.networks, strict=False):
        # Each tensor knows its place in the whole model, so the names of the chunks matter on this rank only.
        model = {f"{name}chunk_{number}": _tensors(chunk, name) for number, chunk in enumerate(network.chunks)}
        sharded |= model
        for number, optimizer in enumerate(network.optimizer.chained_optimizers):
            optimizer_state.ensure_state(optimizer)
            sharded[f"{name}optimizer_{number}"] = optimizer.sharded_state_dict(model, is_loading, metadata=metadata)
    return sharded


def _tensors(chunk: PolicyModel, prefix: str) -> ShardedStateDict:
    """A chunk's tensors by its own names. In the checkpoint, names start with ``prefix``, so that no two networks share
    one."""
    described = checkpoint_reader.without_extra_state(lora.trained_state(chunk) or chunk.sharded_state_dict())
    if prefix:
        add_prefix_for_sharding(described, prefix)
    return described


def _random_streams(spec: RankSpec) -> ShardedObject:
    streams = {"torch": torch.get_rng_state(), "megatron": tensor_parallel.get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        streams["cuda"] = torch.cuda.get_rng_state()
    layout = spec.layout
    return ShardedObject(
        "random",
        streams,
        (layout.pipeline, layout.tensor, layout.data, layout.context),
        (spec.pipeline_rank, spec.tensor_rank, spec.data_rank, spec.context_rank),
    )


def _set_random_streams(streams: dict[str, Any]) -> None:
    torch.set_rng_state(streams["torch"])
    tensor_parallel.get_cuda_rng_tracker().set_states(streams["megatron"])
    if "cuda" in streams:
        torch.cuda.set_rng_state(streams["cuda"])
