"""Evaluation on held-out tasks, on the generators, beside training."""

from collections.abc import Sequence
from typing import Protocol

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.task import Task
from asyncrl.run.generator_pool import GeneratorPool
from generators.evaluation import EvaluationResult


class EvaluationRecording(Protocol):
    """Takes in the results; see :class:`asyncrl.run.recorder.Recorder`."""

    def evaluation(self, version: PolicyVersion, results: Sequence[EvaluationResult]) -> None:
        """Record one evaluation."""
        ...


class TotalsNoting(Protocol):
    """Keeps the totals that a resume does not measure again; see :class:`asyncrl.run.checkpointer.Checkpointer`."""

    def note(self) -> None:
        """Add them to the newest saved totals."""
        ...


class Evaluator:
    """Runs evaluations and hands their results to the recorder.

    Args:
        temperature: at which tokens are sampled; 0 is greedy.
        checkpointer: keeps the totals that an evaluation changes.
    """

    def __init__(
        self,
        generators: GeneratorPool,
        tasks: Sequence[Task],
        temperature: float,
        recorder: EvaluationRecording,
        checkpointer: TotalsNoting,
    ) -> None:
        self._generators, self._tasks, self._temperature = generators, tasks, temperature
        self._recorder, self._checkpointer = recorder, checkpointer

    async def evaluate(self, version: PolicyVersion) -> None:
        """Evaluate on all held-out tasks. While training goes on, episodes may span a version or two more."""
        self._recorder.evaluation(version, await self._generators.evaluate(self._tasks, self._temperature))
        self._checkpointer.note()
