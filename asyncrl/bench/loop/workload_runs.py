"""Measures workloads: asyncrl and its peer train the same model on the same tasks, in turn, within one command.

On each side the clock runs from the end of the last warm-up step to the end of the last measured step. asyncrl plays episodes of
later steps meanwhile. So that it has equally many of them under way at both moments, its runs go on for some more steps.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from asyncrl.bench.loop.script import SIZES
from asyncrl.bench.loop.workloads import (
    GROUP_SIZE,
    LEARNING_RATE,
    WARM_UP_STEPS,
    WORKLOADS,
    Workload,
    WorkloadFiles,
    make_files,
    recipe,
)
from asyncrl.bench.own_process import MeasurementInterrupted, in_own_process, launch_here
from asyncrl.bench.peers import workload_tools
from asyncrl.bench.peers.peer import PEERS, PeerDescription, check_sampled_tokens, peer_python, run_peer
from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.measures.time_split import IdleShares, TimeSplit
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.measures.bottleneck import find_bottleneck
from asyncrl.run.measures.progress import RunProgress
from asyncrl.run.measures.summary import Status
from asyncrl.run.views.live_view import NO_METRICS, LiveView

ALL = "all"
REPETITIONS = 3
STANDARD_ERRORS = 4
"""Where lengths vary, a difference of up to this many standard errors between the sides may be due to chance."""


class SideResult(msgspec.Struct, frozen=True):
    """The speed of one side.

    Attributes:
        trajectories_per_s: trajectories trained per second; median over the repetitions.
        repetitions: trajectories per second of each repetition.
        sampled_tokens: mean number of tokens that the model sampled in an episode of the measured steps, whether or not they
            entered the loss; the two sides must agree (:func:`asyncrl.bench.peers.peer.check_sampled_tokens`).
    """

    trajectories_per_s: float
    repetitions: tuple[float, ...]
    sampled_tokens: float


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one workload with one model.

    Attributes:
        asyncrl, trl: the speed of each side; no ``trl`` without a peer.
        ratio: the median rate of asyncrl over that of the peer.
        idle: shares of the measured time in which asyncrl's generators, and its learner, did nothing; medians.
        bottleneck: the sentence in which asyncrl names the bottleneck of the last repetition's measured steps.
    """

    asyncrl: SideResult
    trl: SideResult | msgspec.UnsetType = msgspec.UNSET
    ratio: float | msgspec.UnsetType = msgspec.UNSET
    idle: IdleShares
    bottleneck: str


Results = dict[str, dict[str, WorkloadResult]]
"""Results by workload and model."""


class MeasurementPlan(msgspec.Struct, frozen=True):
    """The measurements that a command asks for.

    Attributes:
        workloads, models: names of the workloads and of the model sizes.
        peer: name of the peer; None to measure asyncrl alone.
        repetitions: runs of each side.
        overrides: overrides of asyncrl's recipe.
        steps: training steps that are measured; None for each workload's own number.
    """

    workloads: tuple[str, ...]
    models: tuple[str, ...]
    peer: str | None = None
    repetitions: int = REPETITIONS
    overrides: tuple[str, ...] = ()
    steps: int | None = None


def plan(
    workload: str, model: str, peer: str | None, repetitions: int, overrides: Sequence[str], steps: int | None = None
) -> MeasurementPlan:
    """Make the plan that a command line asks for.

    Raises:
        RecipeError: there is no such workload, model or peer, or the peers are not set up.
    """
    if peer is not None:
        _chosen("--peer", peer, PEERS)
        peer_python()
    workloads, models = _chosen("--workload", workload, [*WORKLOADS, ALL]), _chosen("--model", model, [*SIZES, ALL])
    return MeasurementPlan(
        tuple(WORKLOADS) if ALL in workloads else workloads,
        tuple(SIZES) if ALL in models else models,
        peer,
        repetitions,
        tuple(overrides),
        steps,
    )


def _chosen(option: str, name: str, known: Iterable[str]) -> tuple[str]:
    if name not in known:
        raise RecipeError(option, f"there is no {name!r}", f"name one of {', '.join(known)}")
    return (name,)


def run(plan: MeasurementPlan, json_file: Path, console: Console) -> Results:
    """Measure, and write ``json_file`` after each workload and model.

    Raises:
        RecipeError: an override is refused.
        ComponentFailed, PeerFailed: a run failed, or the two sides did not do the same work.
        KeyboardInterrupt: the user stopped a run.
    """
    results: Results = {}
    for name in plan.workloads:
        workload = WORKLOADS[name]
        if plan.steps is not None:
            workload = msgspec.structs.replace(workload, steps=plan.steps)
        for model in plan.models:
            with tempfile.TemporaryDirectory(prefix=f"asyncrl-{name}-{model}-") as folder:
                result = _measure(plan, workload, model, Path(folder), console)
            results.setdefault(name, {})[model] = result
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    return results


