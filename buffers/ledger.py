"""The ledger: every issued group is in exactly one state, and the states always add up to what was issued.

The invariant ``issued == sum(counts)`` is checked after every operation in constant time: counters move, nothing is scanned.
Terminal groups (trained, filtered, expired, failed) leave the ledger's memory and stay in its counters.
"""

from collections import Counter
from enum import StrEnum

import msgspec

from asyncrl.core.errors import LedgerError
from asyncrl.core.ids import GroupId


class GroupState(StrEnum):
    """Where a group is."""

    RUNNING = "running"
    COMMITTED = "committed"
    TAKEN = "taken"
    TRAINED = "trained"
    FILTERED = "filtered"
    EXPIRED = "expired"
    FAILED = "failed"


_NEXT_STATES = {
    GroupState.RUNNING: {GroupState.COMMITTED, GroupState.FILTERED, GroupState.EXPIRED, GroupState.FAILED},
    GroupState.COMMITTED: {GroupState.TAKEN, GroupState.FILTERED, GroupState.EXPIRED},
    GroupState.TAKEN: {GroupState.TRAINED},
}
"""States that are no key here are terminal."""


class LedgerCounts(msgspec.Struct, frozen=True):
    """How many groups are in each state; ``issued`` is their sum. ``reasons`` counts why groups left without being trained."""

    issued: int
    running: int
    committed: int
    taken: int
    trained: int
    filtered: int
    expired: int
    failed: int
    reasons: dict[str, int]


class Ledger:
    """Exactly-once accounting of groups."""

    def __init__(self) -> None:
        self._issued = 0
        self._live: dict[GroupId, GroupState] = {}
        self._counts = dict.fromkeys(GroupState, 0)
        self._reasons: Counter[str] = Counter()

    def issue(self) -> GroupId:
        """A new group, running."""
        group_id = GroupId(self._issued)
        self._issued += 1
        self._live[group_id] = GroupState.RUNNING
        self._counts[GroupState.RUNNING] += 1
        self._check()
        return group_id

    def move(self, group_id: GroupId, to: GroupState, why: str = "") -> None:
        """Move a live group on.

        Raises:
            LedgerError: the group is not live, or its state does not allow the move.
        """
        state = self.state(group_id)
        if to not in _NEXT_STATES[state]:
            raise LedgerError(f"group {group_id} is {state} and cannot become {to}; allowed: {sorted(_NEXT_STATES[state])}")
        self._counts[state] -= 1
        self._counts[to] += 1
        if to in _NEXT_STATES:
            self._live[group_id] = to
        else:
            del self._live[group_id]
        if why:
            self._reasons[f"{to}: {why}"] += 1
        self._check()

    def state(self, group_id: GroupId) -> GroupState:
        """State of a live group.

        Raises:
            LedgerError: never issued, or already in a terminal state.
        """
        state = self._live.get(group_id)
        if state is None:
            known = "has ended" if 0 <= group_id < self._issued else "was never issued"
            raise LedgerError(f"group {group_id} {known}; it cannot be moved or handed in again")
        return state

    def count(self, state: GroupState) -> int:
        """Groups in ``state``."""
        return self._counts[state]

    def counts(self) -> LedgerCounts:
        """All counters."""
        by_state = {state.value: count for state, count in self._counts.items()}
        return msgspec.convert({"issued": self._issued, "reasons": self._reasons, **by_state}, LedgerCounts)

    def _check(self) -> None:
        if sum(self._counts.values()) != self._issued:
            raise LedgerError(f"{self._issued} groups issued, {self._counts} accounted for; this is a bug in the buffer")
