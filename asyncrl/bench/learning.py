"""Trains the quickstart with several algorithms, and on stale tokens with several corrections or none, to see whether it learns.

Every run has a process of its own and begins with the same weights. The result file is written after each run; started again with
the same file, the command does only the runs that are missing in it or have failed.
"""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from mlflow import MlflowClient
from rich.console import Console

from asyncrl.bench.own_process import MeasurementInterrupted, in_own_process, launch_here
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.tiny import TinyProgress, ensure_tiny_model
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.metrics import EVALUATION_REWARD
from asyncrl.run.measures.summary import Status
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.tracker import tracking_uri
from asyncrl.run.views.live_view import LiveView

BAR = 0.9
"""The target: share of the held-out tasks that the quickstart solves when it has learned; version 0 solves about 0.4."""
ALIKE = ("buffer.pipeline_depth=1", "generators.dtype=float32", "generators.count=2", "learner.data_parallel=1")
"""Fixed values for keys that ``auto`` would choose for the machine, so that runs on different machines can be compared.

The overrides of a row come later and win.
"""
OLDER = ("buffer.max_staleness=4", "buffer.pipeline_depth=4")
STALE = ("buffer.max_staleness=8", "buffer.pipeline_depth=7")
PPO_CLIP = ("algorithm.loss={kind: ppo_clip}", "algorithm.correction={anchor: behaviour, weight: none}")
DECOUPLED = (
    "algorithm.loss={kind: ppo_clip}",
    "algorithm.correction={anchor: proximal_recomputed, weight: token, bound: {kind: truncate, upper: 2}}",
)
PATIENT = (
    *(f"deadlines.{wait}=3600" for wait in ("start", "batch", "step", "publish", "evaluation")),
    "deadlines.lease=300",
    "deadlines.shutdown=15",
)
"""Long deadlines, so that no run fails because the machine has other work to do."""


class LearningVariant(msgspec.Struct, frozen=True):
    """One row of the result table: a variant of the quickstart.

    Attributes:
        name: the variant's name in the names of its run folders.
        title: the variant's name in the table.
        overrides: overrides of the quickstart.
        uncorrected: train stale tokens as if they were fresh (weight ``none``). A recipe that says so is refused, so this is set
            after the recipe has been checked.
    """

    name: str
    title: str
    overrides: tuple[str, ...] = ()
    uncorrected: bool = False


ROWS = (
    LearningVariant("dppo-1", "DPPO, the quickstart as it is"),
    LearningVariant("clip-1", "PPO clipping", PPO_CLIP),
    LearningVariant("decoupled-1", "recomputed anchor, truncated weights", DECOUPLED),
    LearningVariant("dppo-4", "staleness 4, DPPO", OLDER),
    LearningVariant("clip-4", "staleness 4, PPO clipping", (*OLDER, *PPO_CLIP)),
    LearningVariant("decoupled-4", "staleness 4, recomputed anchor, truncated weights", (*OLDER, *DECOUPLED)),
    LearningVariant("dppo-8", "staleness 8, DPPO", STALE),
    LearningVariant("clip-8", "staleness 8, PPO clipping", (*STALE, *PPO_CLIP)),
    LearningVariant("decoupled-8", "staleness 8, recomputed anchor, truncated weights", (*STALE, *DECOUPLED)),
    LearningVariant("uncorrected-8", "staleness 8, no correction", (*STALE, *DECOUPLED), uncorrected=True),
    LearningVariant("critic", "PPO with a critic", (*DECOUPLED, "algorithm.advantage={kind: gae, critic_lr: 2e-4}")),
    LearningVariant(
        "gspo",
        "GSPO, a weight for each row",
        (
            "algorithm.loss={kind: gspo}",
            "algorithm.aggregation={kind: sequence_mean_token_mean}",
            "algorithm.correction={anchor: proximal_recomputed, weight: sequence, bound: {kind: truncate, upper: 2}}",
        ),
    ),
)


