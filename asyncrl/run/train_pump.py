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
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.evaluator import Evaluator
from asyncrl.run.publisher import Publisher
from asyncrl.run.recorder import Recorder
from asyncrl.run.weight_probe import Probe
from learners.step_report import StepReport


class Ranks(Protocol):
    """The learner's ranks, as far as a training step needs them; see :class:`asyncrl.run.cluster.Cluster`."""

    async def train(self, batch: Batch) -> list[StepReport]:
        """Train ``batch`` on all ranks, within a deadline, and return the report of each."""
        ...


async def train_pump(
    begin: PolicyVersion,
    steps: int,
    evaluate_every: int,
    buffer: BufferApi,
    ranks: Ranks,
    publisher: Publisher,
    evaluator: Evaluator,
    checkpointer: Checkpointer,
    recorder: Recorder,
    probe: Probe,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run the training steps from version ``begin`` to ``steps``; returns when the last version is delivered.

    Args:
        begin: the version that the learner is at.
        steps: training steps of the whole run.
        evaluate_every: training steps between evaluations.
        clock: returns seconds; measures what the learner spends its time on.
    """
    async with asyncio.TaskGroup() as background:
        delivering: asyncio.Task[float] | None = None
        evaluating: asyncio.Task[None] | None = None
        checkpointing = 0.0
        for step in range(begin + 1, steps + 1):
            version = PolicyVersion(step)
            await checkpointer.room()
            asked = clock()
            batch = await buffer.take(PolicyVersion(version - 1))
            taken = clock()
            reports = await ranks.train(batch)
            done = clock()
            await buffer.trained(batch.version)
            noted = clock()
            await checkpointer.finish()  # the one begun a step ago, which was written while this step trained
            ready = clock()
            checkpointing += ready - noted
            delivery_s = await delivering if delivering is not None else None
            delivered = clock()
            writing = 0.0
            if version >= publisher.published_version:
                moved = any(report.weights_moved for report in reports)
                publication, writing = await publisher.write(version, must_differ=moved)
                delivering = background.create_task(publisher.deliver(publication))
                if probe.due():
                    background.create_task(probe.compare(delivering))  # asks the ranks before they train the next batch
            readings = [*(reading for report in reports for reading in report.readings), *probe.readings()]
            spent = LearnerTime(
                waiting=taken - asked,
                training=done - taken,
                delivering=delivered - ready,
                writing=writing,
                checkpointing=checkpointing,
            )
            spent = sum((report.time for report in reports), spent)
            await recorder.step(step, batch, readings, spent, delivery_s)
            recorded = clock()
            await checkpointer.begin(version)
            checkpointing = clock() - recorded  # recording has ended the step, so this belongs to the next one
            if step % evaluate_every == 0 and step < steps and delivering is not None:
                if evaluating is None or evaluating.done():
                    evaluating = background.create_task(_evaluate_delivered(delivering, evaluator, version))
                else:
                    evaluator.skip(version)
        if delivering is not None:
            await delivering
        await checkpointer.finish()


async def _evaluate_delivered(delivering: "asyncio.Task[float]", evaluator: Evaluator, version: PolicyVersion) -> None:
    """Evaluate ``version`` once every engine has it."""
    await delivering
    await evaluator.evaluate(version)
