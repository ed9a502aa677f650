"""Evaluates on held-out tasks, on the generators, beside training."""

from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.ids import PolicyVersion
from asyncrl.episodes.files import forget_evaluation
from asyncrl.generators.evaluation import HeldOutTask, require_results
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.nodes.remote_files import FarFiles
from asyncrl.run.pool.generator_pool import GeneratorPool
from asyncrl.run.recorder import Recorder


class Evaluator:
    """Runs evaluations, passes the results to the recorder, and has the checkpointer save the changed totals.

    Args:
        pinned: whether all episodes of an evaluation are to be of one policy version.
        trajectories: folder where generators write the episodes of an evaluation.
        far_files: bring them from generators on nodes that do not see that folder.
    """

    def __init__(
        self,
        generators: GeneratorPool,
        tasks: Sequence[HeldOutTask],
        pinned: bool,
        recorder: Recorder,
        checkpointer: Checkpointer,
        trajectories: Path,
        far_files: FarFiles,
    ) -> None:
        self._generators, self._tasks, self._pinned = generators, tasks, pinned
        self._members = {each.task.id: each.task.environment for each in tasks}
        self._trajectories, self._far_files = trajectories, far_files
        self._recorder, self._checkpointer = recorder, checkpointer

    async def evaluate(self, version: PolicyVersion) -> None:
        """Evaluate on all held-out tasks. While training goes on, episodes may also use the next version or two, unless the
        evaluation is pinned. If nobody can play until later versions are published, the evaluation stands for such a one.

        Raises:
            EnvironmentBroken: every task broke its environment.
        """
        forget_evaluation(self._trajectories, version)  # of its first time, if the run was resumed
        played = await self._generators.evaluate(self._tasks, version, pinned=self._pinned)
        await self._far_files.bring()
        if played.version != version:
            forget_evaluation(self._trajectories, version)  # of generators that died before they could answer
            self._recorder.skip_evaluation(version)
        self._recorder.evaluation(played.version, require_results(played.episodes), self._members)
        self._checkpointer.note()

    def skip(self, version: PolicyVersion) -> None:
        """Leave out the evaluation of ``version``, which is due while the one before it is still being played."""
        self._recorder.skip_evaluation(version)
