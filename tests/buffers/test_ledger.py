"""The ledger as a state machine: in whatever order operations come, groups, episodes and tasks are in exactly one state each."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from asyncrl.buffers.group import Group
from asyncrl.buffers.ledger import EXAMPLE_LENGTH, Ledger, LedgerState, TaskState
from asyncrl.core.errors import LedgerError
from asyncrl.core.measures.buffer_statistics import GroupState
from asyncrl.core.task import Task

ALLOWED = {
    "running": {"committed", "filtered", "expired", "failed"},
    "failed": {"running", "expired"},
    "committed": {"taken", "trained", "expired", "failed"},
    "taken": {"trained", "committed", "expired"},
}
SIZE = 3


def make_group(ledger, drawn=True):
    group_id = ledger.issue(SIZE, drawn=drawn)
    return Group(group_id, Task(id=str(group_id), prompt=""), "s", group_id, SIZE, 0, 0, 0, "w", list(range(SIZE)), {}, [])


class LedgerMachine(RuleBasedStateMachine):
    """Drives a ledger beside groups that say themselves what they are made of."""

    def __init__(self):
        super().__init__()
        self.state = LedgerState()
        self.ledger = Ledger(self.state)
        self.groups = []
        self.waiting = 0

    def pick(self, data, state=None):
        groups = [g for g in self.groups if state in (None, g.state)]
        return data.draw(st.sampled_from(groups)) if groups else None

    @rule()
    def draw_task(self):
        self.groups.append(make_group(self.ledger))

    @rule()
    def issue_task_again(self):
        if self.waiting:
            self.groups.append(make_group(self.ledger, drawn=False))
            self.waiting -= 1
        else:
            with pytest.raises(LedgerError, match="tasks cannot leave waiting"):
                self.ledger.issue(SIZE, drawn=False)

    @rule(data=st.data(), finished=st.booleans())
    def end_episode(self, data, finished):
        group = self.pick(data, GroupState.RUNNING)
        if group is None or not group.open:
            return
        index = group.open.pop()
        if finished:
            group.records[index] = None
            self.ledger.finished()
        else:
            self.ledger.given_back(1)

    @rule(data=st.data(), to=st.sampled_from(GroupState))
    def move(self, data, to):
        group = self.pick(data)
        if group is None:
            return
        before = group.state
        if to not in ALLOWED.get(before, ()):
            with pytest.raises(LedgerError, match=f"group {group.id} is {before} and cannot become {to}"):
                self.ledger.move(group, to)
            assert group.state is before
            return
        if group.open and to in (GroupState.COMMITTED, GroupState.FAILED):
            return
        self.ledger.move(group, to, "because" if to is GroupState.EXPIRED else "", "x" * 1000)
        if to is GroupState.RUNNING:
            group.open = group.missing()
            self.ledger.issued_again(len(group.open))
        elif to is GroupState.EXPIRED:
            self.waiting += 1

    @rule(data=st.data())
    def lose_a_record(self, data):
        group = self.pick(data, GroupState.COMMITTED)
        if group is not None and group.records:
            self.ledger.lost(group, 1)
            group.records.popitem()

    @rule()
    def restore(self):
        self.ledger = Ledger(self.state)

    @invariant()
    def counts_agree(self):
        counts = self.ledger.counts()
        for state in GroupState:
            assert getattr(counts, state.value) == sum(g.state is state for g in self.groups)
        assert counts.issued == len(self.groups)
        trajectories = counts.trajectories
        assert trajectories.issued == SIZE * len(self.groups)
        assert trajectories.issued == sum(getattr(trajectories, f) for f in trajectories.__struct_fields__[1:])
        assert trajectories.running == sum(len(g.open) for g in self.groups if g.state is GroupState.RUNNING)
        for state in ("taken", "trained"):
            assert getattr(trajectories, state) == sum(len(g.records) for g in self.groups if g.state == state)
        open_states = (GroupState.RUNNING, GroupState.FAILED)
        assert trajectories.failed == sum(SIZE - len(g.records) - len(g.open) for g in self.groups if g.state in open_states)
        tasks = counts.tasks
        assert tasks.issued == tasks.running + tasks.waiting + tasks.trained + tasks.filtered
        assert (tasks.waiting, tasks.running) == (self.waiting, sum(g.state in ALLOWED for g in self.groups))
        assert counts.reasons.get("expired: because", 0) == counts.expired


TestLedger = LedgerMachine.TestCase


def test_what_does_not_add_up_is_refused():
    state = LedgerState()
    ledger = Ledger(state)
    make_group(ledger)
    state.tasks[TaskState.WAITING] += 1
    with pytest.raises(LedgerError, match=r"1 tasks issued, .* accounted for; this is a bug"):
        ledger.issue(SIZE, drawn=False)


def test_a_reason_keeps_its_last_example_and_no_more():
    ledger = Ledger(LedgerState())
    for text in ("first", "second" * 1000):
        group = make_group(ledger)
        ledger.move(group, GroupState.EXPIRED, "because", text)
    counts = ledger.counts()
    assert counts.reasons == {"expired: because": 2}
    assert counts.examples == {"expired: because": ("second" * 1000)[:EXAMPLE_LENGTH]}
