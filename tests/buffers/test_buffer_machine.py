"""The whole buffer as a state machine: workers, a learner and crashes in any order, under every policy.

Beside the buffer runs a model that remembers everything for ever, and, from the first crash on, a twin that was restored from a
snapshot: both must do and say the same. At the end the run is finished by honest workers, whatever state it was left in, and all
commands are replayed on a new buffer, which must come out equal to the byte.
"""

import random
from collections import Counter
from operator import attrgetter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from made_buffers import buffer_of, restored
from samples import make_recipe, make_tasks, sample

from asyncrl.buffers.index import GroupIndex
from asyncrl.buffers.ledger import TERMINAL
from asyncrl.core.errors import FailureKind
from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.core.recipe.buffer import (
    FifoSamplerConfig,
    FreshestSamplerConfig,
    PrioritisedSamplerConfig,
    StratifiedSamplerConfig,
    ZeroVarianceFilterConfig,
)
from asyncrl.core.ticket import Ticket

WORKERS = ("u", "v", "w")
LIVE = [state for state in GroupState if state not in TERMINAL]
TASKS = 10_000
"""More than a run draws, so that a task that comes twice is one that was issued again."""
SAMPLERS = (
    FifoSamplerConfig(),
    FreshestSamplerConfig(),
    PrioritisedSamplerConfig(staleness_decay=0.5),
    StratifiedSamplerConfig(),
)


OFTEN = {
    "generate": 6,
    "commit": 6,
    "learn": 4,
    "take": 2,
    "lease": 2,
    "fail": 1,
    "leave_out": 0.7,
    "lose": 0.7,
    "renew": 1,
    "expire": 1,
    "take_again": 0.5,
    "commit_again": 1,
    "checkpoint": 0.5,
    "pace": 0.5,
    "restore": 0.4,
    "crash": 0.4,
}


