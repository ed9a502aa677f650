"""Decides which kept episodes become traces: a sample of every evaluation, and of training steps as time allows.

To store a trace takes MLflow about 10 ms of the processor, which a short training step would feel. What always holds: traces of
training steps take at most ``SHARE`` of the time; those of steps in between are passed over, and stay in their files.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path

from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import NoTrajectoriesConfig, SampledTrajectoriesConfig
from asyncrl.episodes.files import evaluation_files, training_file

logger = logging.getLogger(__name__)

SHARE = 0.005
"""The most of the time that the traces of training steps may take."""
_WAITING = 4
"""Training steps whose files are looked for: a rank writes them a little later than it reports the step."""


class PacedTraces:
    """Traces of one run. Its methods are called in one thread.

    Args:
        recipe: says how many episodes are sampled, and in how many files those of a training step are.
        folder: where the files are.
        stores: each, by its name, logs up to so many trajectories of a file.
        write: given the name of a store and a call of it, makes that call until the disk has room for what it writes.
        clock, busy: seconds that have passed, and seconds of the processor that this thread has taken.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        stores: Mapping[str, Callable[[Path, int], None]],
        write: Callable[[str, Callable[[], None]], None],
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        keep, self._slices = recipe.tracking.trajectories, recipe.learner.layout.data
        self._most = keep.count if isinstance(keep, SampledTrajectoriesConfig) else SampledTrajectoriesConfig().count
        self._nothing = isinstance(keep, NoTrajectoriesConfig)
        self._folder, self._stores, self._write, self._clock, self._busy = folder, dict(stores), write, clock, busy
        self._steps: deque[int] = deque(maxlen=_WAITING)
        self._next = -float("inf")

    def trained(self, step: int) -> None:
        """A training step is over. Log it, or one shortly before it, if its files are there and it is time."""
        self._steps.append(step)
        if self._clock() >= self._next:
            self._log_newest_step(completed=False)

    def evaluated(self, version: int) -> None:
        """The evaluation of ``version`` is over: log a sample of it."""
        self._log(evaluation_files(self._folder, version))

    def completed(self) -> None:
        """The run has completed: log its last training step, unless that has been done."""
        self._log_newest_step(completed=True)

    def _log_newest_step(self, *, completed: bool) -> None:
        newest = self._steps[-1] if self._steps else None
        for step in reversed(self._steps):
            files = [file for number in range(self._slices) if (file := training_file(self._folder, step, number)).is_file()]
            # A slice of which no episode is kept writes no file: what is missing once a newer step is over is not waited for.
            if len(files) == self._slices or (files and (completed or step != newest)):
                began = self._busy()
                self._log(files)
                self._next = self._clock() + (self._busy() - began) / SHARE
                while self._steps and self._steps[0] <= step:
                    self._steps.popleft()
                return

    def _log(self, files: Sequence[Path]) -> None:
        """Log an equal part of the sample from each file. A store that takes no traces is not asked again."""
        if self._nothing:
            return
        for file in files:
            for name, log in list(self._stores.items()):
                try:
                    self._write(name, partial(log, file, ceil(self._most / len(files))))
                except Exception:  # metrics go on without traces, whatever a store raises
                    logger.exception("%s has no traces from here on; the episodes are still kept in %s", name, self._folder)
                    del self._stores[name]
