"""The versioned replay buffer: tickets out, finished episodes in, staleness-bounded batches out.

A plain class without waits, clocks, threads or payload: callers are told "not yet" and decide how to wait, and the same calls
always lead to the same state, to the byte. What always holds:

* every group, trajectory and draw of a task is in exactly one ledger state;
* a group that lost episodes is issued again, with what it has, before any other, the task of one that expired before new tasks;
* no row of a batch counts a token older than the staleness bound, and no group is handed out more than ``max_reuse`` times;
* a batch stays what it is until the learner has a checkpoint that is newer, however often it is asked for;
* payload is freed once: when its group has ended and no batch that may be asked for again holds it.
"""

import logging
import random
from collections import deque
from collections.abc import Collection, Iterator, Sequence

import msgspec

from asyncrl.core.batch import Batch, RowRecord
from asyncrl.core.errors import BudgetExceeded, FailureKind, LedgerError
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId, WorkerId
from asyncrl.core.payload import FinishedSample, PayloadRef
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.ticket import Ticket
from buffers.filters import left_out_by
from buffers.group import Group, GroupState, Row
from buffers.index import GroupIndex
from buffers.ledger import TERMINAL, Ledger
from buffers.ready import mean_absolute_advantage
from buffers.sampling import make_sampler
from buffers.staleness import Load, StalenessPolicy
from buffers.state import BufferState, Draw, KeptBatch
from buffers.statistics import BufferStatistics
from buffers.task_stream import TaskStream

__all__ = ["BufferStatistics", "ReplayBuffer"]

logger = logging.getLogger(__name__)

STALE = "over the staleness bound"
BEYOND_HOPE = "over the staleness bound before it was finished"
PAYLOAD_LOST = "payload lost in a crash"


