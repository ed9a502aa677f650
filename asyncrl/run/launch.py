"""One run from recipe to summary.

Always holds: whatever happens, every process of the run is ended and the summary is written. The first Ctrl-C or SIGTERM ends the
run in an orderly way within ``deadlines.shutdown`` (plus a second for processes that must be killed); a second one kills it.
"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.recipe.rules.inert import inert
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.core.text import pluralize
from asyncrl.envs.hosting.threads import run_in_daemon_thread
from asyncrl.envs.sandbox.processes import adopt_orphans
from asyncrl.episodes.files import forget_steps_after
from asyncrl.run.buffer.tasks import load_held_out_tasks
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.cluster import Cluster
from asyncrl.run.control import RunControl, controlled
from asyncrl.run.dry_run.prompt_lengths import TooLong, left_out
from asyncrl.run.early_end import EarlyEnd
from asyncrl.run.evaluator import Evaluator
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.disk import ROOM_BYTES, wait_for_room
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.run_memory import free_memory_of, memory_held
from asyncrl.run.folder.step_log import Launched, StepLog
from asyncrl.run.host.daemon_watch import ending_with, own_daemons
from asyncrl.run.host.full_memory import first_reason
from asyncrl.run.host.processes import end_descendants, kill_everything
from asyncrl.run.host.ray_cluster import remove_session, starting_ray, stop_ray
from asyncrl.run.host.signals import Heard, StopRequests, hearing, stopped_by, wait_hearing
from asyncrl.run.measures.progress import training_phase
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.measures.totals import SavedTotals, Totals, summarize
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.models.model_sources import with_local_reference, with_local_teacher
from asyncrl.run.models.model_weights import check_model_weights
from asyncrl.run.nodes.cluster_nodes import NodesSeen, read_nodes
from asyncrl.run.nodes.placed_processes import find_places
from asyncrl.run.nodes.process_kinds import parts_of
from asyncrl.run.nodes.process_memory import sizes_of
from asyncrl.run.publisher import Publisher
from asyncrl.run.recorder import Recorder
from asyncrl.run.resolve_model import resolve_model
from asyncrl.run.resume import Reached
from asyncrl.run.storage.upload_places import Uploads
from asyncrl.run.teacher.teacher_check import check_teacher_fits
from asyncrl.run.tracking.further_trackers import TRACKING_PROCESS
from asyncrl.run.tracking.tracker import Tracker
from asyncrl.run.train_pump import Learning, train_pump
from asyncrl.run.tuning.run_knobs import RunKnobs
from asyncrl.run.tuning.tuner import Tuner
from asyncrl.run.views.live_view import LiveView
from asyncrl.run.weight_probe import Probe

logger = logging.getLogger(__name__)

EXIT_INTERRUPTED = 130
STOP_S = 10.0
"""How long generators may take to cancel their episodes; closing environments may take longer."""
LAST_WORDS_S = 1.0
"""How long the driver waits for the last counters when a run ends."""
LAST_UPLOADS_S = 60.0
"""How long the driver waits for the uploads of a run that failed."""
TRACKING_FLUSH_S = 60.0
"""How long the driver waits for MLflow to store the last records of a run that completed."""


class _Records(NamedTuple):
    """Where a run's records go beside its folder."""

    tracker: Tracker
    uploads: Uploads


