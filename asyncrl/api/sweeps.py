"""Sweeps, run from Python and read from their folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.api.driver_process import Ended, drive
from asyncrl.api.errors import RunFailed, RunInterrupted
from asyncrl.api.given_classes import written
from asyncrl.api.recipes import Overrides, PathLike, RecipeLike, override_texts, value_text
from asyncrl.api.run import Run
from asyncrl.cli.driving.messages import SweepRequest
from asyncrl.cli.driving.start import how_it_ended
from asyncrl.core.errors import RecipeError
from asyncrl.core.text import first_few, short

if TYPE_CHECKING:
    import pyarrow as pa

_TOLD = 4
"""How many runs that did not complete are named."""


def sweep(
    recipe: RecipeLike,
    values: Mapping[str, Any] | Sequence[str],
    overrides: Overrides = (),
    *,
    seeds: int | None = None,
    parallel: int = 1,
) -> Sweep:
    """Run a recipe with all combinations of some values, each with the same seeds, as ``asyncrl sweep`` does.

    All are checked before the first one starts, and one that fails does not end the others.

    Args:
        recipe: as in ``asyncrl.launch``.
        values: a list of values for each key, e.g. ``{"buffer.max_staleness": [0, 2, 4], "learner": {"lr": [1e-4, 2e-4]}}``; or
            texts as on the command line, e.g. ``["buffer.max_staleness=0,2,4"]``.
        overrides: changes that hold for all, as in ``asyncrl.launch``.
        seeds: how often each combination is run; seeds begin at the recipe's. None for once, or where ``values`` has ``seed``.
        parallel: so many runs side by side on this machine.

    Raises:
        RecipeError: a combination or an argument was refused; nothing was started. The others that were refused are its notes.
        RunFailed: some runs did not complete; ``asyncrl.Sweep(error.folder)`` has the others, and its ``resume`` goes on.
        RunInterrupted: a signal to the sweep's own process stopped it.
        ComponentFailed: the process that drives the sweep could not begin.
    """
    if seeds is not None:
        _check_number("seeds", seeds)
    _check_number("parallel", parallel)
    changes = _varying(values)
    with written(recipe, overrides, {}) as given:
        if given.code is not None:
            problem = "a class or function is known in this program only, and each run of a sweep imports it by itself"
            raise RecipeError("", problem, "put it into a module (a .py file beside the program), and import it from there")
        request = SweepRequest(given.recipe, (*given.overrides, *changes), seeds, parallel)
        return _completed(drive(request))


class SweepPoint(msgspec.Struct, frozen=True):
    """One run of a sweep.

    Attributes:
        setting: the name of its combination of values.
        values: those values, by key: numbers, or texts as they were written.
        state: ``missing``, ``running``, ``killed``, ``interrupted``, ``failed`` or ``completed``.
        run: the run; None if it has not begun.
    """

    setting: str
    values: dict[str, int | float | str]
    seed: int
    state: str
    run: Run | None


class Sweep:
    """A sweep, read from its folder: while it goes on, after it has ended, or wherever the folder was copied to.

    Args:
        path: the folder, as ``asyncrl sweep`` names it.

    Raises:
        RecipeError: there is no sweep in it.
    """

    def __init__(self, path: PathLike) -> None:
        from asyncrl.sweeps.sweep_folder import SweepFolder

        self._folder = SweepFolder.find(Path(path))
        self._sweep = self._folder.read()

    def __repr__(self) -> str:
        return f"asyncrl.Sweep({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The sweep's folder, absolute."""
        return self._folder.path

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """Its runs as they are now, in the order in which they are begun."""
        return tuple(self._points())

    def _points(self) -> Iterator[SweepPoint]:
        for point in self._sweep.points:
            run = self._folder.run_of(point)
            yield SweepPoint(
                setting=self._sweep.settings[point.setting].name,
                values=self._sweep.values_of(point.setting),
                seed=point.seed,
                state=str(self._folder.state_of(point)[0]),
                run=None if run is None else Run(run.path),
            )

    def table(self) -> pa.Table:
        """Return a row for each run: setting, value of each swept key, seed, state, folder, and the figures of a report.

        Figures are null where a run has not ended or has none.
        """
        import pyarrow as pa

        from asyncrl.sweeps.comparison import MEASURES

        points = self._sweep.points
        ended = [self._folder.state_of(point) for point in points]
        runs = [self._folder.run_of(point) for point in points]
        values = [self._sweep.values_of(point.setting) for point in points]
        columns: dict[str, Any] = {"setting": pa.array([self._sweep.settings[each.setting].name for each in points], pa.string())}
        columns |= {key: pa.array([each[key] for each in values]) for key in values[0]}
        columns |= {
            "seed": pa.array([point.seed for point in points], pa.int64()),
            "state": pa.array([str(state) for state, _ in ended], pa.string()),
            "run": pa.array([None if run is None else str(run.path) for run in runs], pa.string()),
        }
        for measure in MEASURES:
            figures = [None if summary is None else measure.read(summary) for _, summary in ended]
            columns[measure.name] = pa.array(figures, pa.float64())
        return pa.table(columns)

    def differences(self) -> list[str]:
        """Say of each figure, in sentences, which settings differ by more than the spread of seeds."""
        from asyncrl.sweeps.comparison import compare, sentences

        return sentences(compare(self._folder.completed(self._sweep)), [each.name for each in self._sweep.settings])

    def resume(self, parallel: int = 1) -> Sweep:
        """Go on with what is missing, to the end; raises what ``asyncrl.sweep`` raises."""
        _check_number("parallel", parallel)
        return _completed(drive(SweepRequest(parallel=parallel, resume=str(self.path))))