class BufferMachine(RuleBasedStateMachine):
    @initialize(
        reuse=st.integers(1, 3),
        on_stale=st.sampled_from(["mask", "wait", "drop"]),
        depth=st.one_of(st.integers(0, 2), st.just("auto")),
        slack=st.integers(0, 2),
        groups=st.integers(1, 3),
        size=st.integers(2, 3),
        partial=st.booleans(),
        filters=st.sampled_from([(), (ZeroVarianceFilterConfig(),)]),
        sampler=st.sampled_from(SAMPLERS),
        steps=st.integers(4, 12),
        bytes_per_row=st.sampled_from([100, 300_000]),
    )
    def start(self, reuse, on_stale, depth, slack, groups, size, partial, filters, sampler, steps, bytes_per_row):
        self.open_depth = depth == "auto"
        bound = (1 if self.open_depth else depth) + slack
        self.bound, self.depth, self.on_stale, self.groups, self.size, self.steps = (
            bound,
            min(2, bound) if self.open_depth else depth,
            on_stale,
            groups,
            size,
            steps,
        )
        self.max_reuse = min(reuse, self.bound + 1)
        self.min_group = size - 1 if partial else size
        self.recipe = make_recipe(
            steps=steps,
            groups_per_step=groups,
            group_size=size,
            min_group=self.min_group,
            max_staleness=self.bound,
            pipeline_depth="auto" if self.open_depth else depth,
            on_stale=on_stale,
            max_reuse=self.max_reuse,
            filters=filters,
            sampler=sampler,
            capacity_mb=1,
            max_attempts=2,
            max_failures=10**6,
        )
        self.filters, self.bytes_per_row = filters, bytes_per_row
        self.buffer, self.twin = buffer_of(self.recipe, make_tasks(TASKS)), None
        self.commands = []
        self.now = 0.0
        self.open = {worker: {} for worker in WORKERS}  # group -> (ticket, indexes), as the workers see it
        self.handed_in = {}  # payload -> sample
        self.freed = set()
        self.lost = set()
        self.tasks = {}  # group -> task
        self.kept = {}  # version -> batch, of the last checkpoint and later
        self.uses = Counter()  # of groups
        self.trained_tasks = set()
        self.taken = self.trained = 0  # batches
        self.filtered = 0

    # What is done

    def do(self, name, *args):
        """A command, to the buffer and its twin."""
        self.commands.append((name, args))
        result = attrgetter(name)(self.buffer)(*args)
        freed = self.buffer.drain_freed()
        assert len(set(freed)) == len(freed)
        assert not self.freed & set(freed), "freed twice"
        self.freed |= set(freed)
        if self.twin is not None:
            assert attrgetter(name)(self.twin)(*args) == result
            assert self.twin.drain_freed() == freed
        return result

    @rule(rng=st.randoms(use_true_random=False))
    def lease(self, rng):
        self.lease_for(rng.choice(WORKERS), rng.randint(1, 5), rng.uniform(0, 100))

    def lease_for(self, worker, limit, seconds=1.0):
        room = self.buffer.room()
        self.now += seconds
        tickets = self.do("lease", worker, limit, self.now)
        assert len(tickets) == min(limit, room)
        for ticket in tickets:
            assert ticket.version == self.buffer.version
            assert self.tasks.setdefault(ticket.group_id, ticket.task.id) == ticket.task.id, "a group keeps its task"
            self.open[worker][ticket.group_id] = (ticket, set(ticket.samples))

    def episodes(self):
        return [(w, group, index) for w in WORKERS for group in self.open[w] for index in sorted(self.open[w][group][1])]

    def pop(self, worker, group, index):
        ticket, indexes = self.open[worker][group]
        indexes.remove(index)
        if not indexes:
            del self.open[worker][group]
        return ticket

    @rule(rng=st.randoms(use_true_random=False))
    def commit(self, rng):
        if not self.episodes():
            return
        worker, group, index = rng.choice(self.episodes())
        ticket = self.pop(worker, group, index)
        # An engine may have the next version a moment before the clock moves.
        newest = self.buffer.version + (self.buffer.version < self.trained and rng.random() < 0.5)
        versions = list(range(ticket.version, newest + 1))
        versions = tuple(sorted(rng.sample(versions, rng.randint(1, len(versions)))))
        self.hand_in(sample(ticket, index, versions, float(rng.randint(0, 1)), rng.randint(1, 3), self.bytes_per_row))

    def hand_in(self, finished):
        self.handed_in[finished.payload] = finished
        self.do("commit", [finished], self.now)

    @rule(rng=st.randoms(use_true_random=False))
    def generate(self, rng):
        """Lease, and finish the newest episodes, of versions up to the clock's, leaving some to become old."""
        worker = rng.choice(WORKERS)
        self.lease_for(worker, rng.randint(1, 4))
        for _, group, index in [e for e in self.episodes() if e[0] == worker][rng.randint(0, 3) :]:
            ticket = self.pop(worker, group, index)
            versions = tuple(range(rng.choice([ticket.version, self.buffer.version]), self.buffer.version + 1))
            self.hand_in(sample(ticket, index, versions, float(index), size=self.bytes_per_row))

    @rule(rng=st.randoms(use_true_random=False))
    def learn(self, rng):
        """The learner goes on as far as it can, up to one step."""
        if self.may_take():
            self.take_batch()
        if self.trained < self.taken:
            self.train()
        if self.buffer.version < self.trained:
            self.advance()

    @rule(rng=st.randoms(use_true_random=False))
    def commit_again(self, rng):
        """A call that is repeated, or an episode that was generated twice."""
        late = self.buffer.statistics().late_samples
        awaited = {(group, index) for _, group, index in self.episodes()}
        held = [ref for ref in self.buffer.groups.live_payload() if self.name_of(ref) not in awaited]
        other = [ref for ref in self.handed_in if self.name_of(ref) not in awaited]
        if held and rng.random() < 0.5:
            self.do("commit", [self.handed_in[rng.choice(held)]], self.now)
        elif other:
            group, index = self.name_of(rng.choice(other))
            twice = sample(Ticket(group, None, (index,), 0, 0), index, (self.buffer.version,))
            self.hand_in(twice)
            assert twice.payload in self.freed
        else:
            return
        assert self.buffer.statistics().late_samples == late + 1

    def name_of(self, ref):
        return self.handed_in[ref].group_id, self.handed_in[ref].sample_index

    @rule(rng=st.randoms(use_true_random=False))
    def fail(self, rng):
        if self.episodes():
            worker, group, index = rng.choice(self.episodes())
            self.pop(worker, group, index)
            self.do("fail", group, index, rng.choice(list(FailureKind)), "simulated", rng.choice(["", "incident"]))

    @rule(rng=st.randoms(use_true_random=False))
    def leave_out(self, rng):
        """The prompt of a task is found too long: its group ends at once, and a second report changes nothing."""
        awaited = [(worker, group) for worker in WORKERS for group in self.open[worker]]
        if not awaited:
            return
        _, group = rng.choice(awaited)
        runs, failures = self.is_running(group), self.buffer.statistics().failures
        before = self.buffer.statistics().too_long
        self.do("leave_out", group, "simulated")
        assert self.buffer.statistics().failures == failures
        assert self.buffer.statistics().too_long == ({"source": sum(before.values()) + 1} if runs else before)
        assert not self.is_running(group)
        self.do("leave_out", group, "simulated")
        assert self.buffer.statistics().too_long == ({"source": sum(before.values()) + 1} if runs else before)

    def is_running(self, group):
        return group in self.buffer._state.groups and self.buffer._state.groups[group].state is GroupState.RUNNING

    @rule(rng=st.randoms(use_true_random=False))
    def lose(self, rng):
        """A worker was silent for too long; one that comes back goes on with what it has until it hears that it must not."""
        self.lose_worker(rng.choice(WORKERS), "lost", comes_back=rng.random() < 0.5)

    @rule(rng=st.randoms(use_true_random=False))
    def hand_back(self, rng):
        failures = self.buffer.statistics().failures
        self.lose_worker(rng.choice(WORKERS), "hand_back", "is out of reach", comes_back=rng.random() < 0.5)
        assert self.buffer.statistics().failures == failures

    def lose_worker(self, worker, told, *why, comes_back):
        self.do(told, worker, *why)
        assert self.buffer.unwanted(worker, list(self.open[worker])) == list(self.open[worker])
        if not comes_back:
            self.open[worker] = {}

    @rule(rng=st.randoms(use_true_random=False))
    def renew(self, rng):
        worker = rng.choice(WORKERS)
        for group in self.buffer.unwanted(worker, list(self.open[worker])):
            del self.open[worker][group]

    @rule(rng=st.randoms(use_true_random=False))
    def expire(self, rng):
        self.expire_old()

    def expire_old(self):
        stale = self.buffer.batches.has_stale(self.taken)
        before = self.buffer.snapshot()
        self.do("batches.expire", self.taken)
        assert (self.buffer.snapshot() != before) == stale
        assert not self.buffer.batches.has_stale(self.taken)

    @rule(rng=st.randoms(use_true_random=False))
    def take(self, rng):
        if self.may_take():
            self.take_batch()

    def may_take(self):
        """The learner trains one batch at a time, and is at most one version ahead of the clock."""
        idle = self.taken == self.trained < self.steps and self.taken <= self.buffer.version + 1
        return idle and self.buffer.batches.takeable(self.taken, self.groups)

    def take_batch(self):
        version = self.taken
        batch = self.do("batches.take", version, self.groups)
        assert (batch.version, batch.oldest_version) == (version, version - self.bound)
        by_group = {}
        for row in batch.episodes:
            by_group.setdefault(row.group_id, []).append(row)
        assert len(by_group) == self.groups
        assert [row.group_id for row in batch.episodes] == [g for g, rows in by_group.items() for _ in rows], (
            "groups are contiguous"
        )
        for group, rows in by_group.items():
            self.uses[group] += 1
            assert self.uses[group] <= self.max_reuse
            assert len({row.sample_index for row in rows}) == len(rows) >= self.min_group
            assert not self.filters or self.lost or len({row.reward for row in rows}) > 1
            for row in rows:
                finished = self.handed_in[row.payload]
                within = sum(n for v, n in finished.sampled if version - v <= self.bound)
                assert (row.trainable_tokens(batch.oldest_version), row.task_id) == (within, self.tasks[group])
                if self.on_stale != "mask":
                    assert within == sum(n for _, n in finished.sampled), "trained whole"
            assert any(row.loss_tokens for row in batch.rows if row.group_id == group)
        assert version not in self.kept
        self.kept[version] = batch
        self.taken += 1

    @rule(rng=st.randoms(use_true_random=False))
    def take_again(self, rng):
        if not self.kept:
            return
        version = rng.choice(sorted(self.kept))
        before = self.buffer.snapshot()
        assert self.buffer.batches.takeable(version, self.groups)
        assert self.do("batches.take", version, self.groups) == self.kept[version]
        assert self.buffer.snapshot() == before

    def train(self):
        version = self.trained
        self.do("batches.trained", version)
        self.trained += 1
        self.trained_tasks |= {row.task_id for row in self.kept[version].episodes}
        before = self.buffer.snapshot()
        self.do("batches.trained", version)
        assert self.buffer.snapshot() == before

    def advance(self):
        self.do("advance", self.buffer.version + 1)
        before = self.buffer.snapshot()
        self.do("advance", self.buffer.version)
        assert self.buffer.snapshot() == before

    @rule(rng=st.randoms(use_true_random=False))
    def pace(self, rng):
        if self.open_depth:
            depth = rng.randint(0, self.bound)
            self.do("pace", depth)
            self.depth = max(self.depth, depth)  # what was issued stays

    @rule(rng=st.randoms(use_true_random=False))
    def checkpoint(self, rng):
        version = rng.randint(0, self.trained)
        self.do("batches.checkpointed", version)
        self.kept = {v: batch for v, batch in self.kept.items() if v >= version}

    @rule(rng=st.randoms(use_true_random=False))
    def restore(self, rng):
        """The buffer's process dies, and a new one goes on from the snapshot."""
        data = self.buffer.snapshot()
        self.twin = restored(self.recipe, make_tasks(TASKS), data)
        assert self.twin.snapshot() == data
        assert self.twin.statistics() == self.buffer.statistics()

    @rule(rng=st.randoms(use_true_random=False))
    def crash(self, rng):
        """All processes die, and of what had not reached the disk, some is gone."""
        self.do("restart")
        self.open = {worker: {} for worker in WORKERS}
        # Some row of each trained batch is left; without one the redo is refused, which is tested elsewhere.
        safe = {self.kept[v].episodes[0].payload for v in self.kept if v < self.trained}
        held = [ref for ref in sorted(set(self.buffer.groups.live_payload()), key=lambda ref: ref.offset) if ref not in safe]
        lost = set(rng.sample(held, rng.randint(0, min(3, len(held)))) if rng.random() < 0.5 else ())
        assert self.do("batches.drop_lost_payload", sorted(lost, key=lambda ref: ref.offset)) == len(lost)
        self.lost |= lost
        # What the model knows of kept batches is what the buffer now says: without the rows that are lost, and no others.
        for version, batch in list(self.kept.items()):
            rows = tuple(row for row in batch.episodes if row.payload not in lost)
            if version >= self.trained:
                left = Counter(row.group_id for row in rows)
                gone = {row.group_id for row in batch.episodes if row.payload in lost and left[row.group_id] < self.min_group}
                self.uses -= Counter(gone)
                rows = tuple(row for row in rows if row.group_id not in gone)
            if rows:
                self.kept[version] = self.buffer.batches.take(version, self.groups)
                assert self.kept[version].episodes == rows
            else:
                del self.kept[version]
                self.taken -= 1

    # What always holds

    @invariant()
    def the_ledger_is_exact(self):
        counts = self.buffer.statistics().ledger
        groups = self.buffer._state.groups
        assert counts.issued == len(self.tasks) == sum(getattr(counts, state) for state in GroupState)
        for state in LIVE:
            assert getattr(counts, state) == sum(group.state is state for group in groups.values())
        trajectories = counts.trajectories
        assert trajectories.issued == self.size * counts.issued
        assert trajectories.issued == sum(getattr(trajectories, f) for f in trajectories.__struct_fields__[1:])
        assert trajectories.running == sum(len(group.open) for group in groups.values())
        unready = [g for g in groups.values() if g.state in (GroupState.RUNNING, GroupState.FAILED, GroupState.COMMITTED)]
        assert trajectories.committed == sum(len(group.records) for group in unready)
        tasks = counts.tasks
        assert tasks.issued == tasks.running + tasks.waiting + tasks.trained + tasks.filtered

    @invariant()
    def every_task_is_somewhere_once(self):
        groups = [group for group in self.buffer._state.groups.values() if group.state not in TERMINAL]
        live = [group.task.id for group in groups]
        waiting = [draw.task.id for draw in self.buffer.groups.waiting_draws]
        assert len({*live, *waiting}) == len(live) + len(waiting)
        counts = self.buffer.statistics().ledger.tasks
        assert (counts.running, counts.waiting) == (len(live), len(waiting))
        assert counts.issued == len(set(self.tasks.values())) == sum(self.buffer.tasks.drawn.values())
        ended = set(self.tasks.values()) - {*live, *waiting}
        assert counts.trained == len(ended & self.trained_tasks)
        assert counts.filtered == len(ended - self.trained_tasks)
        reused = {group.task.id for group in groups if group.uses}
        assert not self.trained_tasks & {*live, *waiting} - reused, "what was trained is not generated again"

    @invariant()
    def payload_is_held_or_freed(self):
        held = list(self.buffer.groups.live_payload())
        assert len(set(held)) == len(held)
        assert not self.freed & set(held)
        assert set(held) | self.freed == set(self.handed_in)
        assert {row.payload for batch in self.kept.values() for row in batch.episodes} <= set(held), (
            "what may be trained again is held"
        )
        statistics = self.buffer.statistics()
        assert statistics.payload_bytes + statistics.kept_bytes == sum(ref.size for ref in held)
        groups = self.buffer._state.groups.values()
        for group in groups:
            assert group.state not in TERMINAL or group.kept
            kept_in = [v for v, batch in self.buffer._state.kept.items() if group.id in batch.groups]
            assert group.kept == len(kept_in)
        assert statistics.payload_bytes == sum(group.bytes() for group in groups if group.state not in TERMINAL)

    @invariant()
    def the_index_finds_what_a_scan_finds(self):
        fresh = GroupIndex(self.buffer._policy, self.max_reuse)
        for group in reversed(self.buffer._state.groups.values()):
            fresh.enter(group)
        kept = self.buffer._index
        assert list(kept.ready.items()) == list(fresh.ready.items())
        assert kept.ready.oldest(2) == list(kept.ready)[:2]
        assert (kept.supply, kept.returning, kept.oldest_failed()) == (fresh.supply, fresh.returning, fresh.oldest_failed())
        for name in ("deciding", "unused", "unfinished"):
            ours, scanned = getattr(kept, name), getattr(fresh, name)
            assert {v: ours.of(v) for v in ours} == {v: scanned.of(v) for v in scanned}
            assert next(iter(ours), None) == min(scanned, default=None)
        assert kept.workers() == fresh.workers()
        held = Counter((group.birth, group.state) for group in self.buffer._state.groups.values() if group.state in LIVE)
        assert {(h.version, h.state): h.groups for h in self.buffer.statistics().held} == dict(held)

    @invariant()
    def the_pace_holds(self):
        counts = self.buffer.statistics().ledger
        if self.max_reuse == 1:
            unpublished_batches = sum(self.groups for version in range(self.buffer.version, self.taken))
            assert counts.running + counts.committed + unpublished_batches <= (self.depth + 1) * self.groups

    @invariant()
    def under_wait_nothing_is_lost_and_what_must_be_trained_fits(self):
        if self.on_stale != "wait" or self.lost:
            return
        assert self.buffer.statistics().ledger.expired == 0
        assert self.buffer.statistics().stale_tokens.masked == self.buffer.statistics().stale_tokens.dropped == 0
        demands = self.buffer._index._demands(self.taken)
        assert max([n for _, n in demands], default=0) <= self.groups

    def teardown(self):
        if not hasattr(self, "buffer"):
            return
        self.finish_the_run()
        self.replay()

    def finish_the_run(self):
        """Honest workers and a learner can end the run, whatever went before."""
        for worker in WORKERS:
            self.lose_worker(worker, "lost", comes_back=False)
        for _ in range(4 * self.steps + 8):
            while self.buffer.room():
                self.lease_for("u", 100)
            for _, group, index in [e for e in self.episodes() if e[1] not in self.buffer.unwanted("u", [e[1]])]:
                ticket = self.pop("u", group, index)
                self.hand_in(sample(ticket, index, (self.buffer.version,), float(index), size=self.bytes_per_row))
            if self.trained < self.taken:
                self.train()
            elif self.taken < self.steps and self.buffer.version == self.trained:
                if self.buffer.batches.has_stale(self.taken):
                    self.expire_old()
                elif self.may_take():
                    self.take_batch()
            elif self.buffer.version < self.trained:
                self.advance()
            self.the_ledger_is_exact()
            self.under_wait_nothing_is_lost_and_what_must_be_trained_fits()
        assert self.trained == self.buffer.version == self.steps
        self.do("batches.checkpointed", self.steps)
        assert self.buffer.statistics().kept_bytes == 0

    def replay(self):
        again = buffer_of(self.recipe, make_tasks(TASKS))
        for name, args in self.commands:
            attrgetter(name)(again)(*args)
            again.drain_freed()
        assert again.snapshot() == self.buffer.snapshot()


