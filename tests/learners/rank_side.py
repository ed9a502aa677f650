"""What test ranks do; forked from a server that has imported this."""

import hashlib
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch

from asyncrl.core.batch import Batch, RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.algorithm import KlInRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.learner import Learner
from asyncrl.learners.preparation import MiniBatch
from asyncrl.learners.rank import FileMeeting, RankSpec
from asyncrl.learners.step_report import StepReport

Episodes = Mapping[SampleName, Episode]
PlainShard = tuple[str, tuple[int, ...], tuple[int, ...], np.ndarray]


def new_learner(spec: RankSpec, recipe: Recipe, folder: Path) -> Learner:
    return Learner(
        recipe.algorithm,
        recipe.learner,
        recipe.deadlines,
        temperature=recipe.sampling.temperature,
        steps=recipe.steps,
        seed=recipe.seed,
        model_path=folder,
        rank=spec,
    )


def plain_shards(learner: Learner) -> list[PlainShard]:
    return [(s.name, s.shape, s.start, s.tensor.detach().float().clone().numpy()) for s in learner.shards()]


def train(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes, steps: int, saved: Path | None = None
) -> tuple[list[StepReport], list[PlainShard], list[RowName]]:
    """Steps on the same batch, each rank with the rows it asked for and no others."""
    learner = new_learner(spec, recipe, folder)
    needed = learner.rows_needed(batch)
    reports = [learner.step(batch, {name[:2]: episodes[name[:2]] for name in needed}) for _ in range(steps)]
    shards = plain_shards(learner)
    if saved is not None:
        learner.save_pretrained(saved)
    learner.close()
    return reports, shards, needed


def written(
    spec: RankSpec,
    recipe: Recipe,
    folder: Path,
    place: Path,
    trained: tuple[Batch, Episodes] | None = None,
    saved: Path | None = None,
) -> Publication:
    """What a rank writes of its first version, or of the one after a step, which all save as a folder."""
    from asyncrl.weights.shm.shared_tensors import SharedMemory

    learner = new_learner(spec, recipe, folder)
    if trained is not None:
        _step(learner, *trained)
    with closing(SharedMemory("written", spec.rank, str(place))) as memory:
        publication = memory.write(PolicyVersion(1), learner.shards())
    if saved is not None:
        learner.save_pretrained(saved)
    learner.close()
    return publication


def failure(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes, absent: int = -1, raised: Path | None = None
) -> tuple[str, str, Any]:
    """Type and text of what a step raises, and the weights after it. Rank ``absent`` comes up, takes no part and is gone: at
    once, or when another has made the file ``raised``."""
    learner = new_learner(spec, recipe, folder)
    if spec.rank == absent:
        while raised is not None and not raised.exists():
            time.sleep(0.01)
        return "", "", []
    kind, text = "", ""
    try:
        learner.step(batch, episodes)
    except (AsyncRLError, ValueError) as error:
        kind, text = type(error).__name__, str(error)
    shards = plain_shards(learner)
    if raised is not None:
        raised.touch()
    return kind, text, shards


def cannot_start(spec: RankSpec, recipe: Recipe, folder: Path) -> tuple[str, str]:
    """Type and text of what constructing a learner raises."""
    try:
        new_learner(spec, recipe, folder).close()
    except (AsyncRLError, ValueError) as error:
        return type(error).__name__, str(error)
    return "", ""


Batches = list[tuple[Batch, Episodes]]


def _step(learner: Learner, batch: Batch, episodes: Episodes) -> StepReport:
    return learner.step(batch, {name[:2]: episodes[name[:2]] for name in learner.rows_needed(batch)})


def train_and_save(
    spec: RankSpec, recipe: Recipe, folder: Path, before: Batches, target: Path, after: Batches
) -> tuple[list[PlainShard], list[StepReport], list[PlainShard]]:
    """Train ``before`` and save while training ``after``, files written after its first step: weights saved, what came after."""
    from asyncrl.learners.megatron.state.checkpoint_writer import PlannedSave

    learner = new_learner(spec, recipe, folder)
    for batch, episodes in before:
        _step(learner, batch, episodes)
    saved = plain_shards(learner)
    stepped = threading.Event()
    write = PlannedSave.write
    with mock.patch.object(PlannedSave, "write", lambda self: stepped.wait() and write(self)):
        learner.start_checkpoint(target)
        reports = [_step(learner, batch, episodes) for batch, episodes in after[:1]]
        stepped.set()
        learner.finish_checkpoint()
    reports += [_step(learner, batch, episodes) for batch, episodes in after[1:]]
    shards = plain_shards(learner)
    learner.close()
    return saved, reports, shards