def launch(
    recipe: Recipe, folder: RunFolder, view: LiveView, reached: Reached | None = None, too_long: Sequence[TooLong] = ()
) -> tuple[Summary, SavedTotals]:
    """Run ``recipe`` to its end, from where the run in ``folder`` is, and write ``summary.json`` there.

    Errors of the run end up in the summary and are not raised.

    Args:
        reached: how far the run had come, if it is resumed; whatever happens, the new summary reports no less.
        too_long: the tasks that the plan leaves out because of their prompts.

    Returns:
        the summary, and the running totals, which say more.
    """
    totals = Totals()
    if reached is not None:
        totals.resume(reached.totals, reached.statistics.version)
        totals.buffer = reached.statistics
        if reached.note:
            view.note(reached.note)
    uploads = Uploads(recipe, folder, view.note)
    uploads.start()
    for address in uploads.addresses:
        view.note(f"Copied, beside training, to {address}")
    tracker = Tracker(recipe, folder)
    adopt_orphans()
    tracker.start()
    changed = reached is not None and reached.changed
    running = partial(_run, recipe, folder, view, totals, _Records(tracker, uploads), changed, too_long)
    status, reason = asyncio.run(supervise(running, folder.run_id, view, recipe.deadlines.shutdown))
    if status is Status.FAILED:
        reason = cause(folder, reason)
    summary = summarize(totals, status, reason, recipe.buffer).leaving_out(left_out(too_long, "evaluation"))
    if reached is not None:
        summary = summary.going_on_from(reached.summary, totals.seconds)
    summary = summary.recorded(folder.summary)  # before anything else can go wrong
    try:
        tracker.finish(status, TRACKING_FLUSH_S if status is Status.COMPLETED else recipe.deadlines.shutdown / 5)
    except (AsyncRLError, KeyboardInterrupt) as error:
        logger.warning("the last records are not tracked: %s", error or "interrupted")
        if status is Status.COMPLETED:
            summary = msgspec.structs.replace(summary, status=Status.FAILED, reason=str(error) or "interrupted while tracking")
            summary = summary.recorded(folder.summary)
    summary = _uploaded(summary, recipe, folder, uploads)
    end_descendants(LAST_WORDS_S)
    return summary, totals.now()


def cause(folder: RunFolder, reason: str) -> str:
    """Return why a run failed: whatever failed first, if its folder is gone, that is the cause."""
    try:
        folder.check_there()
    except AsyncRLError as gone:
        return str(gone)
    return reason


def _uploaded(summary: Summary, recipe: Recipe, folder: RunFolder, uploads: Uploads) -> Summary:
    """Wait for the last uploads; return the summary, of a run that has failed if it completed and they did not."""
    limits = {Status.COMPLETED: recipe.deadlines.upload, Status.FAILED: min(recipe.deadlines.upload, LAST_UPLOADS_S)}
    try:
        uploads.finish(limits.get(summary.status, recipe.deadlines.shutdown / 5))
    except (AsyncRLError, KeyboardInterrupt) as error:
        logger.warning("the last uploads: %s", error or "interrupted")
        if summary.status is Status.COMPLETED:
            reason = str(error) or "interrupted while its last files were uploaded"
            return msgspec.structs.replace(summary, status=Status.FAILED, reason=reason).recorded(folder.summary)
    return summary


async def supervise(
    run: Callable[[asyncio.Event], Coroutine[None, None, None]], run_id: str, view: LiveView, shutdown_s: float
) -> tuple[Status, str]:
    """Do ``run``; return how it ended and why. Once it sets its event it is ending, and interrupts change neither."""
    ending = asyncio.Event()
    running = asyncio.create_task(run(ending), name="run")
    requests = StopRequests(time.monotonic)
    interrupted_by: int | None = None

    def interrupt(number: int) -> None:
        nonlocal interrupted_by
        heard = requests.heard()
        if heard is Heard.SAME:
            return
        if heard is Heard.KILL:
            free_memory_of(run_id)
            kill_everything(EXIT_INTERRUPTED)
        if not ending.is_set():
            view.give_up_phase()
        again = "press Ctrl-C again" if number == signal.SIGINT else "send it again"
        view.note(f"Stopping because of {signal.Signals(number).name}, at most {shutdown_s:g} s; {again} to kill")
        if not ending.is_set():
            interrupted_by = number
            running.cancel()

    loop = asyncio.get_running_loop()
    with memory_held(run_id), hearing(lambda number: loop.call_soon_threadsafe(interrupt, number)):
        try:
            await running
        except (Exception, BaseExceptionGroup, asyncio.CancelledError) as error:
            # Every error of a run ends here: the user gets its reason, the log its traceback.
            if interrupted_by is None:
                view.give_up_phase()
                logger.exception("the run failed")
                return Status.FAILED, first_reason(error)
    return (Status.COMPLETED, "") if interrupted_by is None else (Status.INTERRUPTED, stopped_by(interrupted_by))