def _measure(plan: MeasurementPlan, workload: Workload, model: str, folder: Path, console: Console) -> WorkloadResult:
    material = in_own_process(make_files, workload, model, folder)
    checked = recipe(workload, model, material, plan.overrides)
    ours: list[_OwnRun] = []
    theirs: list[tuple[float, float]] = []
    for number in range(1, plan.repetitions + 1):
        where = f"{workload.name}, {model}, repetition {number} of {plan.repetitions}"
        if plan.peer is not None:
            console.print(f"{where}: {plan.peer}", markup=False, highlight=False)
            result = run_peer(plan.peer, describe(workload, material), folder)
            theirs.append((result.trajectories_per_s, result.sampled_tokens))
            console.print(f"{where}: {plan.peer} {result.trajectories_per_s:.2f} trajectories/s", markup=False, highlight=False)
        console.print(f"{where}: asyncrl", markup=False, highlight=False)
        try:
            ours.append(in_own_process(_train, checked, workload.steps))
        except MeasurementInterrupted:
            raise KeyboardInterrupt from None
        if plan.peer is not None:
            check_sampled_tokens(plan.peer, theirs[-1][1], ours[-1].sampled_tokens, _chance(workload))
        console.print(f"{where}: asyncrl {ours[-1].trajectories_per_s:.2f} trajectories/s", markup=False, highlight=False)
    idle = [each.idle for each in ours]
    own = _side([(each.trajectories_per_s, each.sampled_tokens) for each in ours])
    peer = _side(theirs) if theirs else msgspec.UNSET
    return WorkloadResult(
        asyncrl=own,
        trl=peer,
        ratio=own.trajectories_per_s / peer.trajectories_per_s if isinstance(peer, SideResult) else msgspec.UNSET,
        idle=IdleShares(statistics.median(each.generators for each in idle), statistics.median(each.learner for each in idle)),
        bottleneck=ours[-1].bottleneck,
    )


def _chance(workload: Workload) -> float:
    """The relative difference of the two sides' mean lengths that may be due to chance; episodes are independent."""
    episodes = workload.steps * workload.groups_per_step * GROUP_SIZE
    return STANDARD_ERRORS * workload.spread * math.sqrt(2 / episodes)


def _side(runs: Sequence[tuple[float, float]]) -> SideResult:
    rates = tuple(rate for rate, _ in runs)
    return SideResult(statistics.median(rates), rates, statistics.fmean(tokens for _, tokens in runs))


def describe(workload: Workload, material: WorkloadFiles) -> PeerDescription:
    """Describe a workload for a peer."""
    return PeerDescription(
        model=str(material.model),
        tasks=str(material.tasks),
        tools=workload_tools.__file__,
        tool=workload.tool,
        max_tool_rounds=workload.max_turns - 1,
        max_completion_tokens=workload.max_context,
        groups_per_step=workload.groups_per_step,
        group_size=GROUP_SIZE,
        warm_up_steps=WARM_UP_STEPS,
        steps=workload.steps,
        learning_rate=LEARNING_RATE,
        threads=len(os.sched_getaffinity(0)),
        seed=0,
    )


class _OwnRun(msgspec.Struct, frozen=True):
    """The outcome of one run of asyncrl."""

    trajectories_per_s: float
    sampled_tokens: float
    idle: IdleShares
    bottleneck: str


class _Steps(LiveView):
    """A live view that remembers all training steps, and when each ended, in seconds of the monotonic clock."""

    def __init__(self, console: Console, name: str) -> None:
        super().__init__(console, name)
        self.done: list[tuple[float, RunProgress]] = []

    def update(self, progress: RunProgress, metrics: Mapping[str, float] = NO_METRICS) -> None:
        """Remember the newest training step, and show it."""
        self.done.append((time.monotonic(), progress))
        super().update(progress, metrics)


def _train(recipe: Recipe, steps: int) -> _OwnRun:
    view = _Steps(Console(), recipe.name)
    folder, summary = launch_here(recipe, view)
    if summary.status is not Status.COMPLETED:
        raise ComponentFailed(f"{recipe.name} failed: {summary.reason}; see {folder.logs}")
    return _measured(recipe, view.done[WARM_UP_STEPS - 1 : WARM_UP_STEPS + steps])


def _measured(recipe: Recipe, done: Sequence[tuple[float, RunProgress]]) -> _OwnRun:
    """The outcome of all steps in ``done`` but the first, at whose end the clock starts."""
    (began, _), *measured = done
    progress, seconds = [each for _, each in measured], measured[-1][0] - began
    time = sum((each.time for each in progress), TimeSplit())
    episodes = len(measured) * recipe.batch.groups_per_step * recipe.batch.group_size
    return _OwnRun(
        episodes / seconds,
        sum(each.sampled_tokens for each in progress) / episodes,
        time.idle,
        find_bottleneck(time, recipe, progress[-1].pipeline_depth, len(measured)).sentence,
    )


def view(results: Mapping[str, Mapping[str, WorkloadResult]]) -> Table:
    """The results as a table."""
    table = Table("workload", "model", "asyncrl", "trl", "ratio", "idle generators", "learner", title="trajectories per second")
    for name, by_model in results.items():
        for model, result in by_model.items():
            trl = f"{result.trl.trajectories_per_s:.1f}" if isinstance(result.trl, SideResult) else ""
            ratio = f"{result.ratio:.2f}" if isinstance(result.ratio, float) else ""
            idle = (f"{result.idle.generators:.0%}", f"{result.idle.learner:.0%}")
            table.add_row(name, model, f"{result.asyncrl.trajectories_per_s:.1f}", trl, ratio, *idle)
    return table