def load_and_train(
    spec: RankSpec, recipe: Recipe, folder: Path, source: Path, after: Batches, again: Path | None = None
) -> tuple[int, list[PlainShard], list[StepReport], list[PlainShard]]:
    """Load a checkpoint, save it ``again`` at once, and train: version and weights loaded, and what came after."""
    learner = new_learner(spec, recipe, folder)
    version = learner.load_checkpoint(source)
    loaded = plain_shards(learner)
    if again is not None:
        learner.start_checkpoint(again)
        learner.finish_checkpoint()
    reports = [_step(learner, batch, episodes) for batch, episodes in after]
    shards = plain_shards(learner)
    learner.close()
    return version, loaded, reports, shards


def stored_tensors(spec: RankSpec, recipe: Recipe, folders: list[Path]) -> list[dict[str, np.ndarray]]:
    """All tensors of checkpoints, as they lie on disk, whole."""
    from megatron.core import dist_checkpointing

    from asyncrl.learners.megatron import parallel

    parallel.initialise(spec, recipe.deadlines, recipe.seed)
    stored = [dist_checkpointing.load_plain_tensors(str(folder)) for folder in folders]
    parallel.close()
    return [{name: value.float().numpy() for name, value in values.items() if torch.is_tensor(value)} for values in stored]


def loads(spec: RankSpec, recipe: Recipe, folder: Path, sources: list[Path]) -> list[tuple[str, str, list[PlainShard]]]:
    """Try to load one after the other: type and text of what each raises, and the weights then."""
    learner = new_learner(spec, recipe, folder)
    outcomes = []
    for source in sources:
        kind, text = "", ""
        try:
            learner.load_checkpoint(source)
        except AsyncRLError as error:
            kind, text = type(error).__name__, str(error)
        outcomes.append((kind, text, plain_shards(learner)))
    learner.close()
    return outcomes


def save_within(
    spec: RankSpec, recipe: Recipe, folder: Path, batches: Batches, target: Path, limit: int, limited: int
) -> tuple[str, str, bool]:
    """Save while rank ``limited`` cannot write files beyond ``limit`` bytes, then train and save without: what the first raises,
    and whether it left anything."""
    import resource

    learner = new_learner(spec, recipe, folder)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    if spec.rank == limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
    kind, text = "", ""
    try:
        learner.start_checkpoint(target)
        learner.finish_checkpoint()
    except AsyncRLError as error:
        kind, text = type(error).__name__, str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    for batch, episodes in batches:
        _step(learner, batch, episodes)
    left = spec.rank == 0 and any(target.parent.iterdir())
    learner.start_checkpoint(target)
    learner.finish_checkpoint()
    learner.close()
    return kind, text, left


def die_saving(spec: RankSpec, recipe: Recipe, folder: Path, target: Path) -> None:
    """Be killed when the files are there but the checkpoint is not complete."""
    import os
    import signal

    learner = new_learner(spec, recipe, folder)
    learner.start_checkpoint(target)
    os.kill(os.getpid(), signal.SIGKILL)


def random_numbers(spec: RankSpec, recipe: Recipe, folder: Path, target: Path) -> tuple[list[float], list[float], list[float]]:
    """Drawn from torch's and Megatron's streams: after saving, going on, and after loading."""
    from megatron.core.tensor_parallel import get_cuda_rng_tracker

    def draw() -> list[float]:
        with get_cuda_rng_tracker().fork():
            forked = torch.rand(3).tolist()
        return forked + torch.rand(3).tolist()

    learner = new_learner(spec, recipe, folder)
    draw()
    learner.start_checkpoint(target)
    learner.finish_checkpoint()
    after, later = draw(), draw()
    learner.load_checkpoint(target)
    resumed = draw()
    learner.close()
    return after, later, resumed


def save_twice(spec: RankSpec, recipe: Recipe, folder: Path, target: Path) -> str:
    """Save to a folder, and again to the same one; the type of what the second raises."""
    learner = new_learner(spec, recipe, folder)
    learner.save_pretrained(target)
    try:
        learner.save_pretrained(target)
    except FileExistsError as error:
        return type(error).__name__
    finally:
        learner.close()
    return ""


