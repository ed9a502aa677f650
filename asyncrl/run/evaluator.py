"""Evaluates on held-out tasks, on the generators, beside training."""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.task import Task
from asyncrl.episodes.files import forget_evaluation
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.generator_pool import GeneratorPool
from asyncrl.run.recorder import Recorder


class Evaluator:
    """Runs evaluations, passes the results to the recorder, and has the checkpointer save the changed totals.

    Args:
        trajectories: folder where generators write the episodes of an evaluation.
    """

    def __init__(
        self,
        generators: GeneratorPool,
        tasks: Sequence[Task],
        temperature: float,
        recorder: Recorder,
        checkpointer: Checkpointer,
        trajectories: Path,
    ) -> None:
        self._generators, self._tasks, self._temperature = generators, tasks, temperature
        self._trajectories = trajectories
        self._recorder, self._checkpointer = recorder, checkpointer

    async def evaluate(self, version: PolicyVersion) -> None:
        """Evaluate on all held-out tasks. While training goes on, episodes may also use the next version or two."""
        forget_evaluation(self._trajectories, version)  # of its first time, if the run was resumed
        self._recorder.evaluation(version, await self._generators.evaluate(self._tasks, self._temperature, version))
        self._checkpointer.note()