async def _run(
    recipe: Recipe,
    folder: RunFolder,
    view: LiveView,
    totals: Totals,
    records: _Records,
    changed: bool,
    too_long: Sequence[TooLong],
    ending: asyncio.Event,
) -> None:
    own_recipe = recipe
    if folder.run_id_before is not None:
        free_memory_of(folder.run_id_before)
    if (without_effect := inert(recipe)) is not None:
        view.note(without_effect)
    await wait_for_room(folder.path, ROOM_BYTES, view.note)
    early = EarlyEnd(view.note)
    control = RunControl(own_recipe, folder, early)
    async with controlled(folder, control):
        model_path = await resolve_model(recipe, view)
        recipe = await with_local_teacher(await with_local_reference(recipe))
        await check_teacher_fits(recipe, model_path)
        here = msgspec.structs.replace(recipe.model, path=str(model_path))
        check_model_weights(msgspec.structs.replace(recipe, model=here))  # of a model of the hub, the plan may not have seen them
        async with _cluster(recipe, folder, view, str(model_path), totals, too_long, ending) as cluster:
            buffer, generators = cluster.buffer, cluster.generators
            checkpointer = Checkpointer(recipe, folder, cluster, buffer, totals, view, records.uploads)
            statistics = await buffer.statistics()
            published_version = statistics.version
            begin = await checkpointer.resume(published_version, statistics.kept_from)
            await cluster.take_over()  # everything was read and checked; the run's files change only from here on
            if changed:
                folder.keep_recipe(own_recipe)
            forget_steps_after(folder.trajectories, begin)
            folder.summary.unlink(missing_ok=True)  # it says how the run ended before
            recorder = Recorder(recipe, generators, buffer, records.tracker, view, totals)
            tasks, pinned = load_held_out_tasks(recipe, left_out(too_long, "evaluation")), recipe.evaluation.pinned
            recorder.resumed(published_version)
            evaluator = Evaluator(generators, tasks, pinned, recorder, checkpointer, folder.trajectories, cluster.far_files)
            publisher = Publisher(cluster, generators, buffer, totals, published_version, tell=view.tell)
            if begin >= published_version:
                view.phase(f"Publishing version {begin}")
                publication, _ = await publisher.write(begin, must_differ=False)
                await publisher.deliver(publication)
            if begin == 0 == published_version:
                view.phase("Evaluating version 0")
                await evaluator.evaluate(begin)
            view.phase(training_phase(begin, recipe.steps))
            await recorder.begin()
            log = StepLog(folder.steps)
            log.append(Launched(begin, resolved_yaml(own_recipe)))
            learning = Learning(buffer, cluster, publisher, checkpointer, Probe(recipe, cluster, generators), log)
            try:
                async with _tuner(recipe, folder, cluster, control, recorder, view) as tuner, asyncio.TaskGroup() as pumps:
                    control.begin(generators, recorder.log)
                    generating = pumps.create_task(generators.generate(), name="generation pump")
                    last = await train_pump(begin, recipe, learning, evaluator, recorder, early, tuner)
                    control.end()
                    await generators.stop()
                    await _until_stopped(recipe, generating)
            finally:
                checkpointer.note()
            view.phase("Evaluating the last version and saving the model")
            await cluster.write_trajectories()
            await evaluator.evaluate(last)
            await cluster.save_model()


@asynccontextmanager
async def _tuner(
    recipe: Recipe, folder: RunFolder, cluster: Cluster, control: RunControl, recorder: Recorder, view: LiveView
) -> AsyncIterator[Tuner | None]:
    """Have what turns the run's sizes, if the recipe asks for it."""
    buffer, depth = cluster.buffer, recipe.buffer.pipeline_depth
    if depth != AUTO and (await buffer.statistics()).depth != depth:
        await buffer.pace(depth)  # the run was resumed with another
    if recipe.tune is None:
        yield None
        return
    knobs = RunKnobs(recipe.tune.knobs, control, cluster.generators, buffer)
    tuner = Tuner(recipe, knobs, folder, recorder.device, view.note, recorder.log)
    await tuner.begin()
    try:
        yield tuner
        tuner.finish()
    finally:
        await tuner.close()


