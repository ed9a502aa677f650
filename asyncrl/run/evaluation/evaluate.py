"""One evaluation of models from plan to scores: engines and environments, without a learner or a buffer.

What always holds: whatever happens, every process is ended, and ``evaluation.json`` has the scores of the models that were
evaluated to the end. Signals are taken as in :mod:`asyncrl.run.launch`.
"""

import asyncio
import logging
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import fmean

from asyncrl.core.errors import first_error
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.envs.sandbox.processes import adopt_orphans
from asyncrl.generators.evaluation import BrokenEpisode, Evaluated, EvaluationResult, HeldOutTask, require_results
from asyncrl.run.evaluation.folder import EvaluationFolder
from asyncrl.run.evaluation.found_model import EvaluatedModel
from asyncrl.run.evaluation.plan import EvaluationPlan, PlannedModel
from asyncrl.run.evaluation.summary import EvaluationSummary, ModelScores, Played, difference_to, scores_by_source
from asyncrl.run.evaluation.version_export import weights_of
from asyncrl.run.folder.disk import ROOM_BYTES, wait_for_room
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.daemon_watch import ending_with, own_daemons
from asyncrl.run.host.ray_cluster import starting_ray
from asyncrl.run.host.signals import wait_hearing
from asyncrl.run.launch import end_processes, ray_up, supervise
from asyncrl.run.models.model_weights import check_played
from asyncrl.run.nodes.cluster_nodes import NodesSeen, read_nodes
from asyncrl.run.nodes.placed_processes import find_places
from asyncrl.run.nodes.process_kinds import pools_of
from asyncrl.run.nodes.process_memory import engine_bytes
from asyncrl.run.nodes.remote_files import FarFiles, model_for_all_nodes
from asyncrl.run.pool.generator_pool import GeneratorPool, GeneratorSupply
from asyncrl.run.pool.handle import GeneratorHandle, make_generator
from asyncrl.run.startup_progress import ComingUp
from asyncrl.run.views.live_view import LiveView

logger = logging.getLogger(__name__)

PORTIONS_AT_ONCE = 4
"""Portions of the episodes that are played at the same time: while the last episodes of one end, others keep the engines busy."""
_VERSION = PolicyVersion(0)
"""The policy version of an engine that was given no other weights than it began with."""


def evaluate(plan: EvaluationPlan, folder: EvaluationFolder, view: LiveView) -> EvaluationSummary:
    """Evaluate the models of ``plan`` one after the other, and write ``evaluation.json``.

    Errors end up in the summary instead of being raised.
    """
    adopt_orphans()
    scored: list[ModelScores] = []
    running = partial(_run, plan, folder, view, scored)
    status, reason = asyncio.run(supervise(running, folder.run_id, view, plan.recipe.deadlines.shutdown))
    summary = EvaluationSummary(
        status=status,
        reason=reason,
        recipe=plan.recipe.name,
        environment=plan.recipe.environment.label,
        samples=plan.samples,
        temperature=plan.recipe.evaluation.temperature,
        passing_reward=plan.recipe.evaluation.passing_reward,
        models=tuple(scored),
    )
    return summary.recorded(folder.scores)


async def _run(
    plan: EvaluationPlan, folder: EvaluationFolder, view: LiveView, scored: list[ModelScores], ending: asyncio.Event
) -> None:
    await wait_for_room(folder.path, ROOM_BYTES, view.note)
    view.phase("Starting Ray")
    shutdown_s, ray_started = plan.recipe.deadlines.shutdown, starting_ray(view.note)
    try:
        await ray_up(ray_started, plan.recipe.deadlines.start)
        first: Played | None = None
        async with ending_with(own_daemons()):
            nodes = NodesSeen(read_nodes)
            for number, planned in enumerate(plan.models, 1):
                here = folder.make_model_folder(number, planned.model.name, planned.recipe)
                async with _weights(planned, folder, view) as weights, _generators(planned, weights, here, nodes, view) as pool:
                    played = await _play(pool, plan, planned.model, view)
                    await pool.statistics()  # so that errors of the environment's code are shown
                scored.append(_scores(plan, planned.model, here, played, first))
                view.note(f"{planned.model.name}: mean reward {scored[-1].scores.mean.value:.3f}")
                first = first or played
    finally:
        completed = sys.exception() is None
        ending.set()
        end_by = time.monotonic() + shutdown_s * 4 / 5
        await wait_hearing(ray_started, shutdown_s / 5)
        await end_processes(shutdown_s / 5, end_by, completed=completed)


@asynccontextmanager
async def _weights(planned: PlannedModel, folder: EvaluationFolder, view: LiveView) -> AsyncIterator[Path]:
    """Give the Hugging Face folder of a model; one that is made of a checkpoint is removed afterwards."""
    try:
        weights = await weights_of(planned.model, planned.trained_by or planned.recipe, folder.weights, view)
        check_played(weights)  # of a model of the hub, the plan may not have seen them
        yield weights
    finally:
        await asyncio.to_thread(shutil.rmtree, folder.weights, ignore_errors=True)


