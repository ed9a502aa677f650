"""What test ranks do to show that a layout computes the same: gradients tensor by tensor, and what they keep in memory."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from rank_side import Episodes, PlainShard, new_learner, plain_shards

from asyncrl.core.batch import Batch
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_report import StepReport


def gradients(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> tuple[StepReport, list[PlainShard], list[Any]]:
    """One step: its report, and this rank's part of the gradient before clipping, as rectangles of Hugging Face tensors."""
    learner = new_learner(spec, recipe, folder)
    optimizer, chunks = learner._trainer._policy.optimizer, learner._trainer._policy._wrapped
    found: list[PlainShard] = []
    prepare = optimizer.prepare_grads

    def capture() -> bool:
        kept = {parameter: parameter.data for chunk in chunks for parameter in chunk.parameters()}
        for chunk in chunks:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                for bucket in buffer.buckets:
                    _gather(bucket.grad_data, buffer.data_parallel_group)
        for parameter in kept:
            parameter.data = parameter.main_grad
        found.extend(plain_shards(learner))
        for parameter, weight in kept.items():
            parameter.data = weight
        return prepare()

    needed = learner.rows_needed(batch)
    with mock.patch.object(optimizer, "prepare_grads", capture):
        report = learner.step(batch, {name[:2]: episodes[name[:2]] for name in needed})
    learner.close()
    return report, found, needed


def gradients_in_products(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> tuple[int, list[PlainShard]]:
    """As :func:`gradients`, but Megatron's layers add gradients in their products, as on a GPU: how many products did, and this
    rank's part of the gradient."""
    from asyncrl.learners.megatron import model_config
    from asyncrl.learners.megatron.layers import weight_gradients

    weight_gradients.stand_in()
    add = mock.Mock(wraps=weight_gradients.wgrad_gemm_accum_fp32)
    with (
        mock.patch.object(model_config, "added_in_products", return_value=True),
        mock.patch.object(weight_gradients, "wgrad_gemm_accum_fp32", add),
    ):
        _, shards, _ = gradients(spec, recipe, folder, batch, episodes)
    return add.call_count, shards


def gradients_as_on_a_gpu(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> tuple[int, list[PlainShard]]:
    """As :func:`gradients`, but queries, keys and values are made by what torch compiles for a GPU, here without compiling it:
    how often, and this rank's part of the gradient."""
    from asyncrl.learners.megatron.cpu import kernels as cpu_kernels
    from asyncrl.learners.megatron.layers import compiled

    heads = mock.Mock(wraps=compiled.heads)
    of_cpu = cpu_kernels.kernels_of_cpu
    with (
        mock.patch.object(compiled, "compiled", lambda formula: formula),
        mock.patch.object(cpu_kernels, "kernels_of_cpu", lambda config: of_cpu(config)._replace(heads=heads)),
    ):
        _, shards, _ = gradients(spec, recipe, folder, batch, episodes)
    return heads.call_count, shards


def tokens_in_norms(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> tuple[list[int], list[int]]:
    """Tokens of each micro-batch, padding included, and how many of them this rank has in a layer's first norm."""
    learner = new_learner(spec, recipe, folder)
    chunk = learner._trainer._chunks[0]
    all_tokens: list[int] = []
    norms: list[int] = []
    chunk.register_forward_pre_hook(lambda _, inputs: all_tokens.append(len(inputs[0])))
    chunk.decoder.layers[0].input_layernorm.register_forward_pre_hook(lambda _, inputs: norms.append(len(inputs[0])))
    learner.step(batch, episodes)
    learner.close()
    return all_tokens, norms


def shares_of_rows(_: RankSpec, lengths: list[int], ranks: int, multiple: int) -> list[tuple[list[int], int, list[int]]]:
    """For each context-parallel rank the places it has of the padded rows, the pairs of query and key that it computes, and the
    padded rows."""
    from asyncrl.learners.megatron.layers.context import SplitRows

    shares = []
    for rank in range(ranks):
        split = SplitRows.share(lengths, ranks, rank, multiple, torch.device("cpu"))
        pairs = 0
        for block in split.blocks:
            for chunk in block.queries:
                mask = chunk.mask.expand(block.rows, 1, chunk.longest, chunk.reach).reshape(-1, chunk.reach)
                pairs += int(mask[chunk.slots].sum())
        shares.append((split.places.tolist(), pairs, list(split.lengths)))
    return shares


def _gather(values: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Complete a buffer of which each rank has summed its own part."""
    parts = list(values.chunk(group.size()))
    gathered = [torch.empty_like(part) for part in parts]
    dist.all_gather(gathered, parts[group.rank()].clone(), group=group)
    for part, whole in zip(parts, gathered, strict=True):
        part.copy_(whole)


def kept_for_backward(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, episodes: Episodes
) -> tuple[int, list[PlainShard]]:
    """Elements that the forward passes of a step save for its backward passes, and the weights after it."""
    learner = new_learner(spec, recipe, folder)
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        if torch._C._current_graph_task_id() == -1:
            kept += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        learner.step(batch, episodes)
    shards = plain_shards(learner)
    learner.close()
    return kept, shards
