"""The training pump: takes a batch, trains it, publishes the new version, and begins again, while generation goes on.

A publication travels to the engines while the learner already takes and trains the next batch. Only one is on the way at a time,
so the learner is at most one version ahead of the published one.

A resumed run begins at its learner's newest checkpoint, which may be behind the published version. The buffer then hands out the
same batches again, and training them gives the same weights (unless the learning rate decays and the run was made longer);
nothing is published until the published version is reached.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from asyncrl.core.batch import Batch
from asyncrl.core.buffer_api import BufferApi
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.time_split import LearnerTime
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.step_report import StepReport
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.early_end import EarlyEnd
from asyncrl.run.evaluator import Evaluator
from asyncrl.run.folder.step_log import StepLog, StepRecord
from asyncrl.run.measures.step_readings import TrainedStep
from asyncrl.run.publisher import Publisher
from asyncrl.run.recorder import Recorder
from asyncrl.run.tuning.tuner import Tuner
from asyncrl.run.weight_probe import Probe


class Ranks(Protocol):
    """The learner's ranks, as far as a training step needs them; see :class:`asyncrl.run.cluster.Cluster`."""

    async def train(self, batch: Batch) -> list[StepReport]:
        """Train ``batch`` on all ranks, within a deadline, and return the report of each."""
        ...


class Learning:
    """Does the learner's side of one training step after the other: take, train, and write the new version.

    Attributes:
        delivering: the delivery of the newest publication; it returns the seconds that it took.

    Args:
        log: gets a line about each step.
        clock: returns seconds; measures what the learner spends its time on.
    """

    def __init__(
        self,
        buffer: BufferApi,
        ranks: Ranks,
        publisher: Publisher,
        checkpointer: Checkpointer,
        probe: Probe,
        log: StepLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._buffer, self._ranks, self._publisher, self._checkpointer = buffer, ranks, publisher, checkpointer
        self._probe, self._log, self._clock = probe, log, clock
        self._checkpointing = 0.0
        self.delivering: asyncio.Task[float] | None = None

    async def step(self, version: PolicyVersion, background: asyncio.TaskGroup) -> TrainedStep:
        """Train the step that makes ``version``, and begin to deliver it in ``background``."""
        clock, publisher = self._clock, self._publisher
        await self._checkpointer.room()
        asked = clock()
        batch = await self._buffer.take(PolicyVersion(version - 1))
        taken = clock()
        reports = await self._ranks.train(batch)
        done = clock()
        await self._buffer.trained(batch.version)
        noted = clock()
        await self._checkpointer.finish()  # the one begun a step ago, which was written while this step trained
        ready = clock()
        delivery_s = await self.delivering if self.delivering is not None else None
        delivered = clock()
        writing, fingerprint = 0.0, None
        if version >= publisher.published_version:
            moved = any(report.weights_moved for report in reports)
            publication, writing = await publisher.write(version, must_differ=moved)
            fingerprint = publication.fingerprint
            self.delivering = background.create_task(publisher.deliver(publication))
            if self._probe.due():
                # It asks the ranks before they train the next batch.
                background.create_task(self._probe.compare(self.delivering))
        self._log.append(StepRecord.of(version, reports, fingerprint))
        spent = LearnerTime(
            waiting=taken - asked,
            training=done - taken,
            delivering=delivered - ready,
            writing=writing,
            checkpointing=self._checkpointing + ready - noted,
        )
        spent = sum((report.time for report in reports), spent)
        readings = [*(reading for report in reports for reading in report.readings), *self._probe.readings()]
        return TrainedStep(batch, readings, spent, delivery_s)

    async def checkpoint(self, version: PolicyVersion, *, last: bool = False) -> None:
        """Begin the checkpoint of ``version`` if one is due. Recording has ended its step: the time belongs to the next one."""
        recorded = self._clock()
        await self._checkpointer.begin(version, last=last)
        self._checkpointing = self._clock() - recorded

    async def finish(self) -> None:
        """Wait until the last version is delivered and the last checkpoint is written."""
        if self.delivering is not None:
            await self.delivering
        await self._checkpointer.finish()


async def train_pump(
    begin: PolicyVersion,
    recipe: Recipe,
    learning: Learning,
    evaluator: Evaluator,
    recorder: Recorder,
    early: EarlyEnd,
    tuner: Tuner | None = None,
) -> PolicyVersion:
    """Run the training steps from version ``begin`` to the recipe's last; returns when the last version is delivered.

    Args:
        begin: the version that the learner is at.
        early: if it has a reason, the step under way is the last.
        tuner: looks at each step, where the recipe has it turn sizes.

    Returns:
        The last version.
    """
    version = begin
    async with asyncio.TaskGroup() as background:
        evaluating: asyncio.Task[None] | None = None
        for step in range(begin + 1, recipe.steps + 1):
            version = PolicyVersion(step)
            recorded = await recorder.step(step, await learning.step(version, background))
            if tuner is not None:
                await tuner.step(recorded)
            ending = early.reason is not None
            await learning.checkpoint(version, last=ending)
            if ending:
                break
            if step % recipe.evaluation.every == 0 and step < recipe.steps and learning.delivering is not None:
                if evaluating is None or evaluating.done():
                    evaluating = background.create_task(_evaluate_delivered(learning.delivering, evaluator, version))
                else:
                    evaluator.skip(version)
        await learning.finish()
    return version


async def _evaluate_delivered(delivering: "asyncio.Task[float]", evaluator: Evaluator, version: PolicyVersion) -> None:
    """Evaluate ``version`` once every engine has it."""
    await delivering
    await evaluator.evaluate(version)
