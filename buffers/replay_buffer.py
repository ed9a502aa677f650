"""The versioned replay buffer: tickets out, finished episodes in, staleness-bounded batches out.

A plain class without waits, clocks, threads or payload. When something is not possible yet, it says so, and the caller
decides how to wait. The same calls always lead to the same state, byte for byte. What always holds:

* every group, episode and draw of a task is in exactly one ledger state;
* groups that lost episodes are issued again first, and keep their finished episodes; then tasks of expired groups
  follow; then new tasks;
* no token older than the staleness bound enters a loss, and no group is handed out more than ``max_reuse`` times;
* a batch stays the same, however often it is asked for, until the learner has a newer checkpoint;
* payload is freed exactly once, when its group has ended and no kept batch holds it.
"""

import logging
from collections.abc import Sequence

import msgspec

from asyncrl.buffers.batches import Batches
from asyncrl.buffers.failures import NO_ANSWER_IN_TIME, NOTHING_SAMPLED, Failures, of_task
from asyncrl.buffers.filters import left_out_by
from asyncrl.buffers.group import Group
from asyncrl.buffers.groups import Groups
from asyncrl.buffers.limits import Limits
from asyncrl.buffers.ready import mean_absolute_advantage
from asyncrl.buffers.sampling import make_sampler
from asyncrl.buffers.staleness import Load, StalenessPolicy
from asyncrl.buffers.state import BufferState
from asyncrl.buffers.tasks.task_stream import TaskStream
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef, compared_rewards
from asyncrl.core.errors import FailureKind, LedgerError
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import PROMPT_TOO_LONG, BufferStatistics, GroupState
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.schema import BatchConfig
from asyncrl.core.ticket import Ticket
from asyncrl.core.trajectory import StopReason

EXPIRED_UNFINISHED = "over the staleness bound before it was finished"
NOTHING_TRAINED = "no trajectory of a role that is trained"


