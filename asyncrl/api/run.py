"""Runs, launched from Python and read from their folders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from asyncrl.api.driver_process import drive
from asyncrl.api.errors import NotThere
from asyncrl.api.following import completed, following
from asyncrl.api.recipes import Overrides, PathLike, override_texts
from asyncrl.cli.driving.messages import LaunchRequest
from asyncrl.core.errors import RecipeError
from asyncrl.core.storage.address import is_address
from asyncrl.core.text import short

if TYPE_CHECKING:
    from subprocess import Popen

    import pyarrow as pa

    from asyncrl.core.recipe.schema import Recipe
    from asyncrl.run.measures.events import RunEvent
    from asyncrl.run.measures.summary import Summary

T = TypeVar("T")


class Run:
    """A run, read from its folder: while it goes on, after it has ended, or wherever the folder was copied to.

    Args:
        path: the run's folder, as ``asyncrl launch`` names it at its end; or its address in an object store, of which a copy is
            read, as it is now: without checkpoints and trained model until these are asked for.

    Raises:
        RecipeError: there is no run in it.
    """

    def __init__(self, path: PathLike) -> None:
        from asyncrl.run.folder.run_folder import RunFolder

        self._address = str(path) if is_address(str(path)) else None
        self._folder = RunFolder.find(Path(path) if self._address is None else self._copy(weights=False))
        self._driver: Popen[str] | None = None
        self._recipe: tuple[bytes, Recipe] | None = None

    def _driven_by(self, driver: Popen[str]) -> Run:
        """Have its events followed until this process ends, which says that it has begun before it drives the run."""
        self._driver = driver
        return self

    def _copy(self, *, weights: bool) -> Path:
        from asyncrl.run.storage.fetched_run import copy_of

        assert self._address is not None
        return copy_of(self._address, weights=weights)

    def __repr__(self) -> str:
        return f"asyncrl.Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The run's folder, absolute."""
        return self._folder.path

    @property
    def summary(self) -> Summary:
        """How the run ended, as in ``summary.json``.

        Raises:
            NotThere: the run has not ended, or was killed before it could write one.
            UnknownFormat: another version of asyncrl wrote it, in another way.
        """
        from asyncrl.run.measures.event_log import read_end

        try:
            return read_end(self._folder)
        except (OSError, ValueError, RecursionError) as error:
            raise NotThere(f"{self.path} has no summary ({error}): the run has not ended, or was killed; resume it") from error

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe, every key, as it is now: :meth:`scale`, ``tune`` and a resume change it.

        Raises:
            RecipeError: its file was changed and is no valid recipe now.
        """
        from asyncrl.run.recipe.compose import compose

        written = self._folder.recipe.read_bytes() if self._folder.recipe.is_file() else b""
        if self._recipe is None or self._recipe[0] != written:
            self._recipe = written, compose(str(self._folder.recipe))
        return self._recipe[1]

    @property
    def model_path(self) -> Path:
        """The Hugging Face folder of the trained model.

        Raises:
            NotThere: the run has not completed.
        """
        if self._address is not None:
            self._copy(weights=True)
        if not (self._folder.model / "config.json").is_file():
            remedy = "resume it; asyncrl.evaluate also takes its checkpoints"
            raise NotThere(f"{self.path} has no trained model: the run has not completed; {remedy}")
        return self._folder.model

    def metrics(self) -> pa.Table:
        """Return what was tracked, as columns ``step``, ``name`` and ``value``, in the order of steps.

        A metric has one value in a step; values that are not finite are left out.

        Raises:
            NotThere: nothing was tracked yet, or where it was tracked cannot be read.
        """
        import pyarrow as pa

        from asyncrl.run.tracking.metric_history import metric_history

        try:
            history = metric_history(self._folder, self.recipe.tracking)
        except RecipeError as error:
            raise NotThere(str(error)) from error
        if not history:
            raise NotThere(f"{self.path} has no metrics yet: tracking begins with the run, and takes seconds")
        rows = sorted(
            (step, name, value)
            for name, series in history.items()
            for step, value in zip(series.steps, series.values, strict=True)
        )
        steps, names, values = zip(*rows, strict=True) if rows else ((), (), ())
        types = [("step", pa.int64()), ("name", pa.string()), ("value", pa.float64())]
        return pa.table([steps, names, values], schema=pa.schema(types))

    def trajectories(self, step: int | None = None, kind: Literal["train", "evaluation"] | None = None) -> pa.Table:
        """Return the episodes that were kept; docs/reference/trajectories.md describes the columns.

        Args:
            step: of this training step, or of the evaluation of this policy version; None for all.
            kind: of training or of evaluations; None for both.

        Raises:
            RecipeError: there is no such kind.
            NotThere: no episodes are kept.
            EpisodesUnreadable: a file of them is damaged.
        """
        return read_trajectories(self._folder.trajectories, step, kind)

    def resume(self, overrides: Overrides = (), callbacks: Sequence[Callback] = ()) -> Run:
        """Go on with the run to its end, by its own recipe and these changes of it, as ``asyncrl launch --resume`` does.

        Args:
            callbacks: as of :func:`asyncrl.launch`, which also says what is raised.
        """
        request = LaunchRequest(None, override_texts(overrides), self._address or str(self.path))
        return completed(drive(request, following(Run, callbacks)), Run)

    async def events(self) -> AsyncIterator[RunEvent]:
        """Yield what has happened in the run, and then what happens, as it happens, until nobody drives the run any more."""
        from asyncrl.run.measures.event_log import FOLLOW_S, EventReader

        reader = EventReader(self._folder.events)
        while True:
            # Asked first: what was written before the run's end is read below.
            driven = self._folder.is_driven or (self._driver is not None and self._driver.poll() is None)
            for event in reader.new():
                yield event
            if not driven:
                return
            await asyncio.sleep(FOLLOW_S)

    def finish(self, reason: str = "finish() was called") -> None:
        """Have the run end as if the training step under way were its last: evaluated, and with its model saved.

        A run that is starting trains one step first; one that is ending already just ends. Nothing happens if it was launched
        here and has ended since.

        Raises:
            RecipeError: the run does not go on, or is driven on another machine.
        """
        from asyncrl.run.control import finish

        if self._driver is not None and self._driver.poll() is not None:
            return
        _answered(finish(self.path, reason))

    def stop(self) -> None:
        """Have the run end now, as Ctrl-C does, so that it can be resumed; returns when it has ended.

        Raises:
            RecipeError: the run does not go on, or is driven on another machine.
        """
        from asyncrl.run.host.stopping import stop

        stop(self._folder)

    def scale(self, pool: str, size: int) -> str:
        """Change how many engines a pool has, and return what happens now.

        Raises:
            RecipeError: the run does not train now, is driven on another machine, or has no such pool.
        """
        from asyncrl.run.control import scale

        return _answered(scale(self.path, pool, size))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Track metrics of your own beside those of a training step, as ``own/NAME``, from the first step to the run's end.

        Letters, digits, spaces and ``_ - . : /`` stay; a name with others, such as ``pass@4``, is respelt.

        Raises:
            RecipeError: the run is starting, has ended, or is driven on another machine; or there is no such step.
        """
        from asyncrl.run.control import log

        _answered(log(self.path, index(step), {f"own/{name}": float(value) for name, value in values.items()}))


Callback = Callable[["RunEvent", Run], object]
"""Called with each event of a run, and the run."""


def _answered(question: Coroutine[Any, Any, T]) -> T:
    """Ask something of a run's driver, whether or not this thread has an event loop that runs."""
    with ThreadPoolExecutor(1, "question") as thread:
        return thread.submit(asyncio.run, question).result()


def read_trajectories(folder: Path, step: int | None = None, kind: Literal["train", "evaluation"] | None = None) -> pa.Table:
    """Read the kept episodes in ``folder``; see :meth:`Run.trajectories`."""
    from asyncrl.episodes.reader import Choice, EpisodeReader
    from asyncrl.episodes.schema import Kind

    if kind is not None and kind not in [each.value for each in Kind]:
        raise RecipeError("kind", f"there are no episodes of kind {short(kind)}", f"give {' or '.join(Kind)}, or None for both")
    try:
        reader = EpisodeReader(folder)
    except RecipeError as error:
        raise NotThere(str(error)) from error
    return reader.table(Choice(kind=None if kind is None else Kind(kind), step=step))
