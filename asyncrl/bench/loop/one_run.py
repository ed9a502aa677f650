"""One run of a workload, for benchmarks that look at what it measured of itself."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from asyncrl.bench.loop.workloads import WARM_UP_STEPS, Workload, make_files, recipe
from asyncrl.bench.own_process import in_own_process, launch_here
from asyncrl.core.errors import ComponentFailed
from asyncrl.run.measures.summary import Status
from asyncrl.run.views.live_view import LiveView

MODEL = "1m"


def run_workload(name: str, workload: Workload, steps: int, keys: Sequence[str], folder: str) -> str:
    """Run a workload for ``steps`` training steps with all episodes kept, and return the path of its run folder. Call it in a
    process of its own (:func:`asyncrl.bench.own_process.in_own_process`).

    Args:
        name: of the run, for its files and for errors.
        keys: of the recipe, beside the workload's.
        folder: where its files and its run folder go.

    Raises:
        ComponentFailed: the run failed.
        MeasurementInterrupted: the user stopped it.
    """
    workload = msgspec.structs.replace(workload, steps=steps - WARM_UP_STEPS)
    material_folder = Path(folder) / name.replace(",", "").replace(" ", "-")
    material_folder.mkdir()
    material = in_own_process(make_files, workload, MODEL, material_folder)
    keys = (*keys, "tracking.trajectories.keep=all", f"run_dir={folder}/runs")
    checked = recipe(workload, MODEL, material, keys)
    run_folder, summary = launch_here(checked, LiveView(Console(quiet=True), checked.name))
    if summary.status is not Status.COMPLETED:
        raise ComponentFailed(f"{name} failed: {summary.reason}; see {run_folder.logs}")
    return str(run_folder.path)