class LearningSettings(msgspec.Struct, frozen=True):
    """The runs to do. A result file is only continued with the settings with which it was begun.

    Attributes:
        rows, seeds: each row is run once with each seed of task order and sampling, seed by seed.
        steps: training steps of a run.
        every: training steps between evaluations.
        model_seed: seed of the tiny model with which all runs begin.
    """

    rows: tuple[LearningVariant, ...] = ROWS
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 80
    every: int = 10
    model_seed: int = 0


class LearningRun(msgspec.Struct, frozen=True):
    """The outcome of one training run.

    Attributes:
        row, seed: name of the row, and seed, of the run.
        failure: why the run failed; empty if it completed.
        evaluations: mean reward on the held-out tasks by policy version.
        staleness_mean, staleness_max: staleness of the trained tokens, in policy versions.
        seconds: duration of the run, start and end included.
    """

    row: str
    seed: int
    failure: str = ""
    evaluations: dict[int, float] = {}
    staleness_mean: float = 0.0
    staleness_max: float = 0.0
    seconds: float = 0.0

    @property
    def at_bar(self) -> int | None:
        """The first evaluated version that reached ``BAR``; None if none did."""
        return next((version for version, reward in sorted(self.evaluations.items()) if reward >= BAR), None)


class LearningResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench learning`` writes."""

    bar: float
    settings: LearningSettings
    runs: tuple[LearningRun, ...] = ()

    def write(self, path: Path) -> None:
        """Write the result as JSON."""
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")

    def completed(self) -> dict[tuple[str, int], LearningRun]:
        """The runs that need not be done again, by row and seed."""
        return {(run.row, run.seed): run for run in self.runs if not run.failure}


class CannotContinue(RecipeError):
    """The result file cannot be continued: it holds something else, or a result with other settings."""


def begun(json_file: Path, settings: LearningSettings) -> LearningResult:
    """Read the result that an earlier command left in the file, without the failed runs; an empty result if there is no file.

    Raises:
        CannotContinue: the file has a result with other settings, or something else.
    """
    if not json_file.exists():
        return LearningResult(BAR, settings)
    remedy = "name another file, or remove it"
    try:
        found = msgspec.json.decode(json_file.read_bytes(), type=LearningResult)
    except msgspec.DecodeError as error:
        raise CannotContinue("", f"{json_file} holds no result of `asyncrl bench learning`: {error}", remedy) from error
    if (found.bar, found.settings) != (BAR, settings):
        differing = [
            f"{field} {getattr(found.settings, field)!r} in the file, {getattr(settings, field)!r} now"
            for field in settings.__struct_fields__
            if getattr(found.settings, field) != getattr(settings, field)
        ] or [f"bar {found.bar:g} in the file, {BAR:g} now"]
        raise CannotContinue("", f"{json_file} was begun with other settings ({'; '.join(differing)})", remedy)
    return msgspec.structs.replace(found, runs=tuple(found.completed().values()))


def run(json_file: Path, console: Console, settings: LearningSettings | None = None) -> LearningResult:
    """Do the runs that are missing in ``json_file``, and write it after each; a failed run does not stop the others.

    Raises:
        CannotContinue: the file has a result with other settings, or something else.
        KeyboardInterrupt: the user stopped a run; the next command starts this run again.
    """
    settings = settings or LearningSettings()
    result = begun(json_file, settings)
    # Many processes share few cores, so their threads must not spin while they wait.
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    console.print("Making the tiny model, unless it exists already")
    model = in_own_process(_make_model, settings.model_seed)
    missing = [(row, seed) for seed in settings.seeds for row in settings.rows if (row.name, seed) not in result.completed()]
    for number, (row, seed) in enumerate(missing, 1):
        console.print(f"Run {number} of {len(missing)}: {row.title}, seed {seed}", markup=False, highlight=False)
        try:
            done = in_own_process(_measure, row, seed, settings, model)
        except MeasurementInterrupted:
            raise KeyboardInterrupt from None
        except Exception as error:  # noqa: BLE001 - whatever ended the run's process is recorded as its failure
            done = LearningRun(row.name, seed, failure=f"{type(error).__name__}: {error}")
        result = msgspec.structs.replace(result, runs=(*result.runs, done))
        result.write(json_file)
        reached = done.failure or f"evaluations {', '.join(f'{reward:.3f}' for _, reward in sorted(done.evaluations.items()))}"
        console.print(f"{row.title}, seed {seed}: {reached}", markup=False, highlight=False, soft_wrap=True)
    return result


def recipe(row: LearningVariant, seed: int, settings: LearningSettings, model: Path) -> Recipe:
    """Compose the recipe of one run.

    Raises:
        RecipeError: the row's overrides are refused.
    """
    common = (
        f"name=bench-learning-{row.name}-{seed}",
        f"model.path='{model}'",
        f"seed={seed}",
        f"steps={settings.steps}",
        f"evaluation.every={settings.every}",
    )
    checked = compose("quickstart", [*common, *PATIENT, *ALIKE, *row.overrides])
    if not row.uncorrected:
        return checked
    correction = msgspec.structs.replace(checked.algorithm.correction, weight="none")
    return msgspec.structs.replace(checked, algorithm=msgspec.structs.replace(checked.algorithm, correction=correction))


def _make_model(seed: int) -> Path:
    return ensure_tiny_model({"": ClassEnvironmentConfig(name="calculator")}, seed, _silently)


def _silently(progress: TinyProgress) -> None:
    pass


def _measure(row: LearningVariant, seed: int, settings: LearningSettings, model: Path) -> LearningRun:
    of_run = recipe(row, seed, settings, model)
    folder, summary = launch_here(of_run, LiveView(Console(), of_run.name))
    failure = f"{summary.reason}; see {folder.logs}" if summary.status is Status.FAILED else ""
    return LearningRun(
        row=row.name,
        seed=seed,
        failure=failure,
        evaluations={} if failure else _evaluations(of_run, folder),
        staleness_mean=summary.staleness.mean,
        staleness_max=summary.staleness.max,
        seconds=summary.wall_s,
    )


def _evaluations(of_run: Recipe, folder: RunFolder) -> dict[int, float]:
    """Mean reward by policy version. A version is missing if its evaluation fell due while the previous one was still running."""
    client = MlflowClient(tracking_uri(of_run.tracking, folder))
    history = client.get_metric_history(folder.tracked_as.read_text(encoding="utf-8"), EVALUATION_REWARD.name)
    return {metric.step: metric.value for metric in history}


def markdown(result: LearningResult) -> str:
    """The result as a Markdown table; a cell lists the values of the seeds in order."""
    runs, settings = {(run.row, run.seed): run for run in result.runs}, result.settings
    headings = (
        "row",
        "version 0",
        f"version {settings.steps}",
        "median",
        f"first at {result.bar:g}",
        "staleness, mean",
        "max",
        "seconds",
        f"{result.bar:g} reached",
    )
    lines = [headings, ("---",) * len(headings), *(_cells(row, settings, runs) for row in settings.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(row: LearningVariant, settings: LearningSettings, runs: Mapping[tuple[str, int], LearningRun]) -> Sequence[str]:
    of_row = [runs.get((row.name, seed)) for seed in settings.seeds]
    whole = [run for run in of_row if run is not None and not run.failure]

    def by_seed(show: Callable[[LearningRun], str]) -> str:
        return ", ".join("not run" if run is None else "failed" if run.failure else show(run) for run in of_row)

    last = [run.evaluations[settings.steps] for run in whole]
    reached = sum(run.at_bar is not None for run in whole)
    return (
        row.title,
        by_seed(lambda run: f"{run.evaluations[0]:.3f}"),
        by_seed(lambda run: f"{run.evaluations[settings.steps]:.3f}"),
        f"{statistics.median(last):.3f}" if last else "",
        by_seed(lambda run: "never" if run.at_bar is None else str(run.at_bar)),
        by_seed(lambda run: f"{run.staleness_mean:.2f}"),
        by_seed(lambda run: f"{run.staleness_max:g}"),
        by_seed(lambda run: f"{run.seconds:.0f}"),
        f"{reached} of {len(settings.seeds)}",
    )