def log_probabilities(
    spec: RankSpec, hidden: np.ndarray, weight: np.ndarray, targets: np.ndarray, temperature: float, tile: tuple[int, int]
) -> list[np.ndarray]:
    """Log-probabilities, entropies and the gradients of ``sum(i * logp_i + i**2 * entropy_i)``: of the hidden states, summed over
    the ranks, and of this rank's part of the output layer; the same two of either sum alone."""
    import torch.distributed as dist

    from asyncrl.learners.megatron.layers.log_probabilities import Tile, token_log_probabilities
    from asyncrl.learners.megatron.rendezvous import meet

    dist.init_process_group("gloo", store=meet(spec, 60.0), rank=spec.rank, world_size=spec.layout.ranks)
    states = torch.from_numpy(hidden).requires_grad_()
    mine = torch.from_numpy(weight).chunk(spec.layout.ranks)[spec.rank].clone().requires_grad_()
    logp, entropy = token_log_probabilities(states, mine, torch.from_numpy(targets), temperature, dist.group.WORLD, Tile(*tile))
    number = torch.arange(len(logp))
    results = [logp.detach(), entropy.detach()]
    of_logp, of_entropy = (logp * number).sum(), (entropy * number**2).sum()
    for loss in (of_logp + of_entropy, of_logp, of_entropy):
        states_grad, weight_grad = torch.autograd.grad(loss, (states, mine), retain_graph=True)
        dist.all_reduce(states_grad)
        results += [states_grad, weight_grad]
    dist.destroy_process_group()
    return [result.numpy() for result in results]


def listening(spec: RankSpec, recipe: Recipe) -> tuple[set[str], float, str]:
    """The addresses that this rank listens on once the ranks have met, a sum over all ranks, and what is left of the place."""
    import torch.distributed as dist

    from asyncrl.learners.megatron import parallel

    parallel.initialise(spec, recipe.deadlines, recipe.seed)
    total = torch.ones(1)
    dist.all_reduce(total)
    addresses = {
        connection.laddr.ip for connection in psutil.Process().net_connections() if connection.status == psutil.CONN_LISTEN
    }
    mode = oct(Path(spec.meeting.path).stat().st_mode & 0o777) if isinstance(spec.meeting, FileMeeting) else ""
    dist.barrier()
    parallel.close()
    return addresses, total.item(), mode


def late(spec: RankSpec, recipe: Recipe) -> tuple[str, str]:
    """Rank 0 comes, the others do not: type and text of what it raises."""
    from asyncrl.learners.megatron import parallel

    if spec.rank:
        return "", ""
    try:
        parallel.initialise(spec, recipe.deadlines, recipe.seed)
    except AsyncRLError as error:
        return type(error).__name__, str(error)
    return "", "met nobody"


def differing_replicas(spec: RankSpec, recipe: Recipe) -> str:
    """Start ranks whose parameters are not the same."""
    from asyncrl.learners.megatron import parallel

    parallel.initialise(spec, recipe.deadlines, recipe.seed)
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.copy_(torch.tensor([1.0, 2.0] if spec.data_rank == 0 else [2.0, 1.0]))
    try:
        parallel.check_replicas_equal(model)
    except parallel.ReplicasDiffer as error:
        return str(error)
    finally:
        parallel.close()
    return ""


def differing_experts(spec: RankSpec, recipe: Recipe) -> str:
    """Start ranks whose experts differ: first from those of other expert-parallel ranks, then from their replicas'."""
    from asyncrl.learners.megatron import parallel

    parallel.initialise(spec, recipe.deadlines, recipe.seed)
    model = torch.nn.Linear(3, 2)
    for parameter in model.parameters():
        parameter.allreduce = False
        parameter.data.fill_(spec.expert_rank)
    try:
        parallel.check_replicas_equal(model)
        with torch.no_grad():
            model.weight.add_(spec.data_rank)
        parallel.check_replicas_equal(model)
    except parallel.ReplicasDiffer as error:
        return str(error)
    finally:
        parallel.close()
    return ""


def abort(spec: RankSpec) -> None:
    """Die as gloo does when sizes do not match; the other ranks wait for ever."""
    import os

    if spec.rank == 1:
        os.abort()
    time.sleep(3600)


