"""A whole run around the real buffer service, journal and payload, to be killed, or to lose its disk, at any point: engines and
learner are made up.

What an engine generates is a pure function of task, episode and policy version; what the learner's weights are is a hash over all
payload it ever trained on, in order. Only time is left to chance.
"""

import asyncio
import errno
import json
import os
import random
import signal
import traceback
import zlib
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from made_buffers import recovered
from played_episodes import played

from asyncrl.buffers import service as service_module
from asyncrl.buffers import write_ahead
from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.payload_store import PayloadReader, PayloadStore, PayloadWriter
from asyncrl.buffers.service import BufferService
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.episode import decode, encode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import NOT_SAMPLED, PolicyVersion, TaskId, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling, StopReason, Turn, VersionSpan

WORKERS = 3
CHECKPOINT_EVERY = 5
TASKS = 97


class Kill(msgspec.Struct, frozen=True):
    """The process kills itself at the ``count``-th ``call`` on a file whose name ends with ``suffix``, or in its last ``step``.

    Attributes:
        moment: ``before`` the call, ``after`` it, or ``torn``: when half of the bytes are written. If the call is
            ``refused``, the disk fails from then on, and the process is not killed.
    """

    step: int
    call: str
    suffix: str
    count: int
    moment: str


class Checkpoint(msgspec.Struct):
    """The learner.

    Attributes:
        lineage: for each step, in order: version, and group and task of each of its rows.
    """

    version: int = 0
    weights: str = ""
    lineage: list[tuple[int, list[tuple[int, str]]]] = []


class Paths:
    """Files of one run."""

    def __init__(self, folder: Path):
        self.buffer = folder / "buffer"
        self.journal, self.payload = self.buffer / "journal", self.buffer / "shard-0"
        self.checkpoint, self.trained, self.acknowledged = folder / "checkpoint", folder / "trained", folder / "acknowledged"
        self.reports, self.statistics, self.error = folder / "reports", folder / "statistics", folder / "error"


# --- the world: pure functions


def stream():
    return TaskStream([TaskSource("only", [Task(id=TaskId(f"task-{n}"), prompt="?") for n in range(TASKS)])], seed=3)


def number(*what):
    return zlib.crc32(repr(what).encode())


def all_equal(task_id):
    """Whether all episodes of the task get the same reward, for which it is filtered."""
    return number("equal", task_id) % 5 == 0


def broken(task_id):
    """Whether the task breaks its environment whenever it is tried, for which it is filtered."""
    return number("broken", task_id) % 11 == 0


def breaks(task_id, index, attempt):
    """Whether the environment breaks this time. Some do the first time only."""
    return index == 1 and (broken(task_id) or (attempt == 0 and number("flaky", task_id) % 7 == 0))


def reward(task_id, index):
    """Different for the episodes of a group, so that no two of them are filtered for being equal."""
    return 1.0 if all_equal(task_id) else float((number(task_id) + index) % 3)


def episode(ticket, index, began, ended):
    """Half of its tokens sampled when it ``began`` and half when it ``ended``."""
    prompt, half = 2, 1 + number(ticket.task.id, index, began) % 120
    length = prompt + 2 * half
    sampled = (VersionSpan(prompt, prompt + half, began), VersionSpan(prompt + half, length, ended))
    mask = np.arange(length) >= prompt
    earned = reward(ticket.task.id, index)
    return played(
        task_id=ticket.task.id,
        group_id=ticket.group_id,
        sample_index=index,
        attempt=ticket.attempt,
        token_ids=np.arange(length, dtype=np.int32) * (1 + began),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        loss_mask=mask,
        version_spans=(VersionSpan(0, prompt, NOT_SAMPLED), *sampled),
        turns=(Turn(prompt, length, earned),),
        reward=earned,
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampling(1.0, 1.0, -1),
    )


def trained_on(weights, payloads):
    """The weights after a step."""
    digest = blake2b(weights.encode(), digest_size=12)
    for payload in payloads:
        digest.update(payload)
    return digest.hexdigest()


# --- the process


