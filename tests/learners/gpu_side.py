"""What test ranks do as they would on a GPU, as far as a CPU can show it: layers with extra state and grouped experts like
TransformerEngine's, the fused Adam, and a checkpoint that is gathered by gloo."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from rank_side import Batches, PlainShard, _step, new_learner, plain_shards

from asyncrl.core.recipe.schema import Recipe
from asyncrl.device.pinning import HostArena
from asyncrl.learners.megatron import optimizer_state, parallel, reference, trainer
from asyncrl.learners.megatron.layers import layer_spec
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_report import StepReport


class EngineNorm(layer_spec.RMSNorm):
    """A norm with extra state, like each of TransformerEngine's layers."""

    def get_extra_state(self):
        return torch.ones(3, dtype=torch.uint8)

    def set_extra_state(self, state):
        raise AssertionError("extra state was loaded")


class Grouped(torch.nn.Module):
    """A layer for all experts of a rank, with parameters named and shaped like those of ``TEGroupedLinear``."""

    def __init__(self, count, rows, columns, dtype):
        super().__init__()
        for expert in range(count):
            self.register_parameter(f"weight{expert}", torch.nn.Parameter(torch.zeros(rows, columns, dtype=dtype)))


class GroupedExperts(torch.nn.Module):
    """Experts with parameters named and shaped like those of ``TEGroupedMLP``."""

    def __init__(self, count, config, **_):
        super().__init__()
        channels = config.moe_ffn_hidden_size // config.expert_tensor_parallel_size
        self.linear_fc1 = Grouped(count, 2 * channels, config.hidden_size, config.params_dtype)
        self.linear_fc2 = Grouped(count, config.hidden_size, channels, config.params_dtype)


def between_layers(
    spec: RankSpec, recipe: Recipe, folder: Path, before: Batches, target: Path, from_engine: bool
) -> tuple[list[PlainShard], list[PlainShard]]:
    """Save a checkpoint with one kind of layers and load it with the other; the weights saved, and those loaded."""
    engine = mock.patch.object(layer_spec, "RMSNorm", EngineNorm)
    with ExitStack() as layers:
        if from_engine:
            layers.enter_context(engine)
        learner = new_learner(spec, recipe, folder)
        assert isinstance(learner._trainer._chunks[0].decoder.final_layernorm, EngineNorm) is from_engine
        for batch, rows in before:
            _step(learner, batch, rows)
        learner.start_checkpoint(target)
        learner.finish_checkpoint()
        saved = plain_shards(learner)
        learner.close()
    with ExitStack() as layers:
        if not from_engine:
            layers.enter_context(engine)
        learner = new_learner(spec, recipe, folder)
        learner.load_checkpoint(target)
        loaded = plain_shards(learner)
        learner.close()
    return saved, loaded


def goes_on(
    spec: RankSpec, recipe: Recipe, folder: Path, before: Batches, checkpoint: Path, after: Batches, gpu: bool, loads: bool
) -> tuple[list[StepReport], list[PlainShard]]:
    """Train and save, or load; then train on. ``gpu`` trains as on a GPU: reports and weights of what came after."""
    with ExitStack() as changed:
        if gpu:
            changed.enter_context(mock.patch.object(parallel, "gathers_in_host_memory", return_value=True))
        learner = new_learner(spec, recipe, folder)
        optimizer = learner._trainer._policy.optimizer
        if gpu:
            optimizer_state.fuse(optimizer)
            assert all(group["fused"] for group in optimizer.param_groups)
        if loads:
            learner.load_checkpoint(checkpoint)
        else:
            for batch, rows in before:
                _step(learner, batch, rows)
            learner.start_checkpoint(checkpoint)
            learner.finish_checkpoint()
        reports = [_step(learner, batch, rows) for batch, rows in after]
        weights = plain_shards(learner)
        learner.close()
    return reports, weights


def grouped_experts(spec: RankSpec, recipe: Recipe, folder: Path, saved: Path) -> list[PlainShard]:
    """Load and publish a model whose experts are grouped, and save it as a Hugging Face folder."""
    with mock.patch.object(layer_spec, "Experts", GroupedExperts):
        learner = new_learner(spec, recipe, folder)
        assert any(name.endswith("experts.linear_fc1.weight0") for name, _ in learner._trainer._chunks[0].named_parameters())
        shards = plain_shards(learner)
        learner.save_pretrained(saved)
        learner.close()
    return shards


def gives_memory_back(spec: RankSpec, recipe: Recipe, folder: Path) -> int:
    """Publish once; how often the memory that torch keeps for later was given back before the first shard was read."""
    learner = new_learner(spec, recipe, folder)
    with mock.patch.object(torch.cuda, "empty_cache") as give_back:
        next(learner.shards())
        return give_back.call_count


def unpins(spec: RankSpec, recipe: Recipe, folder: Path, before: Batches, target: Path) -> tuple[int, int]:
    """Train with a reference policy and save a checkpoint; how many pieces of memory were pinned before and after the end."""
    held: set[int] = set()
    pinning = mock.Mock(pin=lambda address, size: held.add(address) or "", unpin=held.remove)
    with ExitStack() as arenas:
        for module in (trainer, reference):
            arenas.enter_context(mock.patch.object(module, "HostArena", partial(HostArena, pinning, device="cpu")))
        learner = new_learner(spec, recipe, folder)
        for batch, rows in before:
            _step(learner, batch, rows)
        learner.start_checkpoint(target)
        learner.finish_checkpoint()
        pinned = len(held)
        learner.close()
    return pinned, len(held)