class ReplayBuffer:
    """See the module's docstring.

    Args:
        recipe: its ``batch``, ``buffer``, ``steps`` and ``seed`` are used; no more groups are issued than ``steps`` can train.
        tasks: where tasks come from; owned by the buffer from now on.
    """

    def __init__(self, recipe: Recipe, tasks: TaskStream) -> None:
        self._batch, self._limits = recipe.batch, recipe.buffer
        self._wanted = recipe.steps * recipe.batch.groups_per_step
        self._seed = recipe.seed
        self._policy = StalenessPolicy(recipe.buffer, recipe.batch)
        self._sampler = make_sampler(recipe)
        self._tasks = tasks
        self._fingerprint = tasks.fingerprint()
        self._freed: list[PayloadRef] = []
        self._adopt(BufferState())

    def _adopt(self, state: BufferState) -> None:
        self._state = state
        self._ledger = Ledger(state.ledger)
        self._waiting_draws = deque(state.waiting_draws)
        self._index = GroupIndex(self._policy, self._limits.max_reuse)
        for group in state.groups.values():
            self._index.enter(group)

    @property
    def version(self) -> PolicyVersion:
        """The clock."""
        return self._state.version

    # Tickets

    def room(self) -> int:
        """Groups that may be issued now; see :meth:`StalenessPolicy.room`."""
        groups, state = self._ledger.groups, self._state
        return self._policy.room(
            Load(
                waiting=groups[GroupState.RUNNING] + groups[GroupState.COMMITTED],
                failed=groups[GroupState.FAILED],
                passing=sum(state.passing.values()),
                returning=self._index.returning,
                supply=self._index.supply,
                wanted=self._wanted - state.trainings,
                payload_bytes=state.payload_bytes,
            )
        )

    def lease(self, worker: WorkerId, limit: int, now: float) -> list[Ticket]:
        """Up to ``limit`` tickets, as far as there is room: failed groups first, then tasks of expired ones, then new tasks.

        Args:
            worker: who generates their episodes.
            limit: groups at most.
            now: seconds since the epoch; only ages are computed from it.
        """
        self._state.now = now
        return [self._issue_again(worker) or self._issue(worker) for _ in range(min(limit, self.room()))]

    def _issue(self, worker: WorkerId) -> Ticket:
        state, size = self._state, self._batch.group_size
        if self._waiting_draws:
            draw = self._waiting_draws.popleft()
            task, source, attempt = draw.task, draw.source, draw.attempt
            group_id = self._ledger.issue(size, drawn=False)
        else:
            drawn = self._tasks.next()
            task, source, attempt = drawn.task, drawn.source, 0
            group_id = self._ledger.issue(size, drawn=True)
        group = Group(group_id, task, source, size, attempt, state.version, state.version, worker, list(range(size)), {}, [])
        state.groups[group_id] = group
        state.held.enter(group.birth, group.state, state.now)
        self._index.enter(group)
        return Ticket(group_id, task, tuple(group.open), attempt, state.version)

    def _issue_again(self, worker: WorkerId) -> Ticket | None:
        group_id = self._index.oldest_failed()
        if group_id is None:
            return None
        group, version = self._state.groups[group_id], self._state.version
        birth = min(version, group.oldest_row()) if group.rows else version
        missing = group.missing()
        self._move(group, GroupState.RUNNING, birth=birth, worker=worker)
        self._ledger.issued_again(len(missing))
        group.open, group.version, group.broken_by = missing, version, []
        group.leases += 1
        return Ticket(group_id, group.task, tuple(missing), group.attempt, version)

    def unwanted(self, worker: WorkerId, running: Sequence[GroupId]) -> list[GroupId]:
        """Those of the groups a worker says it is running that nobody waits for, at least not from this worker."""
        held = self._index.held_by(worker)
        return [group_id for group_id in running if group_id not in held]

    # Finished and failed episodes

    def commit(self, samples: Sequence[FinishedSample], now: float) -> None:
        """Take in finished episodes. One that nobody waits for (any more) is counted, and its payload freed.

        Raises:
            LedgerError: its group was never issued or has no such episode, or it holds tokens older than its ticket.
            BudgetExceeded: too many groups failed: those in whose episodes the policy sampled nothing.
        """
        self._state.now = now
        empty = [sample for sample in samples if not self._take_in(sample)]
        for sample in empty:
            reason = "the policy sampled not a single token; does the prompt fit the context?"
            self.fail(sample.group_id, sample.sample_index, FailureKind.DATA, reason)

    def _take_in(self, sample: FinishedSample) -> bool:
        """Whether anything was sampled in it."""
        state, index = self._state, sample.sample_index
        group = state.groups.get(sample.group_id)
        if group is None or index not in group.open:
            self._take_in_late(sample, group)
            return True
        if not sample.sampled:
            self._freed.append(sample.payload)
            return False
        oldest, newest = sample.sampled[0][0], sample.sampled[-1][0]
        if oldest < group.version:
            if group.leases == 1:
                raise LedgerError(
                    f"sample {index} of group {group.id} has tokens of version {oldest}, but was leased at {group.version}; "
                    f"{group.worker} must not lease while its engine is behind the clock"
                )
            self._take_in_late(sample, group)  # from a worker that was given up, and was slower than that
            return True
        group.open.remove(index)
        # An engine may have a version a moment before the clock does; what it then finishes was committed no earlier than that.
        group.rows[index] = Row(sample, max(state.version, newest))
        state.payload_bytes += sample.payload.size
        state.observed.lengths_issued.add(sample.length)
        self._ledger.finished()
        if not group.open:
            self._settle(group)
        return True

    def _take_in_late(self, sample: FinishedSample, group: Group | None) -> None:
        if not 0 <= sample.group_id < self._ledger.groups.issued or not 0 <= sample.sample_index < self._batch.group_size:
            raise LedgerError(
                f"sample {sample.sample_index} of group {sample.group_id} was handed in; {self._ledger.groups.issued} groups of "
                f"{self._batch.group_size} were issued"
            )
        observed = self._state.observed
        observed.late_samples += 1
        row = group.rows.get(sample.sample_index) if group is not None else None
        if row is None:
            observed.lengths_issued.add(sample.length)
        if row is None or row.sample.payload != sample.payload:
            self._freed.append(sample.payload)

    def fail(self, group_id: GroupId, sample_index: int, kind: FailureKind, reason: str) -> None:
        """Give an episode back. Nothing happens if nobody waits for it (any more).

        Raises:
            LedgerError: the group was never issued.
            BudgetExceeded: more than ``max_failures`` groups failed in this way.
        """
        if not 0 <= group_id < self._ledger.groups.issued:
            raise LedgerError(f"group {group_id} was never issued, so its sample {sample_index} cannot fail")
        group = self._state.groups.get(group_id)
        if group is None or sample_index not in group.open:
            return
        first = kind not in group.broken_by
        self._give_back(group, [sample_index], kind, reason)
        if first:
            self._spend(kind, f"of task {group.task.id}: {reason}")

    def lost(self, worker: WorkerId) -> None:
        """A worker is gone: give all its episodes back. Nothing happens if it had none.

        Raises:
            BudgetExceeded: it was one failure too many.
        """
        if self._give_all_back(worker, f"{worker} is gone"):
            self._spend(FailureKind.INFRASTRUCTURE, f"{worker} is gone")

    def restart(self) -> None:
        """All workers are gone, since the run was: give everything back, and begin to count failures anew."""
        for worker in self._index.workers():
            self._give_all_back(worker, "the run was resumed")
        self._state.failures = dict.fromkeys(FailureKind, 0)

    def _give_all_back(self, worker: WorkerId, reason: str) -> int:
        held = sorted(self._index.held_by(worker))
        for group_id in held:
            group = self._state.groups[group_id]
            self._give_back(group, list(group.open), FailureKind.INFRASTRUCTURE, reason)
        return len(held)

    def _give_back(self, group: Group, indexes: list[int], kind: FailureKind, reason: str) -> None:
        for index in indexes:
            group.open.remove(index)
        self._ledger.given_back(len(indexes))
        if kind not in group.broken_by:
            group.broken_by.append(kind)
        if not group.open:
            self._settle(group, f"task {group.task.id}: {reason}")

    def _spend(self, kind: FailureKind, what: str) -> None:
        failures = self._state.failures
        failures[kind] += 1
        if failures[kind] > self._limits.max_failures:
            raise BudgetExceeded(
                f"{failures[kind]} groups failed ({kind}), more than buffer.max_failures={self._limits.max_failures}; "
                f"the last {what}"
            )

    def _settle(self, group: Group, last_failure: str = "") -> None:
        """None of the group's episodes is being generated any more."""
        if self._has_enough(group):
            self._complete(group)
            return
        if FailureKind.DATA not in group.broken_by:
            self._wait_for_missing(group, FailureKind.INFRASTRUCTURE, last_failure)
            return
        group.attempt += 1
        if group.attempt < self._limits.max_attempts:
            self._wait_for_missing(group, FailureKind.DATA, last_failure)
            return
        logger.warning("filtered after %d attempts: %s", group.attempt, last_failure)
        self._state.observed.filtered_tasks.append(group.task.id)
        self._end(group, GroupState.FILTERED, FailureKind.DATA, last_failure)

    def _has_enough(self, group: Group) -> bool:
        return len(group.rows) >= (self._batch.min_group or group.size)

    def _wait_for_missing(self, group: Group, why: str, example: str) -> None:
        birth = group.oldest_row() if group.rows else group.birth
        self._move(group, GroupState.FAILED, why, example, birth=birth)

    def _complete(self, group: Group) -> None:
        rows = [row.sample for row in group.rows.values()]
        rewards = [row.reward for row in rows]
        why = left_out_by(self._limits.filters, rewards)
        if why:
            self._end(group, GroupState.FILTERED, why)
        else:
            group.oldest_sampled = min([row.sampled[0][0] for row in rows])
            group.newest_sampled = max([row.sampled[-1][0] for row in rows])
            group.advantage = mean_absolute_advantage(rewards)
            self._move(group, GroupState.COMMITTED, birth=group.oldest_sampled)
        self._tasks.observe(group.source, rewards)

    # Batches

    def has_stale(self, version: PolicyVersion) -> bool:
        """Whether :meth:`expire` for ``version`` would do anything."""
        return self._index.deciding.has_below(self._policy.oldest_version(version))

    def expire(self, version: PolicyVersion) -> None:
        """Let ready groups go that may not be trained at ``version`` any more; tasks that were never trained are issued again."""
        for group_id in self._index.deciding.below(self._policy.oldest_version(version)):
            group = self._state.groups[group_id]
            if group.uses:
                self._end(group, GroupState.TRAINED)
            else:
                self._state.observed.stale_tokens.dropped += group.sampled_tokens()
                self._end(group, GroupState.EXPIRED, STALE)

    def takeable(self, version: PolicyVersion, groups: int) -> bool:
        """Whether :meth:`take` answers at once, be it that the batch of ``version`` is no longer to be had."""
        if version <= self._state.last_taken:
            return True
        stale = self._index.deciding.count_below(self._policy.oldest_version(version))
        return len(self._index.ready) - stale >= groups and self._index.can_force(version)

    def take(self, version: PolicyVersion, groups: int) -> Batch:
        """``groups`` ready groups to train at ``version``, chosen by the recipe's sampler; the same ones if asked for again.

        Raises:
            LedgerError: there are too few, or one must be waited for; or the batch is kept no longer.
            BadSelection: a sampler of the user's own does not keep its contract.
        """
        state = self._state
        if version in state.kept:
            return state.kept[version].batch
        if version <= state.last_taken:
            raise LedgerError(
                f"the batch of version {version} is kept no longer, since the learner has a checkpoint of version "
                f"{state.forgotten}; begin from that one"
            )
        self.expire(version)
        if not self.takeable(version, groups):
            raise LedgerError(f"{len(self._index.ready)} groups are ready; a batch of {groups} for version {version} must wait")
        forced = self._index.forced(version)
        with self._index.ready.without(forced) as ready:
            chosen = self._sampler.sample(ready, groups - len(forced), version, random.Random(f"{self._seed}/{version}"))
        consumed = set(chosen.consumed)
        # What had to be in the batch stands for itself: it was not drawn, and needs no importance weight.
        weights = dict.fromkeys(forced, 1.0) | dict(zip(chosen.sampled, chosen.weights, strict=True))
        batch = Batch(version, self._policy.oldest_version(version), tuple(self._hand_out(weights, version, consumed)))
        state.kept[version] = KeptBatch(batch, list(weights))
        state.last_taken = version
        state.trainings += groups
        if version >= state.version:
            state.passing[version] = groups
        return batch

    def _hand_out(self, weights: dict[GroupId, float], version: PolicyVersion, consumed: set[GroupId]) -> Iterator[RowRecord]:
        oldest_version = self._policy.oldest_version(version)
        for group_id, weight in weights.items():
            group = self._state.groups[group_id]
            uses = group.uses + 1
            group.consumed = uses >= self._limits.max_reuse or group_id in consumed
            group.kept += 1
            self._move(group, GroupState.TAKEN, uses=uses)
            if group.oldest_sampled < oldest_version:
                self._state.observed.stale_tokens.masked += _masked_tokens(group, oldest_version)
            for index in sorted(group.rows):
                yield _record(group.task.id, group.rows[index], oldest_version, weight)

    def trained(self, version: PolicyVersion) -> None:
        """The batch of ``version`` was trained. Nothing happens the second time.

        Raises:
            LedgerError: it was never handed out.
        """
        kept = self._state.kept.get(version)
        if kept is None and version >= self._state.forgotten:
            raise LedgerError(f"the batch of version {version} was never handed out, so it cannot have been trained")
        if kept is None or kept.trained:
            return
        kept.trained = True
        lengths = self._state.observed.lengths_trained
        for group_id in kept.groups:
            group = self._state.groups[group_id]
            if group.uses == 1:
                for row in group.rows.values():
                    lengths.add(row.sample.length)
            if group.consumed:
                self._end(group, GroupState.TRAINED)
            else:
                self._move(group, GroupState.COMMITTED)

    def advance(self, version: PolicyVersion) -> None:
        """Move the clock. Nothing happens if it is there already.

        Raises:
            LedgerError: it would move by more than one.
        """
        state = self._state
        if version > state.version + 1:
            raise LedgerError(f"the clock stands at version {state.version} and cannot move to {version}; it moves by one")
        if version <= state.version:
            return
        state.version = version
        for passed in [taken for taken in state.passing if taken < version]:
            del state.passing[passed]
        beyond_hope = self._policy.beyond_hope(version)
        if beyond_hope is not None:
            for group_id in self._index.unfinished.below(beyond_hope):
                group = state.groups[group_id]
                state.observed.stale_tokens.dropped += group.sampled_tokens()
                self._end(group, GroupState.EXPIRED, BEYOND_HOPE)

    def checkpointed(self, version: PolicyVersion) -> None:
        """The learner never comes back to before ``version``: its older batches are kept no longer.

        Raises:
            LedgerError: one of them was not trained.
        """
        state = self._state
        old = [taken for taken in state.kept if taken < version]
        for taken in old:
            if not state.kept[taken].trained:
                raise LedgerError(
                    f"a checkpoint of version {version} cannot be, while the batch of version {taken} is not trained"
                )
        for taken in old:
            for group_id in state.kept.pop(taken).groups:
                self._keep_no_longer(state.groups[group_id])
        state.forgotten = max(state.forgotten, version)

    def _keep_no_longer(self, group: Group) -> None:
        group.kept -= 1
        if not group.kept and group.state in TERMINAL:
            self._state.kept_bytes -= group.bytes()
            self._forget(group)

    # The end of a group

    def _move(
        self,
        group: Group,
        to: GroupState,
        why: str = "",
        example: str = "",
        *,
        birth: PolicyVersion | None = None,
        uses: int | None = None,
        worker: WorkerId | None = None,
    ) -> None:
        """Move a group on to where ledger, index and statistics agree; what they look at is changed in between."""
        state, before, born = self._state, group.state, group.birth
        self._index.leave(group)
        self._ledger.move(group, to, why, example)
        if birth is not None:
            group.birth = birth
        if uses is not None:
            group.uses = uses
        if worker is not None:
            group.worker = worker
        if to not in TERMINAL:
            state.held.enter(group.birth, to, state.now)
        state.held.leave(born, before)
        self._index.enter(group)

    def _end(self, group: Group, to: GroupState, why: str = "", example: str = "") -> None:
        self._move(group, to, why, example)
        group.open = []
        size = group.bytes()
        self._state.payload_bytes -= size
        if to is GroupState.EXPIRED:
            self._waiting_draws.append(Draw(group.task, group.source, group.attempt))
        if group.kept:
            self._state.kept_bytes += size
        else:
            self._forget(group)

    def _forget(self, group: Group) -> None:
        del self._state.groups[group.id]
        self._freed.extend(group.payload())

    # Payload

    def drain_freed(self) -> list[PayloadRef]:
        """Payload that nobody needs any more, since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def live_payload(self) -> Iterator[PayloadRef]:
        """All payload that is still needed, each once."""
        return (ref for group in self._state.groups.values() for ref in group.payload())

    def drop_lost_payload(self, refs: Collection[PayloadRef]) -> int:
        """Go on without the rows whose payload a crash destroyed; how many there were.

        Groups that were not handed out yet get them generated again; a batch that may be asked for again goes without them.

        Raises:
            LedgerError: a batch that was trained has no row left.
        """
        lost = set(refs)
        dropped = 0
        for group in list(self._state.groups.values()) if lost else ():
            gone = [index for index, row in group.rows.items() if row.sample.payload in lost]
            if gone:
                dropped += len(gone)
                self._drop_rows(group, gone)
        if dropped:
            for kept in list(self._state.kept.values()):
                self._cut(kept, lost)
        self._state.observed.lost_rows += dropped
        return dropped

    def _drop_rows(self, group: Group, gone: list[int]) -> None:
        state, ended = self._state, group.state in TERMINAL
        refs = [group.rows[index].sample.payload for index in gone]
        self._freed.extend(refs)
        size = sum(ref.size for ref in refs)
        if ended:
            state.kept_bytes -= size
        else:
            state.payload_bytes -= size
            self._ledger.lost(group, len(gone))
        self._index.leave(group)
        for index in gone:
            del group.rows[index]
        if group.state is GroupState.FAILED and group.rows:
            state.held.enter(group.oldest_row(), group.state, state.now)
            state.held.leave(group.birth, group.state)
            group.birth = group.oldest_row()
        self._index.enter(group)
        if group.state is GroupState.COMMITTED and not group.uses:
            self._wait_for_missing(group, PAYLOAD_LOST, f"task {group.task.id}")
        elif group.state is GroupState.COMMITTED and not self._has_enough(group):
            self._end(group, GroupState.TRAINED)

    def _cut(self, kept: KeptBatch, lost: set[PayloadRef]) -> None:
        """Take the lost rows out of a batch, and groups of which too little is left if it is not trained yet."""
        state, version = self._state, kept.batch.version
        rows = tuple(row for row in kept.batch.rows if row.payload not in lost)
        if kept.trained and not rows:
            raise LedgerError(
                f"all trajectories of the batch of version {version}, which must be trained again, were destroyed; "
                "start the run anew, and set buffer.journal.fsync to always if power cuts are to be survived"
            )
        if not kept.trained:
            cut = {row.group_id for row in kept.batch.rows if row.payload in lost}
            gone = [group_id for group_id in kept.groups if group_id in cut and not self._has_enough(state.groups[group_id])]
            rows = tuple(row for row in rows if row.group_id not in gone)
            for group_id in gone:
                self._take_out(kept, state.groups[group_id])
        kept.batch = msgspec.structs.replace(kept.batch, rows=rows)
        if not rows:
            # The learner is to get another batch in its stead.
            del state.kept[version]
            state.trainings -= self._batch.groups_per_step
            state.passing.pop(version, None)
            state.last_taken = PolicyVersion(version - 1)

    def _take_out(self, kept: KeptBatch, group: Group) -> None:
        kept.groups.remove(group.id)
        group.kept -= 1
        if group.uses > 1:
            self._end(group, GroupState.TRAINED)
        else:
            self._end(group, GroupState.EXPIRED, PAYLOAD_LOST, f"task {group.task.id}")

    # Inspection

    def statistics(self) -> BufferStatistics:
        """What is held, and what became of all that was issued."""
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
            lost_rows=observed.lost_rows,
            failures=dict(state.failures),
            filtered_tasks=tuple(observed.filtered_tasks),
            tasks_drawn=self._tasks.position,
            skipped_rows=dict(self._tasks.skipped),
        )

    def blockers(self, version: PolicyVersion) -> list[tuple[GroupId, TaskId, WorkerId | None]]:
        """What a batch for ``version`` waits for, worst first: group, task and who generates it, None if nobody does."""
        groups = (self._state.groups[group_id] for group_id in self._index.waited_for())
        return [(g.id, g.task.id, g.worker if g.state is GroupState.RUNNING else None) for g in groups]

    # Snapshots

    def snapshot(self) -> bytes:
        """Everything but payload that :meth:`drain_freed` has not told yet: the sweep of the payload folder finds that."""
        state = msgspec.structs.replace(
            self._state,
            waiting_draws=list(self._waiting_draws),
            tasks=self._tasks.state(),
            fingerprint=self._fingerprint,
        )
        return _encoder.encode(state)

    @classmethod
    def restore(cls, recipe: Recipe, tasks: TaskStream, data: bytes) -> "ReplayBuffer":
        """The buffer that :meth:`snapshot` was called on.

        Raises:
            LedgerError: the tasks are not those of the snapshot.
            msgspec.DecodeError: ``data`` is no snapshot.
        """
        state = _decoder.decode(data)
        buffer = cls(recipe, tasks)
        if state.fingerprint != buffer._fingerprint:
            raise LedgerError("the tasks or the seed are not those the run was started with; put them back, or start a new run")
        tasks.restore(state.tasks)
        buffer._adopt(state)
        return buffer


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BufferState)


def _masked_tokens(group: Group, oldest_version: PolicyVersion) -> int:
    rows = group.rows.values()
    return group.sampled_tokens() - sum(row.sample.trainable_tokens(oldest_version) for row in rows)


def _record(task_id: TaskId, row: Row, oldest_version: PolicyVersion, weight: float) -> RowRecord:
    sample = row.sample
    return RowRecord(
        group_id=sample.group_id,
        task_id=task_id,
        sample_index=sample.sample_index,
        length=sample.length,
        loss_tokens=sample.trainable_tokens(oldest_version),
        reward=sample.reward,
        committed_version=row.committed_version,
        weight=weight,
        payload=sample.payload,
        turn_rewards=sample.turn_rewards,
    )
