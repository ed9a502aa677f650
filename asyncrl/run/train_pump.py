"""The training pump: take a batch, train, publish, again. Generation goes on beside it and never waits for it.

A publication travels to the engines while the learner already takes and trains the next batch; there is never more than one on
the way, so the learner is at most one version ahead of the clock.

A resumed run begins at its learner's newest checkpoint, which may be behind the clock. The buffer then hands out the very
batches that were trained from there, and training them again makes the very weights again (unless its learning rate decays and it
was made longer); nothing is published until the clock is reached.
"""

import asyncio
import time

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.checkpointer import Checkpointer
from asyncrl.run.cluster import Cluster
from asyncrl.run.evaluator import Evaluator
from asyncrl.run.publisher import Publisher, PublishTimes
from asyncrl.run.recorder import Recorder


async def train_pump(
    recipe: Recipe,
    begin: PolicyVersion,
    cluster: Cluster,
    publisher: Publisher,
    evaluator: Evaluator,
    checkpointer: Checkpointer,
    recorder: Recorder,
) -> None:
    """Run the optimizer steps from version ``begin`` to ``recipe.steps``; returns when the last version is delivered."""
    async with asyncio.TaskGroup() as background:
        delivering: asyncio.Task[PublishTimes] | None = None
        evaluating: asyncio.Task[float] | None = None
        for step in range(begin + 1, recipe.steps + 1):
            version = PolicyVersion(step)
            await checkpointer.room()
            batch = await cluster.take(PolicyVersion(version - 1))
            started = time.monotonic()
            reports = await cluster.train(batch)
            busy = time.monotonic() - started
            await cluster.mark_trained(batch.version)
            await checkpointer.finish()  # the one begun a step ago, which was written while this step trained
            readings = [reading for report in reports for reading in report.readings]
            publish_times = await delivering if delivering is not None else None
            write_seconds = 0.0
            if version >= publisher.published_version:
                values = {reading.metric.name: reading.value for reading in readings}
                moved = values["learner/grad_norm"] > 0 and values["learner/lr"] > 0
                publication, write_seconds = await publisher.write(version, must_differ=moved)
                delivering = background.create_task(publisher.deliver(publication, write_seconds))
            await recorder.step(step, batch, readings, busy + write_seconds, publish_times)
            await checkpointer.begin(version)
            due = step % recipe.evaluation.every == 0 and step < recipe.steps and (evaluating is None or evaluating.done())
            if due and delivering is not None:
                evaluating = background.create_task(_evaluate_delivered(delivering, evaluator, version))
        if delivering is not None:
            await delivering
        await checkpointer.finish()


async def _evaluate_delivered(delivering: "asyncio.Task[PublishTimes]", evaluator: Evaluator, version: PolicyVersion) -> float:
    """Evaluate ``version`` once every engine has it."""
    await delivering
    return await evaluator.evaluate(version)
