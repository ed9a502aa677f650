"""Run folders as a run leaves them, made without engines: a real buffer with its journal and payload, and real learner ranks that
trained its batches."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from learner_samples import make_episode
from rank_side import new_learner
from ranks import run_ranks

from asyncrl.buffers import commands
from asyncrl.buffers.journal.journal import Journal
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.payload_store import PayloadWriter
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.batch import Batch
from asyncrl.core.episode import Episode, encode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.trajectory import VersionSpan
from asyncrl.learners.checkpointing import checkpoints
from asyncrl.learners.rank import RankSpec
from asyncrl.learners.step_report import StepReport
from asyncrl.replay.rank_process import episodes_of
from asyncrl.run.buffer.tasks import make_task_stream
from asyncrl.run.folder.buffer_folder import BufferFolder, journal_of
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.folder.step_log import Launched, StepLog, StepRecord
from asyncrl.run.recipe.compose import compose
from asyncrl.weights.fingerprint import Fingerprints

Change = Callable[[int, Episode], Episode]
"""Makes another episode of the one that step ``n`` trains."""


def small_recipe(model: Path, parent: Path, *overrides: str) -> Recipe:
    small = [
        "batch.groups_per_step=2",
        "batch.group_size=4",
        "steps=6",
        "learner.lr=1e-3",
        "learner.micro_batch_tokens=128",
        "model.max_context=128",
    ]
    own = [f"model.path={model}", f"run_dir={parent}", "buffer.journal.keep=100", "checkpoint.every=2"]
    return compose("quickstart", [*small, *own, "learner.warmup_steps=0", *overrides])


def episode_of_step(step: int, group: int, sample: int) -> Episode:
    """One that version ``step - 1`` and the one before sampled; half of a group are rewarded."""
    versions = (max(0, step - 2), step - 1)
    return make_episode(group, sample, 5 + sample, 4 + (group + sample) % 5, versions, float(sample % 2), temperature=1.0)


def make_run(
    recipe: Recipe, change: Change = lambda step, episode: episode, killed: int | None = None, redo: Recipe | None = None
) -> RunFolder:
    """Make the folder of a run of ``recipe`` that has trained all its steps.

    Args:
        change: changes episodes before they are handed in.
        killed: the run was killed when this step had been trained, and was resumed from its newest checkpoint.
        redo: the recipe that it was resumed with.
    """
    folder = RunFolder.create(recipe)
    batches = _fill(recipe, folder, change)
    log = StepLog(folder.steps)
    begin, end = 0, killed or recipe.steps
    while begin < recipe.steps:
        log.append(Launched(begin, resolved_yaml(recipe)))
        layout = msgspec.to_builtins(recipe.learner.layout)
        trained = run_ranks(train, recipe, folder.path, batches[begin:end], begin, **layout)
        for step, reports in enumerate(zip(*trained, strict=True), begin + 1):
            published = end == recipe.steps or killed is not None
            of_ranks = [report for report, _ in reports]
            total = sum(part for _, part in reports) % 2**64
            log.append(StepRecord.of(step, of_ranks, total if published else None))
        if end == recipe.steps:
            break
        begin, end = max((v for v in checkpoints.versions(folder.checkpoints)), default=0), recipe.steps
        recipe = redo or recipe
    if redo is not None:
        folder.keep_recipe(redo)
    return folder


def _fill(recipe: Recipe, folder: RunFolder, change: Change) -> list[Batch]:
    """Play the buffer's part of all steps."""
    tasks = make_task_stream(recipe)
    buffer = ReplayBuffer(recipe.batch, recipe.buffer, tasks, steps=recipe.steps, seed=recipe.seed)
    identity = Identity.of(recipe, tasks).encoded()
    journal, _ = Journal.open(journal_of(folder.path), fsync=False, segment_bytes=1 << 20, identity=identity)
    lying = BufferFolder.of(recipe.buffer, folder.path, folder.run_id).shard(0)
    writer, batches = PayloadWriter(lying, 0, "w", segment_bytes=1 << 20, fsync=False), []

    def do(command):
        journal.append(commands.encode(command))
        return command.apply(buffer)

    do(commands.SetSteps(recipe.steps))
    for step in range(1, recipe.steps + 1):
        for ticket in do(commands.IssueTickets(WorkerId("w"), recipe.batch.groups_per_step, 0.0)):
            episodes = [change(step, episode_of_step(step, ticket.group_id, index)) for index in ticket.samples]
            versions_are_new = [_not_older(episode, ticket.version) for episode in episodes]
            refs = writer.append([encode(episode) for episode in versions_are_new])
            records = (EpisodeRecord.of(episode, ref) for episode, ref in zip(versions_are_new, refs, strict=True))
            do(commands.Commit(tuple(records), 0.0))
        batches.append(do(commands.Take(PolicyVersion(step - 1), recipe.batch.groups_per_step)))
        do(commands.Trained(PolicyVersion(step - 1)))
        do(commands.Advance(PolicyVersion(step)))
    journal.close()
    writer.close()
    return batches


def _not_older(episode: Episode, version: int) -> Episode:
    """The buffer refuses tokens that are older than the ticket."""

    def renewed(span: VersionSpan) -> VersionSpan:
        return span if span.version < 0 else msgspec.structs.replace(span, version=PolicyVersion(max(span.version, version)))

    parts = [
        msgspec.structs.replace(each, version_spans=tuple(map(renewed, each.version_spans))) for each in episode.trajectories
    ]
    return msgspec.structs.replace(episode, trajectories=tuple(parts))


def train(spec: RankSpec, recipe: Recipe, run: Path, batches: Sequence[Batch], begin: int) -> list[tuple[StepReport, int]]:
    """Train as a learner's rank does, with checkpoints; the reports, and the fingerprints of its part."""
    folder = RunFolder(run)
    learner = new_learner(spec, recipe, Path(recipe.model.path))
    if begin:
        learner.load_checkpoint(checkpoints.path_of(folder.checkpoints, PolicyVersion(begin)))
    done = []
    payload = {0: BufferFolder.of(recipe.buffer, run, folder.run_id).shard(0)}
    for batch in batches:
        report, proof = learner.step(batch, episodes_of(batch, learner.rows_needed(batch), payload)), Fingerprints()
        for shard in learner.shards():
            proof.add(shard)
        done.append((report, proof.total()))
        if learner.version % recipe.checkpoint.every == 0:
            folder.checkpoints.mkdir(exist_ok=True)
            learner.start_checkpoint(checkpoints.path_of(folder.checkpoints, learner.version))
            learner.finish_checkpoint()
    learner.close()
    return done