async def _until_stopped(recipe: Recipe, generating: "asyncio.Task[None]") -> None:
    """Wait for the generators, which have been told to stop."""
    seconds = STOP_S + max(member.tool_timeout_s for member in recipe.environment.by_member.values())
    remedy = "an environment ignores its cancellation; see their logs"
    async with deadline(seconds, waiter="the driver", owner="the generators to stop", remedy=remedy):
        await generating


@asynccontextmanager
async def _cluster(
    recipe: Recipe,
    folder: RunFolder,
    view: LiveView,
    model_path: str,
    totals: Totals,
    too_long: Sequence[TooLong],
    ending: asyncio.Event,
) -> AsyncIterator[Cluster]:
    """Start the run's processes, and end them whatever happens."""
    view.phase("Starting Ray")
    ray_started = starting_ray(view.note)
    cluster: Cluster | None = None
    try:
        await ray_up(ray_started, recipe.deadlines.start)
        async with ending_with(own_daemons()):
            view.phase(f"Starting {pluralize(recipe.generators.engines, 'generator')} and the learner")
            sizes = sizes_of(recipe, read_shape(model_path))
            places = await find_places(recipe, parts_of, NodesSeen(read_nodes), sizes, view.note)
            cluster = Cluster(recipe, folder, model_path, places, view.note, view.advance, left_out(too_long, "train"))
            async with cluster.watching_learners():
                await cluster.start()
                yield cluster
    finally:
        ending.set()
        completed = sys.exception() is None
        await _end(recipe.deadlines.shutdown, folder.run_id, cluster, ray_started, totals, completed=completed)


async def _end(
    shutdown_s: float,
    run_id: str,
    cluster: Cluster | None,
    ray_started: "asyncio.Future[None]",
    totals: Totals,
    *,
    completed: bool,
) -> None:
    """Stop everything within four fifths of ``shutdown_s``. Raises nothing: an error could hide why the run ended."""
    end_by = time.monotonic() + shutdown_s * 4 / 5
    await wait_hearing(ray_started, shutdown_s / 5)
    if cluster is not None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                totals.counted(await cluster.generators.statistics(), await cluster.buffer.statistics())
        except (AsyncRLError, TimeoutError) as error:
            logger.warning("the summary has the counters of the last training step; newer ones are missing: %s", error)
        await cluster.close(shutdown_s / 5)
    await end_processes(shutdown_s / 5, end_by, completed=completed)
    free_memory_of(run_id)


async def ray_up(ray_started: "asyncio.Future[None]", seconds: float) -> None:
    """Wait at most ``seconds`` until Ray, which :func:`starting_ray` is starting, is up."""
    remedy = "see Ray's own logs; raise deadlines.start, or unset RAY_ADDRESS"
    async with deadline(seconds, waiter="the driver", owner="Ray to start", remedy=remedy):
        await wait_hearing(ray_started)
        await ray_started


async def end_processes(ray_s: float, end_by: float, *, completed: bool) -> None:
    """Stop Ray, waiting at most ``ray_s``, and every process that this one started, by ``end_by`` of the monotonic clock.

    Args:
        completed: nothing failed, so nobody needs Ray's logs any more.
    """
    stopping_ray = asyncio.ensure_future(run_in_daemon_thread(stop_ray, "stop Ray"))
    await wait_hearing(stopping_ray, ray_s)
    left = max(0.5, end_by - time.monotonic() - 1.0)
    for name in await asyncio.to_thread(end_descendants, left, TRACKING_PROCESS):
        logger.warning("%s did not stop and was killed", name)
    if completed and stopping_ray.done() and (session := stopping_ray.result()) is not None:
        await asyncio.to_thread(remove_session, session)
