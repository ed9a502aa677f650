"""What a report says about the points of a sweep, read from their run folders. Changes nothing."""

from itertools import accumulate

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.learners import metrics as learner_metrics
from asyncrl.run.measures import metrics
from asyncrl.run.measures.measure_file import read
from asyncrl.run.measures.summary import Summary
from asyncrl.run.report.run_record import read_recipe, tracking_of
from asyncrl.run.tracking.metric_history import Series, metric_history
from asyncrl.sweeps.sweep import Point, Sweep
from asyncrl.sweeps.sweep_folder import PointState, SweepFolder

CURVES = (
    metrics.EVALUATION_REWARD,
    metrics.REWARD,
    learner_metrics.STALENESS_MEAN,
    metrics.TRAJECTORY_RATE,
    learner_metrics.ENTROPY,
    learner_metrics.EFFECTIVE_SAMPLE_SIZE,
)
"""The metrics whose curves are compared, in this order."""


class PointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep.

    Attributes:
        run: the name of its newest run folder; empty if there is none.
        summary: how that ended; None if it has not, or was killed.
        curves: those of :data:`CURVES` that it has, by name.
        seconds, tokens: training time and trained tokens until the end of each training step, by step; steps that a resume did
            again count once.
        missing: sentences on what could not be read, and why.
    """

    point: Point
    state: PointState
    run: str = ""
    summary: Summary | None = None
    curves: dict[str, Series] = {}
    seconds: dict[int, float] = {}
    tokens: dict[int, float] = {}
    missing: tuple[str, ...] = ()


def read_points(folder: SweepFolder, sweep: Sweep) -> list[PointRecord]:
    """Read all points, in the order in which they are run."""
    return [_read(folder, point) for point in sweep.points]


def _read(folder: SweepFolder, point: Point) -> PointRecord:
    state, summary = folder.state_of(point)
    run = folder.run_of(point)
    if run is None:
        return PointRecord(point=point, state=state)
    missing: list[str] = []
    curves: dict[str, Series] = {}
    seconds: dict[int, float] = {}
    tokens: dict[int, float] = {}
    try:
        tracking = tracking_of(read_recipe(run.recipe))
        curves = metric_history(run, tracking, {metric.name for metric in CURVES})
        if run.measures.is_file():
            steps = read(run.measures)
            seconds = {0: 0.0} | dict(zip((s.step for s in steps), accumulate(s.time.seconds for s in steps), strict=True))
            tokens = {0: 0.0} | dict(zip((s.step for s in steps), accumulate(s.time.trained_tokens for s in steps), strict=True))
    except RecipeError as error:
        missing.append(str(error))
    return PointRecord(
        point=point,
        state=state,
        run=run.path.name,
        summary=summary,
        curves=curves,
        seconds=seconds,
        tokens=tokens,
        missing=tuple(missing),
    )
