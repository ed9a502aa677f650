"""One run from recipe to summary.

Always holds: whatever happens, every process of the run is ended and the summary is written; the first Ctrl-C ends the run in an
orderly way within ``deadlines.shutdown``, a second one kills.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import ray

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.cluster import Cluster, start_ray
from asyncrl.run.evaluator import Evaluator
from asyncrl.run.folder import RunFolder
from asyncrl.run.live_view import LiveView
from asyncrl.run.model import resolve_model
from asyncrl.run.processes import adopt_orphans, end_descendants, kill_everything
from asyncrl.run.publisher import Publisher
from asyncrl.run.recorder import Recorder
from asyncrl.run.summary import EvaluationEnds, IdleShares, StalenessTotals, Status, Summary, TokenTotals
from asyncrl.run.tasks import load_tasks
from asyncrl.run.totals import Totals
from asyncrl.run.tracking import Tracker
from asyncrl.run.train_pump import train_pump

logger = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130
TRACKING_FLUSH_S = 60.0
"""How long the last records may take to reach MLflow after a run that completed."""


def launch(recipe: Recipe, folder: RunFolder, view: LiveView) -> Summary:
    """Run ``recipe`` to its end and write ``summary.json`` into ``folder``. Errors of the run end up in the summary, not here."""
    return launch_with_totals(recipe, folder, view)[0]


def launch_with_totals(recipe: Recipe, folder: RunFolder, view: LiveView) -> tuple[Summary, Totals]:
    """Like :func:`launch`, for those who want to know more than the summary says."""
    totals = Totals()
    tracker = Tracker(recipe, folder)
    adopt_orphans()
    tracker.start()
    status, reason = asyncio.run(_supervise(recipe, folder, view, totals, tracker))
    try:
        tracker.finish(status, TRACKING_FLUSH_S if status is Status.COMPLETED else recipe.deadlines.shutdown / 3)
    except AsyncRLError as error:
        status, reason = (Status.FAILED, str(error)) if status is Status.COMPLETED else (status, reason)
    summary = _summarize(recipe, totals, status, reason)
    summary.write(folder.summary)
    return summary, totals


async def _supervise(recipe: Recipe, folder: RunFolder, view: LiveView, totals: Totals, tracker: Tracker) -> tuple[Status, str]:
    """The run's end and its reason."""
    running = asyncio.create_task(_run(recipe, folder, view, totals, tracker), name="run")
    interrupts = 0

    def interrupt() -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            kill_everything(EXIT_INTERRUPTED)
        view.note(f"Stopping, at most {recipe.deadlines.shutdown:g} s; press Ctrl-C again to kill")
        running.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        await running
    except asyncio.CancelledError:
        return Status.INTERRUPTED, "stopped by the user"
    except BaseExceptionGroup as group:
        return (Status.INTERRUPTED, "stopped by the user") if interrupts else (Status.FAILED, _reason(group))
    except Exception as error:  # noqa: BLE001 - the owner of every error of a run is its summary, and the log has the traceback
        return (Status.INTERRUPTED, "stopped by the user") if interrupts else (Status.FAILED, _reason(error))
    return Status.COMPLETED, ""


async def _run(recipe: Recipe, folder: RunFolder, view: LiveView, totals: Totals, tracker: Tracker) -> None:
    model_path = await resolve_model(recipe, view)
    async with _cluster(recipe, folder, view, str(model_path)) as cluster:
        recorder = Recorder(recipe, cluster, tracker, view, totals)
        evaluator = Evaluator(recipe, cluster, load_tasks(recipe, "evaluation"), recorder)
        publisher = Publisher(cluster, totals)
        view.phase("Publishing version 0 and evaluating it")
        await publisher.deliver(*await publisher.write(PolicyVersion(0), must_differ=False))
        await evaluator.evaluate(PolicyVersion(0))
        view.phase(f"Training for {recipe.steps} steps")
        await recorder.begin()
        async with asyncio.TaskGroup() as pumps:
            generating = pumps.create_task(cluster.generate(), name="generation pump")
            await train_pump(recipe, cluster, publisher, evaluator, recorder)
            await cluster.stop_generating()
            await generating
        view.phase("Evaluating the last version and saving the model")
        await evaluator.evaluate(PolicyVersion(recipe.steps))
        await cluster.save_model()


@asynccontextmanager
async def _cluster(recipe: Recipe, folder: RunFolder, view: LiveView, model_path: str) -> AsyncIterator[Cluster]:
    """The run's processes, ended whatever happens."""
    view.phase("Starting Ray")
    starting_ray = asyncio.create_task(asyncio.to_thread(start_ray))
    cluster: Cluster | None = None
    try:
        await asyncio.shield(starting_ray)
        view.phase(f"Starting {recipe.generators.count} generators and the learner")
        cluster = Cluster(recipe, folder, model_path)
        await cluster.start()
        yield cluster
    except (AsyncRLError, ExceptionGroup):
        logger.exception("the run failed")
        raise
    finally:
        began = time.monotonic()
        await starting_ray
        if cluster is not None:
            await cluster.close(recipe.deadlines.shutdown / 3)
        await asyncio.to_thread(ray.shutdown)
        left = max(1.0, recipe.deadlines.shutdown * 2 / 3 - (time.monotonic() - began))
        for name in await asyncio.to_thread(end_descendants, left):
            logger.warning("%s did not stop and was killed", name)


def _reason(error: BaseException) -> str:
    """The first cause, in the words of the error that names it."""
    while isinstance(error, BaseExceptionGroup):
        own = [e for e in error.exceptions if isinstance(e, AsyncRLError)]
        error = (own or list(error.exceptions))[0]
    return str(error) if isinstance(error, AsyncRLError) else f"{type(error).__name__}: {error}"


def _summarize(recipe: Recipe, totals: Totals, status: Status, reason: str) -> Summary:
    evaluations = totals.evaluations
    ends = EvaluationEnds(evaluations[0], evaluations[-1]) if evaluations else EvaluationEnds()
    summary = Summary(
        status=status,
        reason=reason,
        steps=totals.steps,
        wall_s=time.monotonic() - totals.launched,
        evaluation=ends,
        staleness=StalenessTotals(totals.staleness_mean, totals.staleness_max, recipe.buffer.max_staleness),
        tokens=TokenTotals(totals.tokens_generated, totals.tokens_trained),
        trajectories_per_s=totals.trajectories_per_s,
        idle=IdleShares(totals.idle_generators, totals.idle_learner),
        versions_published=totals.versions_published,
    )
    return summary if totals.buffer is None else msgspec.structs.replace(summary, ledger=totals.buffer.ledger)
