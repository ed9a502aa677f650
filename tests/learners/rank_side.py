"""What test ranks do; forked from a server that has imported this."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asyncrl.core.batch import Batch
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.trajectory import Trajectory
from learners.learner import Learner, StepReport
from learners.rank import RankSpec

Rows = Mapping[tuple[GroupId, int], Trajectory]
PlainShard = tuple[str, tuple[int, ...], tuple[int, ...], np.ndarray]


def plain_shards(learner: Learner) -> list[PlainShard]:
    return [(s.name, s.shape, s.start, s.tensor.detach().float().clone().numpy()) for s in learner.shards()]


def train(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, rows: Rows, steps: int, saved: Path | None = None
) -> tuple[list[StepReport], list[PlainShard], list[tuple[GroupId, int]]]:
    """Steps on the same batch, each rank with the rows it asked for and no others."""
    learner = Learner(recipe, str(folder), spec)
    needed = learner.rows_needed(batch)
    reports = [learner.step(batch, {name: rows[name] for name in needed}) for _ in range(steps)]
    shards = plain_shards(learner)
    if saved is not None:
        learner.save_pretrained(str(saved))
    learner.close()
    return reports, shards, needed


def failure(
    spec: RankSpec, recipe: Recipe, folder: Path, batch: Batch, rows: Rows, absent: int = -1, stays: float = 0.0
) -> tuple[str, str, Any]:
    """Type and text of what a step raises, and the weights after it. Rank ``absent`` comes up, takes no part and, after ``stays``
    seconds, is gone."""
    learner = Learner(recipe, str(folder), spec)
    if spec.rank == absent:
        time.sleep(stays)
        return "", "", []
    try:
        learner.step(batch, rows)
    except (AsyncRLError, ValueError) as error:
        return type(error).__name__, str(error), plain_shards(learner)
    return "", "", plain_shards(learner)


def cannot_start(spec: RankSpec, recipe: Recipe, folder: Path) -> tuple[str, str]:
    """Type and text of what constructing a learner raises."""
    try:
        Learner(recipe, str(folder), spec).close()
    except (AsyncRLError, ValueError) as error:
        return type(error).__name__, str(error)
    return "", ""


def save_twice(spec: RankSpec, recipe: Recipe, folder: Path, target: Path) -> str:
    """Save to a folder, and again to the same one; the type of what the second raises."""
    learner = Learner(recipe, str(folder), spec)
    learner.save_pretrained(str(target))
    try:
        learner.save_pretrained(str(target))
    except FileExistsError as error:
        return type(error).__name__
    finally:
        learner.close()
    return ""


def log_probabilities(spec: RankSpec, logits: np.ndarray, targets: np.ndarray, temperature: float) -> tuple[np.ndarray, ...]:
    """Log-probabilities, entropies and the gradient with respect to this rank's slice of the logits of ``sum(i * logp_i)``."""
    import torch.distributed as dist

    from learners.megatron.log_probabilities import token_log_probabilities

    store = dist.TCPStore(spec.address, spec.port, spec.world_size, is_master=spec.rank == 0)
    dist.init_process_group("gloo", store=store, rank=spec.rank, world_size=spec.world_size)
    mine = torch.from_numpy(logits).chunk(spec.world_size, 1)[spec.rank].clone().requires_grad_()
    logp, entropy = token_log_probabilities(mine, torch.from_numpy(targets), temperature, dist.group.WORLD)
    (logp * torch.arange(len(logp))).sum().backward()
    dist.destroy_process_group()
    return logp.detach().numpy(), entropy.numpy(), mine.grad.numpy()


def differing_replicas(spec: RankSpec, recipe: Recipe) -> str:
    """Start ranks whose parameters are not the same."""
    from learners.megatron import parallel

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


def abort(spec: RankSpec) -> None:
    """Die as gloo does when sizes do not match; the other ranks wait for ever."""
    import os

    if spec.rank == 1:
        os.abort()
    time.sleep(3600)