@asynccontextmanager
async def _generators(
    planned: PlannedModel, weights: Path, here: RunFolder, nodes: NodesSeen, view: LiveView
) -> AsyncIterator[GeneratorPool]:
    """Start the generators of a model, and end them afterwards. No node keeps a copy of what a run has trained."""
    recipe, made, model = planned.recipe, list[GeneratorHandle](), model_for_all_nodes(weights)

    def make(pool: str, number: int) -> GeneratorHandle:
        made.append(make_generator(recipe, model, pool, number, here, places))
        return made[-1]

    async def report_lost(worker: WorkerId, with_node: bool) -> None:
        # Nobody counts on a generator's leases here. This never waits, so the pool has only one successor made at a time.
        places.leave(worker)
        logger.warning("%s is gone", worker)

    count = recipe.generators.count
    view.phase(f"Starting {count} engine{'s' * (count > 1)} with {planned.model.name}")
    places = await find_places(recipe, pools_of, nodes, await asyncio.to_thread(_sizes, recipe, weights), view.note)
    supply = GeneratorSupply(make, report_lost, places.add)
    pool = GeneratorPool(recipe.generators.by_pool, supply, recipe.deadlines, view.note)
    far_files = FarFiles(here, lambda: places.others, model if planned.model.is_trained else None)
    try:
        await pool.start(ComingUp(pool.workers, view.advance).up)
        await far_files.bring()
        yield pool
        await far_files.bring()
    finally:
        await pool.close(recipe.deadlines.shutdown / 5)
        await far_files.close(recipe.deadlines.shutdown / 5)
        for generator in made:
            generator.kill()
        places.close()  # its GPUs are for the next model


def _sizes(recipe: Recipe, weights: Path) -> dict[str, int]:
    """The memory that an engine of each pool is expected to take, in bytes. The learner need not know the model."""
    size = 2 * sum(file.stat().st_size for file in weights.glob("*.safetensors"))
    return {
        name: engine_bytes(pool) + (size + (pool.kv_cache_mb << 20)) // pool.engine_nodes
        for name, pool in recipe.generators.by_pool.items()
    }


async def _play(pool: GeneratorPool, plan: EvaluationPlan, model: EvaluatedModel, view: LiveView) -> Played:
    """Play all episodes, in portions that keep the engines full, each within the deadline of an evaluation."""
    recipe, total = plan.recipe, len(plan.tasks) * plan.samples
    portions, at_once = portion_out(plan.tasks, recipe.generators.count, recipe.generators.max_running)
    view.phase(f"Playing {total:,} episodes with {model.name}")
    began = time.monotonic()
    evaluated: list[Evaluated] = []

    async def play() -> None:
        for portion in portions:
            evaluated.extend((await pool.evaluate(portion, _VERSION)).episodes)
            rewards = [each.reward for each in evaluated if isinstance(each, EvaluationResult)]
            so_far = f", mean reward {fmean(rewards):.3f}" if rewards else ""
            view.advance(len(evaluated) / total, f"{len(evaluated):,} of {total:,} episodes{so_far}")

    with first_error():
        async with asyncio.TaskGroup() as playing:
            for _ in range(at_once):
                playing.create_task(play())
    results = require_results(evaluated)
    broken = [each for each in evaluated if isinstance(each, BrokenEpisode)]
    return Played(results, broken, time.monotonic() - began)


def portion_out(tasks: Sequence[HeldOutTask], engines: int, room: int) -> tuple[Iterator[Sequence[HeldOutTask]], int]:
    """Divide tasks into portions for ``engines`` that have room for as many episodes each; also return how many to play at once.

    A portion has equally many tasks for each engine, whole ones: the samples of a task share its prompt in an engine's cache.
    """
    samples = max(task.samples for task in tasks)
    each = max(1, room // (PORTIONS_AT_ONCE * samples))
    at_once = min(PORTIONS_AT_ONCE, max(1, room // (each * samples)))
    size = each * engines
    return (tasks[start : start + size] for start in range(0, len(tasks), size)), at_once


def _scores(plan: EvaluationPlan, model: EvaluatedModel, here: RunFolder, played: Played, first: Played | None) -> ModelScores:
    passing = plan.recipe.evaluation.passing_reward
    scores, by_source = scores_by_source(played, plan.sources, plan.samples, passing)
    return ModelScores(
        model=model.name,
        path=str(model.path),
        version=model.version,
        folder=str(here.path),
        scores=scores,
        sources=by_source,
        difference=None if first is None else difference_to(first, played, plan.sources, passing),
        missing=len(played.broken),
        missing_tasks=len(plan.tasks) - scores.tasks,
        attempts=plan.recipe.buffer.max_attempts,
        example=played.broken[0].problem if played.broken else "",
        turns=played.turns(),
        stopped=played.stopped(),
        seconds=played.seconds,
    )