class ReplayBuffer:
    """Issues tickets, and takes in finished and failed episodes; :attr:`batches` hands out batches to train.

    Attributes:
        tasks: the stream that tasks are drawn from.
        groups: the groups that have not ended, and their payload.
        batches: the batches that were handed out, and the choice of the next one.
        remarks: level and text of what the log shall say of the last changes; whoever makes a change takes them.

    Args:
        tasks: the stream that tasks are drawn from; owned by the buffer from now on.
        steps: training steps of the run; no more groups are issued than these can train.
        seed: seed of the sampler's randomness.
    """

    def __init__(self, batch: BatchConfig, limits: BufferConfig, tasks: TaskStream, *, steps: int, seed: int) -> None:
        self._batch, self._limits, self.tasks, self._seed = batch, limits, tasks, seed
        self._policy = StalenessPolicy(limits, batch)
        self._sampler = make_sampler(limits, {source.name: source.weight for source in tasks.sources})
        self._fingerprint, self.first_depth = tasks.fingerprint(), limits.first_depth  # a resumed run began with its own
        self.remarks: list[tuple[int, str]] = []
        self._adopt(BufferState(steps, Limits.of(limits)))

    def _adopt(self, state: BufferState) -> None:
        self._state, max_reuse = state, self._limits.max_reuse
        self.groups = Groups(state, self._policy, size=self._batch.group_size, max_reuse=max_reuse)
        self._ledger, self._index, self._failures = self.groups.ledger, self.groups.index, Failures(state)
        self.batches = Batches(self._batch, state, self.groups, self._policy, self._sampler, max_reuse=max_reuse, seed=self._seed)

    @property
    def version(self) -> PolicyVersion:
        """The published version."""
        return self._state.version

    @property
    def steps(self) -> int:
        """Training steps of the whole run."""
        return self._state.steps

    def plan(self, steps: int) -> None:
        """Set the training steps of the whole run."""
        self._state.steps = steps

    @property
    def limits(self) -> Limits:
        """The limits that hold now."""
        return self._state.limits

    def limit(self, limits: Limits) -> None:
        """Change the limits for what happens from now on."""
        self._state.limits = limits

    @property
    def depth(self) -> int:
        """The pipeline depth: training steps of groups that may be outstanding ahead of the learner."""
        return self.first_depth if self._state.depth is None else self._state.depth

    def pace(self, depth: int) -> None:
        """Change the pipeline depth. Groups that were already issued stay.

        Raises:
            LedgerError: tokens could get over the recipe's staleness bound.
        """
        if not 0 <= depth <= self._limits.max_staleness:
            raise LedgerError(f"pipeline depth {depth} is not between 0 and buffer.max_staleness {self._limits.max_staleness}")
        self._state.depth = depth

    # Tickets

    def room(self) -> int:
        """Return the number of groups that may be issued now; see :meth:`StalenessPolicy.room`."""
        groups, state = self._ledger.groups, self._state
        return self._policy.room(
            Load(
                depth=self.depth,
                waiting=groups[GroupState.RUNNING] + groups[GroupState.COMMITTED],
                failed=groups[GroupState.FAILED],
                unpublished_batches=sum(state.unpublished_batches.values()),
                returning=self._index.returning,
                supply=self._index.supply,
                wanted=state.steps * self._batch.groups_per_step - state.trainings,
                payload_bytes=state.payload_bytes,
            )
        )

    def lease(self, worker: WorkerId, limit: int, now: float) -> list[Ticket]:
        """Issue up to ``limit`` tickets while there is room: failed groups first, then tasks of expired groups, then new tasks.

        Args:
            worker: the worker that will generate the episodes.
            limit: most groups to issue.
            now: seconds since the epoch; only ages are computed from it.
        """
        self._state.now = now
        room = range(min(limit, self.room()))
        return [(self.groups.issue_again(worker) or self.groups.issue(worker, self.tasks)).ticket() for _ in room]

    def unwanted(self, worker: WorkerId, running: Sequence[GroupId]) -> list[GroupId]:
        """Return those of a worker's ``running`` groups that the buffer no longer expects from this worker."""
        held = self._index.held_by(worker)
        return [group_id for group_id in running if group_id not in held]

    # Finished and failed episodes

    def commit(self, records: Sequence[EpisodeRecord], now: float) -> None:
        """Take in finished episodes. Those that the buffer no longer expects are counted, and their payload is freed.

        Raises:
            LedgerError: a group was never issued or has no such episode, or an episode has tokens older than its ticket.
            BudgetExceeded: too many groups failed because the policy sampled nothing in their episodes.
        """
        self._state.now = now
        empty = [record for record in records if not self._take_in(record)]
        for record in empty:
            # An episode that timed out before the first answer may have waited for a slow engine: not the task's fault.
            late = record.stop_reason is StopReason.EPISODE_TIMEOUT
            kind, reason = (FailureKind.INFRASTRUCTURE, NO_ANSWER_IN_TIME) if late else (FailureKind.DATA, NOTHING_SAMPLED)
            self.fail(record.group_id, record.sample_index, kind, reason)

    def _take_in(self, record: EpisodeRecord) -> bool:
        """Take in one episode; False if the policy sampled nothing in it."""
        index = record.sample_index
        group = self.groups.get(record.group_id)
        if group is None or index not in group.open:
            self._take_in_late(record, group)
            return True
        if not record.sampled:
            self.groups.freed.append(record.payload)
            return False
        oldest = record.sampled[0][0]
        if oldest < group.version:
            if group.leases == 1:
                raise LedgerError(
                    f"sample {index} of group {group.id} has tokens of version {oldest}, but was leased at {group.version}; "
                    f"{group.worker} must not lease while its engine is behind the published version"
                )
            self._take_in_late(record, group)  # it comes late, from a worker that was given up
            return True
        self.groups.finish_episode(group, record)
        self._state.observed.lengths_issued.add(record.length)
        if not group.open:
            self._settle(group)
        return True

    def _take_in_late(self, record: EpisodeRecord, group: Group | None) -> None:
        if not 0 <= record.group_id < self._ledger.groups.issued or not 0 <= record.sample_index < self._batch.group_size:
            raise LedgerError(
                f"sample {record.sample_index} of group {record.group_id} was handed in; {self._ledger.groups.issued} groups of "
                f"{self._batch.group_size} were issued"
            )
        observed = self._state.observed
        observed.late_samples += 1
        held = group.records.get(record.sample_index) if group is not None else None
        if held is None:
            observed.lengths_issued.add(record.length)
        if held is None or held.payload != record.payload:
            self.groups.freed.append(record.payload)

    def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str, incident: str = "") -> None:
        """Take back a failed episode. Nothing happens if the buffer no longer expects it.

        Args:
            incident: names the event that it failed by, such as the loss of a server. It counts once for all episodes that
                were running when it was first reported; if it takes one that was leased later, it has happened again, whatever
                its name.

        Raises:
            LedgerError: the group was never issued.
            BudgetExceeded: there were more than ``max_failures`` failures of this kind.
        """
        if not 0 <= group_id < self._ledger.groups.issued:
            raise LedgerError(f"group {group_id} was never issued, so its sample {sample_index} cannot fail")
        group = self.groups.get(group_id)
        if group is None or sample_index not in group.open:
            return
        first = kind not in group.broken_by
        self._give_back(group, [sample_index], kind, reason)
        if first and self._failures.counts(incident, group):
            self._failures.spend(kind, of_task(group.task, reason))

    def leave_out(self, group_id: GroupId, reason: str) -> None:
        """End a group whose task's prompt is too long, if it still runs. The task is not drawn again, and it is no failure.

        Raises:
            LedgerError: the group was never issued.
        """
        if not 0 <= group_id < self._ledger.groups.issued:
            raise LedgerError(f"group {group_id} was never issued, so its task cannot be left out")
        group = self.groups.get(group_id)
        if group is None or group.state is not GroupState.RUNNING:
            return
        self.remarks.append((logging.INFO, f"left out: {reason}"))
        self.tasks.leave_out(group.source, group.task_index)
        self._state.observed.too_long_tasks.append(group.task.id)
        self.groups.end(group, GroupState.FILTERED, PROMPT_TOO_LONG, reason)

    def lost(self, worker: WorkerId) -> None:
        """Take back all episodes of a worker that was given up. Nothing happens if it had none.

        Raises:
            BudgetExceeded: there were more than ``max_failures`` failures of kind infrastructure.
        """
        if self._give_all_back(worker, f"{worker} is gone"):
            self._failures.spend(FailureKind.INFRASTRUCTURE, f"{worker} is gone")

    def hand_back(self, worker: WorkerId, why: str) -> None:
        """Take back all episodes of a worker for a reason that is no failure of its own: nothing is counted.

        Args:
            why: the reason, as what follows the worker's name.
        """
        self._give_all_back(worker, f"{worker} {why}")

    def restart(self) -> None:
        """Take back the episodes of all workers after the whole run ended, and count failures from 0 again."""
        for worker in self._index.workers():
            self._give_all_back(worker, "the run was resumed")
        self._failures.begin_again()

    def _give_all_back(self, worker: WorkerId, reason: str) -> int:
        held = sorted(self._index.held_by(worker))
        for group_id in held:
            group = self.groups[group_id]
            self._give_back(group, list(group.open), FailureKind.INFRASTRUCTURE, reason)
        return len(held)

    def _give_back(self, group: Group, indexes: list[int], kind: FailureKind, reason: str) -> None:
        for index in indexes:
            group.open.remove(index)
        self._ledger.given_back(len(indexes))
        if kind not in group.broken_by:
            group.broken_by.append(kind)
        if not group.open:
            self._settle(group, of_task(group.task, reason))

    def _settle(self, group: Group, last_failure: str = "") -> None:
        """Decide what happens to a group when none of its episodes is being generated any more."""
        if group.has_enough(self._batch.min_group):
            self._complete(group)
            return
        if FailureKind.DATA not in group.broken_by:
            self._wait_for_missing(group, FailureKind.INFRASTRUCTURE.description, last_failure)
            return
        group.attempt += 1
        if group.attempt < self.limits.max_attempts:
            self._wait_for_missing(group, FailureKind.DATA.description, last_failure)
            return
        self.remarks.append((logging.WARNING, f"filtered after {group.attempt} attempts: {last_failure}"))
        self._state.observed.filtered_tasks.append(group.task.id)
        self.groups.end(group, GroupState.FILTERED, FailureKind.DATA.description, last_failure)

    def _wait_for_missing(self, group: Group, why: str, example: str) -> None:
        birth = group.oldest_finished() if group.records else group.birth
        self.groups.move(group, GroupState.FAILED, why, example, birth=birth)

    def _complete(self, group: Group) -> None:
        records = list(group.records.values())
        rewards = [record.reward for record in records]
        by_role = [list(column.values()) for column in compared_rewards(records).values()]
        named = zip(*[record.rewards for record in records], strict=True)  # those that the recipe names one by one
        why = left_out_by(self.limits.filters, rewards, [*by_role, *named]) if by_role else NOTHING_TRAINED
        self._state.filtered_in_a_row = self._state.filtered_in_a_row + 1 if why else 0
        if why:
            self.groups.end(group, GroupState.FILTERED, why)
        else:
            group.oldest_sampled = min([record.sampled[0][0] for record in records])
            group.newest_sampled = max([newest for record in records if (newest := record.newest_trained()) is not None])
            group.advantage = sum(map(mean_absolute_advantage, by_role)) / len(by_role)
            self.groups.move(group, GroupState.COMMITTED, birth=group.oldest_sampled)
        self.tasks.observe(group.source, rewards)

    # Published version

    def advance(self, version: PolicyVersion) -> None:
        """Make ``version`` the published version. Nothing happens if it already is or was.

        Raises:
            LedgerError: the published version would grow by more than one.
        """
        state = self._state
        if version > state.version + 1:
            raise LedgerError(f"the published version is {state.version} and cannot become {version}; it grows by one")
        if version <= state.version:
            return
        state.version = version
        for passed in [taken for taken in state.unpublished_batches if taken < version]:
            del state.unpublished_batches[passed]
        expired_unfinished_below = self._policy.expired_unfinished_below(version)
        if expired_unfinished_below is not None:
            for group_id in self._index.unfinished.below(expired_unfinished_below):
                group = self.groups[group_id]
                state.observed.stale_tokens.dropped += group.sampled_tokens()
                self.groups.end(group, GroupState.EXPIRED, EXPIRED_UNFINISHED)

    # Payload

    def drain_freed(self) -> list[PayloadRef]:
        """Return the payload that is no longer needed since the last call."""
        freed, self.groups.freed = self.groups.freed, []
        return freed

    # Inspection

    def statistics(self) -> BufferStatistics:
        """Return what the buffer holds, and what became of everything that it issued."""
        state, observed = self._state, self._state.observed
        return BufferStatistics(
            version=state.version,
            ledger=self._ledger.counts(),
            payload_bytes=state.payload_bytes,
            kept_batches=len(state.kept),
            kept_bytes=state.kept_bytes,
            held=state.held.listed(),
            lengths_issued=tuple(observed.lengths_issued.counts),
            lengths_trained=tuple(observed.lengths_trained.counts),
            late_samples=observed.late_samples,
            stale_tokens=msgspec.structs.replace(observed.stale_tokens),
            lost_trajectories=observed.lost_trajectories,
            failures=dict(state.failures),
            filtered_tasks=tuple(observed.filtered_tasks),
            skipped_rows=dict(self.tasks.skipped),
            too_long=dict(self.tasks.too_long),
            too_long_tasks=tuple(observed.too_long_tasks),
            source_shares=dict(self.tasks.shares),
            kept_from=state.forgotten,
            depth=self.depth,
            filtered_in_a_row=state.filtered_in_a_row,
            steps_trained=max([state.forgotten, *(version + 1 for version, kept in state.kept.items() if kept.trained)]),
        )

    # Snapshots

    def snapshot(self) -> bytes:
        """Encode the whole state, except freed payload that :meth:`drain_freed` did not return: the sweep frees it."""
        state = msgspec.structs.replace(
            self._state,
            waiting_draws=list(self.groups.waiting_draws),
            tasks=self.tasks.state(),
            fingerprint=self._fingerprint,
        )
        return _encoder.encode(state)

    def restore(self, data: bytes) -> None:
        """Restore the state that :meth:`snapshot` encoded into this buffer, which must be new.

        Raises:
            LedgerError: the tasks are not those of the snapshot.
            msgspec.DecodeError: ``data`` is not a snapshot.
        """
        state = _decoder.decode(data)
        if state.fingerprint != self._fingerprint:
            raise LedgerError("the tasks or the seed are not those the run was started with; put them back, or start a new run")
        self.tasks.restore(state.tasks)
        self._adopt(state)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BufferState)
