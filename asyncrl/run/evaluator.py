"""Evaluation on held-out tasks, on the generators, beside training."""

from collections.abc import Sequence

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.cluster import Cluster
from asyncrl.run.recorder import Recorder


class Evaluator:
    """Runs evaluations and hands their results to the recorder."""

    def __init__(
        self, recipe: Recipe, cluster: Cluster, tasks: Sequence[Task], recorder: Recorder, checkpointer: Checkpointer
    ) -> None:
        self._recipe, self._cluster, self._tasks, self._recorder = recipe, cluster, tasks, recorder
        self._checkpointer = checkpointer

    async def evaluate(self, version: PolicyVersion) -> float:
        """Mean reward over all held-out tasks. While training goes on, episodes may span a version or two more."""
        results = await self._cluster.evaluate(self._tasks, self._recipe.evaluation.temperature)
        reward = await self._recorder.evaluation(version, results)
        self._checkpointer.note()
        return reward