def passes_ahead(spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes) -> int:
    """How many forward passes a step makes to know log-probabilities ahead."""
    from asyncrl.learners.megatron.trainer import Trainer

    learner = new_learner(spec, recipe, folder)
    with mock.patch.object(Trainer, "log_probabilities", autospec=True, side_effect=Trainer.log_probabilities) as ahead:
        _step(learner, batch, episodes)
    learner.close()
    return ahead.call_count


def train_on(spec: RankSpec, recipe: Recipe, folder: Path, batches: Batches) -> tuple[list[StepReport], list[PlainShard]]:
    """Train one batch after the other: what came of each, and the weights at the end."""
    learner = new_learner(spec, recipe, folder)
    reports = [_step(learner, batch, episodes) for batch, episodes in batches]
    shards = plain_shards(learner)
    learner.close()
    return reports, shards


def movements(spec: RankSpec, recipe: Recipe, folder: Path, batches: Batches) -> list[tuple[bool, bool]]:
    """Of each batch: whether the report says that weights of this rank moved, and whether any that it publishes did."""
    learner = new_learner(spec, recipe, folder)
    found, before = [], plain_shards(learner)
    for batch, episodes in batches:
        told, after = _step(learner, batch, episodes).weights_moved, plain_shards(learner)
        found.append((told, any((old[3] != new[3]).any() for old, new in zip(before, after, strict=True))))
        before = after
    learner.close()
    return found