ALWAYS = (
    BufferMachine.the_ledger_is_exact,
    BufferMachine.every_task_is_somewhere_once,
    BufferMachine.payload_is_held_or_freed,
    BufferMachine.the_index_finds_what_a_scan_finds,
    BufferMachine.the_pace_holds,
    BufferMachine.under_wait_nothing_is_lost_and_what_must_be_trained_fits,
)
BufferMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestBuffer = BufferMachine.TestCase


@pytest.mark.parametrize("on_stale", ["mask", "wait", "drop"])
@pytest.mark.parametrize("seed", range(25))
def test_a_long_life(on_stale, seed):
    """Hypothesis alone does not come far into a run; random operations in the proportions of a run do."""
    rng = random.Random(seed)
    machine = BufferMachine()
    machine.start(
        reuse=rng.choice([1, 1, 2, 3]),
        on_stale=on_stale,
        depth=rng.choice([0, 1, 2, "auto"]),
        slack=rng.choice([0, 0, 1, 2]),
        groups=rng.randint(1, 3),
        size=rng.randint(2, 3),
        partial=rng.random() < 0.5,
        filters=rng.choice([(), (ZeroVarianceFilterConfig(),)]),
        sampler=rng.choice(SAMPLERS),
        steps=rng.randint(10, 30),
        bytes_per_row=rng.choice([100, 300_000]),
    )
    crashes = rng.random() < 0.5
    for name in rng.choices(list(OFTEN), list(OFTEN.values()), k=150):
        if crashes or name != "crash":
            getattr(machine, name)(rng=rng)
        for holds in ALWAYS:
            holds(machine)
    machine.teardown()
