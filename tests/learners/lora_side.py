"""What test ranks do with adapters."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import torch
from layout_side import _gather
from rank_side import Batches, Episodes, PlainShard, _step, new_learner, plain_shards

from asyncrl.core.batch import Batch
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.learner import Learner
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_report import StepReport


def plain(shards: Iterable[Shard]) -> list[PlainShard]:
    return [(s.name, s.shape, s.start, s.tensor.detach().float().clone().numpy()) for s in shards]


def leave_zero(learner: Learner, spec: RankSpec) -> None:
    """Give every ``lora_B`` values that depend on its name alone: at zero, ``lora_A`` would have no gradient."""
    for name, adapter in learner._trainer._lora._by_projection.items():
        mine, parts = adapter.lora_B.data, spec.layout.tensor if adapter.divided == "lora_B" else 1
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        whole = 0.1 * torch.randn(parts * len(mine), mine.size(1), generator=generator)
        mine.copy_(whole.chunk(parts)[spec.tensor_rank % parts])


def gradients(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> tuple[StepReport, list[PlainShard], list[PlainShard], list[PlainShard]]:
    """One step with adapters that are not zero: its report, the adapters before it, their gradients before clipping, and the
    published weights after it."""
    learner = new_learner(spec, recipe, folder)
    every = _every_adapter_tensor(learner)
    leave_zero(learner, spec)
    low_rank, network = learner._trainer._lora, learner._trainer._policy
    before, found = plain(low_rank.shards()), []
    prepare = network.optimizer.prepare_grads

    def capture() -> bool:
        kept = {parameter: parameter.data for parameter in every}
        for chunk in network._wrapped:
            for buffer in chunk.buffers:
                for bucket in buffer.buckets:
                    _gather(bucket.grad_data, buffer.data_parallel_group)
        for parameter in kept:
            parameter.data = parameter.main_grad
        found.extend(plain(low_rank.shards()))
        for parameter, values in kept.items():
            parameter.data = values
        return prepare()

    with mock.patch.object(network.optimizer, "prepare_grads", capture):
        report = _step(learner, batch, episodes)
    after = plain_shards(learner)
    learner.close()
    return report, before, found, after


def _every_adapter_tensor(learner: Learner) -> list[torch.nn.Parameter]:
    return [parameter for chunk in learner._trainer._chunks for parameter in chunk.parameters() if parameter.requires_grad]


def train(
    spec: RankSpec, recipe: Recipe, folder: Path, batches: Batches, saved: Path | None = None
) -> tuple[list[StepReport], list[PlainShard], list[PlainShard], list[PlainShard], int]:
    """Reports; the frozen weights, the adapters and the published weights at the end; how many numbers the optimizer moves."""
    from asyncrl.learners.megatron import placement

    learner = new_learner(spec, recipe, folder)
    reports = [_step(learner, batch, episodes) for batch, episodes in batches]
    frozen = plain(placement.shards(learner._trainer._chunks, spec))
    adapters, published = plain(learner._trainer._lora.shards()), plain_shards(learner)
    groups = learner._trainer._policy.optimizer.param_groups
    moved = sum(parameter.numel() for group in groups for parameter in group["params"])
    if saved is not None:
        learner.save_pretrained(saved)
    learner.close()
    return reports, frozen, adapters, published, moved
