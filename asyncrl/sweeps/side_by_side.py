"""Points of a sweep that run side by side: whether there is room for them, and which GPUs each may use."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

from asyncrl.core.errors import RecipeError
from asyncrl.core.measures.units import memory
from asyncrl.run.dry_run.plan import Plan
from asyncrl.run.host.gpus import usable
from asyncrl.run.nodes.machine import Machine
from asyncrl.sweeps.sweep import RunSize, Sweep
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def size_of(plan: Plan) -> RunSize:
    """What a run takes, as its plan estimates it."""
    return RunSize(plan.total_bytes, sum(each.count * each.gpus for each in plan.processes))


def check_room(runs: Sequence[RunSize], parallel: int, machine: Machine, running: Sequence[RunSize] = ()) -> None:
    """Refuse more runs side by side than the machine, or the cluster, has room for, whichever of them meet.

    Args:
        runs: what each run takes that is to begin.
        parallel: how many may meet, with those that run already.
        running: what those take; the memory of the machine that is free is without theirs.

    Raises:
        RecipeError: there is not enough memory, or there are too few GPUs in the cluster.
    """
    more = parallel - len(running)
    if more <= 1:
        return
    needed = _together([run.memory for run in runs], more)
    if needed[-1] > machine.free:
        besides = " besides what those have that run already" if running else ""
        problem = (
            f"{parallel} runs side by side take about {memory(int(needed[-1]))}{besides}, and {memory(machine.free)} are free"
        )
        most = len(running) + _fitting(needed, machine.free)
        raise RecipeError("--parallel", problem, f"give at most {most}")
    taken = sum(run.gpus for run in running)
    gpus = [taken + each for each in _together([run.gpus for run in runs], more)]
    if machine.cluster is not None and gpus[-1] > machine.gpus:
        problem = f"{parallel} runs side by side take {gpus[-1]:g} GPUs, and the cluster has {machine.gpus}"
        most = len(running) + _fitting(gpus, machine.gpus)
        raise RecipeError("--parallel", problem, f"give at most {most}, or a recipe of fewer engines (generators.count)")


def _together(sizes: Sequence[float], parallel: int) -> list[float]:
    """What one run takes, two together, and so on, if the largest meet."""
    return list(accumulate(sorted(sizes, reverse=True)[:parallel]))


def _fitting(needed: Sequence[float], there: float) -> int:
    return max(1, sum(each <= there for each in needed))


def check_resumed(folder: SweepFolder, sweep: Sweep, parallel: int) -> None:
    """Refuse to go on with more runs side by side than there is room for.

    Raises:
        RecipeError: as :func:`check_room` does, or the cluster cannot be joined.
    """
    states = [(folder.state_of(point)[0], sweep.settings[point.setting].size) for point in sweep.points]
    running = [size for state, size in states if state is PointState.RUNNING]
    beginning = [size for state, size in states if state not in (PointState.COMPLETED, PointState.RUNNING)]
    parallel = min(parallel, len(running) + len(beginning))
    if parallel - len(running) > 1:
        check_room(beginning, parallel, Machine.for_runs(), running)


def devices(parallel: int, gpus_each: float = 0.0) -> list[str | None]:
    """Divide the GPUs of this machine among points that run side by side.

    Args:
        gpus_each: how many GPUs a point takes, as far as that is known.

    Returns:
        for each of them, what ``CUDA_VISIBLE_DEVICES`` is to say; None where it may use all, because there is one only, or no GPU
        here, or a cluster that gives each process its own.

    Raises:
        RecipeError: there are fewer GPUs than points, or than they take.
    """
    gpus = usable()
    if parallel == 1 or not gpus or os.environ.get("RAY_ADDRESS"):
        return [None] * parallel
    each = gpus // parallel
    if each < 1:
        raise RecipeError("--parallel", f"there are {gpus} GPUs for {parallel} runs side by side", f"give at most {gpus}")
    if each < gpus_each:
        problem = f"{parallel} runs side by side have {each} GPUs each, and one takes {gpus_each:g}"
        most = max(1, int(gpus // gpus_each))
        raise RecipeError("--parallel", problem, f"give at most {most}")
    named = os.environ.get(_VISIBLE)
    names = [str(number) for number in range(gpus)] if named is None else [name.strip() for name in named.split(",")][:gpus]
    return [",".join(names[place * each : (place + 1) * each]) for place in range(parallel)]


@contextmanager
def visible(device: str | None) -> Iterator[None]:
    """Let this process see the GPUs that a point will see."""
    before = os.environ.get(_VISIBLE)
    if device is not None:
        os.environ[_VISIBLE] = device
    try:
        yield
    finally:
        if device is not None:
            os.environ.pop(_VISIBLE)
            if before is not None:
                os.environ[_VISIBLE] = before