def log(path, *what):
    """One line, whole or not at all as far as a killed process goes."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(what).encode() + b"\n")
    os.close(file)


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Run:
    """One life of the run."""

    def __init__(self, recipe: Recipe, paths: Paths, dies_in_step: int):
        self.recipe, self.paths, self.dies_in_step = recipe, paths, dies_in_step
        self.chance = random.Random(os.urandom(8))
        self.checkpoint = Checkpoint()
        if paths.checkpoint.exists():
            self.checkpoint = msgspec.json.decode(paths.checkpoint.read_bytes(), type=Checkpoint)
        self.version = PolicyVersion(self.checkpoint.version)
        """What the engines sample with."""
        self.given_up = dict.fromkeys((WorkerId(f"worker-{n}") for n in range(WORKERS)), 0)
        """How often each worker was."""

    async def live(self):
        store = PayloadStore(self.paths.payload)
        taken = recovered(self.recipe, stream(), self.paths.journal, {0: store}, wait_s=20)
        taken.begin()
        log(self.paths.reports, str(taken.report), taken.report.lost_trajectories, taken.report.cut_bytes)
        groups, deadlines = self.recipe.batch.groups_per_step, self.recipe.deadlines
        self.service = BufferService(
            taken.buffer, taken.journal, groups_per_step=groups, deadlines=deadlines, free=store.free, sweep=taken.sweep
        )
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self.work(worker)) for worker in self.given_up]
            await self.learn()
            for worker in workers:
                worker.cancel()
        self.paths.statistics.write_bytes(msgspec.json.encode(await self.service.statistics()))
        await self.service.close()

    async def work(self, worker):
        writer = PayloadWriter(self.paths.payload, 0, worker, segment_bytes=15_000, fsync=False)
        async with asyncio.TaskGroup() as episodes:
            while True:
                for ticket in await self.service.lease(worker, self.version, 2):
                    for index in ticket.samples:
                        episodes.create_task(self.generate(worker, self.given_up[worker], ticket, index, writer))
                if self.chance.random() < 0.02:
                    self.given_up[worker] += 1
                    if self.chance.random() < 0.5:
                        await self.service.lost(worker)
                    else:
                        await self.service.hand_back(worker, "was told to end")

    async def generate(self, worker, given_up, ticket, index, writer):
        began = self.version
        await asyncio.sleep(self.chance.expovariate(1000))
        if breaks(ticket.task.id, index, ticket.attempt):
            if self.given_up[worker] == given_up:  # else it would be charged to whoever generates the episode by now
                await self.service.fail(ticket.group_id, index, FailureKind.DATA, "the environment broke")
            return
        finished = episode(ticket, index, began, self.version)
        (ref,) = await self.kept(worker, encode(finished), writer)
        await self.service.commit([EpisodeRecord.of(finished, ref)])
        if self.given_up[worker] == given_up:  # else it may have come too late
            log(self.paths.acknowledged, ticket.group_id, index)

    async def kept(self, worker, payload, writer):
        paused = False
        while True:
            try:
                refs = writer.append([payload])
                break
            except DiskFull as error:
                paused = True
                await self.service.report_pause(worker, str(error))
                await asyncio.sleep(0.01)
        if paused:
            await self.service.report_pause(worker, "")
        return refs

    async def learn(self):
        reader, checkpoint = PayloadReader(self.paths.payload), self.checkpoint
        for step, version in enumerate(range(checkpoint.version, self.recipe.steps)):
            batch = await self.service.take(version)
            payloads = reader.read([each.payload for each in batch.episodes])
            for each, finished in zip(batch.episodes, map(decode, payloads), strict=True):
                assert each.name == (finished.group_id, finished.sample_index)
                spans = finished.trajectories[0].version_spans
                assert any(span.version >= batch.oldest_version for span in spans), "a row without a token within the bound"
            await asyncio.sleep(self.chance.expovariate(2000))
            if step == self.dies_in_step:
                os.kill(os.getpid(), signal.SIGKILL)
            checkpoint.weights = trained_on(checkpoint.weights, payloads)
            checkpoint.lineage.append((version, [(each.group_id, each.task_id) for each in batch.episodes]))
            checkpoint.version = version + 1
            log(self.paths.trained, version, checkpoint.weights)
            await self.service.trained(version)
            self.version = PolicyVersion(version + 1)
            await self.service.advance(self.version)
            if self.version % CHECKPOINT_EVERY == 0 or self.version == self.recipe.steps:
                making = self.paths.checkpoint.with_suffix(".making")
                making.write_bytes(msgspec.json.encode(checkpoint))
                making.replace(self.paths.checkpoint)
                await self.service.checkpointed(self.version)


def main(recipe: Recipe, folder: Path, kill: Kill | None) -> None:
    """Begin the run, or go on with it; returns when it is complete."""
    paths = Paths(folder)
    write_ahead.SNAPSHOT_BYTES = 12_000
    service_module.LEASE_WAIT_S = 0.01  # workers ask again with the version they have by then
    if kill is not None:
        _die_at(kill)
    try:
        asyncio.run(Run(recipe, paths, kill.step if kill is not None else recipe.steps).live())
    except BaseException:
        paths.error.write_text(traceback.format_exc())
        raise


def _die_at(kill):
    real = getattr(os, kill.call)
    calls = 0

    def counted(target, *arguments):
        nonlocal calls
        name = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        if name.endswith(kill.suffix):
            calls += 1
            if calls == kill.count:
                if kill.moment == "refused":
                    for call in ("pwritev", "fdatasync", "fsync", "ftruncate", "replace", "unlink"):
                        setattr(os, call, refused)
                    refused(target)
                elif kill.moment == "torn":
                    whole = b"".join(arguments[0])
                    real(target, [whole[: max(1, len(whole) // 2)]], *arguments[1:])
                elif kill.moment == "after":
                    real(target, *arguments)
                os.kill(os.getpid(), signal.SIGKILL)
        return real(target, *arguments)

    setattr(os, kill.call, counted)


def refused(target, *_, **__):
    """What a disk that has failed answers to every call. Only calls that are given a path know a name."""
    raise OSError(errno.EIO, os.strerror(errno.EIO), *(() if isinstance(target, int) else (str(target),)))
