"""The ledger as a state machine: whatever order operations come in, every group is in exactly one state."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from asyncrl.core.errors import LedgerError
from buffers.ledger import GroupState, Ledger

TERMINAL = (GroupState.TRAINED, GroupState.FILTERED, GroupState.EXPIRED, GroupState.FAILED)
ALLOWED = {
    "running": {"committed", "filtered", "expired", "failed"},
    "committed": {"taken", "filtered", "expired"},
    "taken": {"trained"},
}


class LedgerMachine(RuleBasedStateMachine):
    """Drives a ledger beside a plain dictionary that remembers every group for ever."""

    groups = Bundle("groups")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.model: dict[int, str] = {}

    @rule(target=groups)
    def issue(self):
        group = self.ledger.issue()
        assert group not in self.model
        self.model[group] = "running"
        return group

    @rule(group=groups, to=st.sampled_from(list(GroupState)))
    def move(self, group, to):
        if str(to) in ALLOWED.get(self.model[group], ()):
            self.ledger.move(group, to, "because")
            self.model[group] = str(to)
        else:
            with pytest.raises(LedgerError):
                self.ledger.move(group, to)

    @rule(group=consumes(groups))
    def forget(self, group):
        """Stop driving a group; it must stay where it is."""

    @invariant()
    def counts_agree(self):
        counts = self.ledger.counts()
        for state in GroupState:
            assert getattr(counts, state.value) == sum(s == state.value for s in self.model.values())
        assert counts.issued == len(self.model)


TestLedger = LedgerMachine.TestCase


def test_unknown_group_is_named():
    with pytest.raises(LedgerError, match="group 7 was never issued"):
        Ledger().move(7, GroupState.COMMITTED)


def test_ended_group_cannot_be_handed_in_again():
    ledger = Ledger()
    group = ledger.issue()
    ledger.move(group, GroupState.FAILED, "infrastructure: engine died")
    with pytest.raises(LedgerError, match="has ended"):
        ledger.move(group, GroupState.COMMITTED)
    assert ledger.counts().reasons == {"failed: infrastructure: engine died": 1}