def transformer_settings(spec: RankSpec, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """What Megatron is told of the transformer, as far as it is plain values."""
    from asyncrl.learners.megatron.model_config import policy_config

    settings = vars(policy_config(folder, recipe.learner).transformer)
    return {name: value for name, value in settings.items() if value is None or isinstance(value, bool | int | float | str)}


def both_prefix_attentions(_: RankSpec, groups: int, preamble: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention over rows, shared prefixes and a preamble, as a CPU computes it and as a GPU does."""
    from asyncrl.learners.megatron.cpu.attention import attention_on_cpu
    from asyncrl.learners.megatron.layers.packed_rows import PackedRows
    from asyncrl.learners.megatron.layers.prefix_attention import continue_prefixes

    first = (preamble,) if preamble else ()
    lengths = (*first, 40, 7, 9, 8, 3, 12, 1, 20, 5)
    packed = PackedRows.of(lengths, torch.device("cpu"), (range(3), range(3, 5)), preamble)
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(packed.lengths), heads, 16, generator=random) for heads in (4, groups, groups))
    of_cpu = attention_on_cpu(query, key, value, packed.segment_table).flatten(1)
    return of_cpu.numpy(), continue_prefixes(query, key, value, packed, None).numpy()


def both_sink_attentions(_: RankSpec, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention with sinks over rows, shared prefixes and a preamble, as a CPU computes it and as a GPU does."""
    from asyncrl.learners.megatron.layers.packed_rows import PackedRows
    from asyncrl.learners.megatron.layers.sink_attention import attention_by_flexible_kernel, attention_with_sinks

    packed = PackedRows.of((30, 40, 7, 9, 8, 3, 12, 1, 20, 5), torch.device("cpu"), (range(3), range(3, 5)), 30)
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(sum(packed.lengths), heads, 16, generator=random) for heads in (4, 2, 2))
    arguments = query, key, value, packed, torch.randn(4, generator=random), window
    return attention_with_sinks(*arguments).numpy(), attention_by_flexible_kernel(*arguments).numpy()


def both_row_attentions(_: RankSpec) -> list[list[np.ndarray]]:
    """Attention over rows, and its gradients, as a CPU computes it and as a GPU does without TransformerEngine."""
    from asyncrl.learners.megatron.cpu.attention import attention_on_cpu
    from asyncrl.learners.megatron.layers.attention import attention_in_blocks
    from asyncrl.learners.megatron.layers.packed_rows import PackedRows

    packed = PackedRows.of((40, 7, 9, 8, 3, 12, 1, 20, 5), torch.device("cpu"))
    results = []
    for on_cpu in (True, False):
        random = torch.Generator().manual_seed(0)
        operands = [torch.randn(sum(packed.lengths), heads, 16, generator=random).requires_grad_() for heads in (4, 2, 2)]
        if on_cpu:
            output = attention_on_cpu(*operands, packed.segment_table).flatten(1)
        else:
            output = attention_in_blocks(*operands, packed, None)
        output.backward(torch.randn(output.shape, generator=random))
        results.append([tensor.detach().numpy() for tensor in (output, *(operand.grad for operand in operands))])
    return results


def attention_on_a_cpu(_: RankSpec, dtype: torch.dtype, prefixes: tuple[range, ...]) -> list[np.ndarray]:
    """Attention of tensors of ``dtype``, which are as they would be in bfloat16, and its gradients."""
    from asyncrl.learners.megatron.kernels import kernels_of
    from asyncrl.learners.megatron.layers.attention import PackedAttention
    from asyncrl.learners.megatron.layers.packed_rows import PackedRows
    from asyncrl.learners.megatron.transformer import PolicyTransformerConfig

    packed = PackedRows.of((40, 7, 9, 8, 3, 12, 1, 20, 5), torch.device("cpu"), prefixes)
    random = torch.Generator().manual_seed(0)
    tokens, dim = sum(packed.lengths), 16
    tensors = [torch.randn(tokens, heads, dim, generator=random).bfloat16().to(dtype) for heads in (4, 2, 2, 4)]
    *operands, grad = tensors
    for tensor in operands:
        tensor.requires_grad_()
    packed.rotation = torch.ones(tokens, 1, dim // 2, dtype=dtype), torch.zeros(tokens, 1, dim // 2, dtype=dtype)
    config = PolicyTransformerConfig(num_layers=1, hidden_size=4 * dim, num_attention_heads=4, params_dtype=dtype)
    attention = PackedAttention(config)
    attention.kernels = kernels_of(torch.device("cpu"), config)
    output = attention(*operands, packed_seq_params=packed)
    assert output.dtype is dtype
    output.backward(grad.flatten(1))
    return [tensor.detach().float().numpy() for tensor in (output, *(operand.grad for operand in operands))]


_PLANNED = ("token_ids", "positions", "targets", "in_buffer", "logp_behaviour", "mask", "share", "staleness")


def prepare_and_train(
    spec: RankSpec, recipes: dict[str, Recipe], folder: Path, batch: Batch, episodes: Episodes
) -> dict[str, tuple[str, list[dict[str, float]], str]]:
    """For each recipe: a digest of the prepared mini-batches, the readings of two steps, and a digest of the weights."""
    found = {}
    for name, recipe in recipes.items():
        learner = new_learner(spec, recipe, folder)
        by_model = isinstance(recipe.algorithm.kl, KlInRewardConfig)  # its advantages hold the last bits of the model's products
        prepared = _digest(learner.preparation.mini_batches(batch, episodes, learner._kl_coefficient), by_model=by_model)
        reports = [learner.step(batch, episodes) for _ in range(2)]
        readings = [{each.metric.name: each.value for each in report.readings} for report in reports]
        weights = hashlib.sha256()
        for shard in learner.shards():
            weights.update(shard.tensor.detach().float().numpy().tobytes())
        learner.close()
        found[name] = prepared, readings, weights.hexdigest()[:16]
    return found


def _digest(prepared: list[MiniBatch], *, by_model: bool) -> str:
    """Digest of what is prepared without the model: what lies where, its shares and, unless ``by_model``, advantages."""
    found = hashlib.sha256()
    for mini_batch in prepared:
        found.update(mini_batch.denominator.hex().encode())
        for part in mini_batch.micro_batches:
            found.update(repr((part.lengths, part.prefixes, part.preamble, [name[:2] for name in part.names])).encode())
            arrays = [getattr(part, name) for name in _PLANNED] + [part.rows.index, part.turns.index]
            for values in arrays if by_model else [*arrays, part.advantages]:
                found.update(values.numpy().tobytes())
    return found.hexdigest()[:16]


def prepared_rows(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> dict[RowName, tuple[set[float], float]]:
    """For each row of this slice: its advantages, and the sum of ``log p - log p_reference`` over its tokens."""
    learner = new_learner(spec, recipe, folder)
    found = {}
    for mini_batch in learner.preparation.mini_batches(batch, episodes, learner._kl_coefficient):
        for part in mini_batch.micro_batches:
            apart = part.logp_proximal.double() - part.logp_reference.double()
            for number, name in enumerate(part.names):
                mine = part.rows.index == number
                found[name] = set(part.advantages[mine].tolist()), apart[mine].sum().item()
    learner.close()
    return found