def _check_number(name: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise RecipeError(name, f"{short(number)} is no number of runs", "give a whole number from 1")


def _varying(values: Mapping[str, Any] | Sequence[str]) -> tuple[str, ...]:
    """Write the values of keys as the command line takes them.

    Raises:
        RecipeError: a key has no list of values.
    """
    if not isinstance(values, Mapping):
        return override_texts(values)
    return tuple(_lists("", values))


def _lists(place: str, values: Mapping[str, Any]) -> Iterator[str]:
    for key, each in values.items():
        if not isinstance(key, str):
            raise RecipeError(place, f"{short(key)} is no key", "keys are texts")
        if isinstance(each, Mapping) and each:
            yield from _lists(f"{place}{key}.", each)
            continue
        each = each.tolist() if callable(getattr(each, "tolist", None)) else each  # numpy
        if not isinstance(each, list | tuple | range) or not each:
            remedy = "give a list of at least one; what holds for all goes into `overrides`"
            raise RecipeError(f"{place}{key}", f"{short(each)} is no list of values", remedy)
        yield f"{place}{key}={','.join(value_text(f'{place}{key}', value) for value in each)}"


def _completed(ended: Ended) -> Sweep:
    """Return the sweep that a process has just driven.

    Raises:
        RunFailed, RunInterrupted: it did not complete.
    """
    from asyncrl.cli.outcome import ExitCode

    made = Sweep(ended.folder)
    if ended.code == ExitCode.COMPLETED:
        return made
    if ended.code == ExitCode.INTERRUPTED:
        raise RunInterrupted(ended.folder, "a signal stopped the sweep")
    points = made.points
    left = [f"{each.setting} seed={each.seed} {each.state}" for each in points if each.state != "completed"]
    if ended.code != ExitCode.FAILED or not left:
        raise RunFailed(ended.folder, f"{how_it_ended(ended.code)}; what it printed above says why")
    told = f"{len(left)} of {len(points)} runs did not complete: {first_few(left, _TOLD, '; ')}"
    raise RunFailed(ended.folder, f"{told}; asyncrl.Sweep({str(ended.folder)!r}) has the others, and its resume() goes on")
