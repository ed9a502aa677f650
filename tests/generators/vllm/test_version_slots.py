"""An engine's slots, under any order of episodes and versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.ids import PolicyVersion
from asyncrl.generators.vllm.version_slots import VersionSlots, version_in

BEGIN, END = "begin", "end"
STEPS = st.lists(st.one_of(st.just(BEGIN), st.tuples(st.just(END), st.integers(0, 99)), st.integers(1, 3)), max_size=60)
"""An episode begins, one of those that run ends, or a version comes that many after the last: a late engine skips some."""


@given(st.integers(1, 4), STEPS)
def test_an_episode_keeps_its_version_for_as_long_as_the_bound_admits_it(slots, steps):
    held = VersionSlots(slots)
    newest = PolicyVersion(0)
    running: list[tuple[int, PolicyVersion]] = []
    for step in steps:
        match step:
            case "begin":
                slot = held.enter()
                assert held.version(slot) == newest
                running.append((slot, newest))
            case (_, number):
                if running:
                    held.leave(running.pop(number % len(running))[0])
            case int():
                before = {slot: held.version(slot) for slot, _ in running}
                version = PolicyVersion(newest + step)
                slot, label = held.place(version), held.label_with(held.place(version), version)
                if slot in before:
                    assert before[slot] <= version - slots
                held.hold(slot, version)
                newest = version
                assert held.newest == slot
                for each, _ in running:
                    assert version_in(label, each) == held.version(each) == (version if each == slot else before[each])
        assert all(held.version(slot) == began for slot, began in running if began > newest - slots)


def test_a_version_that_no_episode_uses_is_replaced_first():
    """Slots hold 0, 1 and 2; of 0 and 1, which version 4 puts out of bounds, an episode uses 0."""
    held = VersionSlots(3)
    held.enter()
    for version in (1, 2):
        held.hold(held.place(PolicyVersion(version)), PolicyVersion(version))
    assert held.label_with(held.place(PolicyVersion(4)), PolicyVersion(4)) == "0,4,2"


def test_a_version_delivered_again_goes_where_it_is():
    held = VersionSlots(2)
    held.hold(held.place(PolicyVersion(1)), PolicyVersion(1))
    assert held.place(PolicyVersion(1)) == 1


def test_an_empty_slot_has_no_version():
    held = VersionSlots(2)
    with pytest.raises(ValueError, match="slot 1 of 2 is empty"):
        held.version(1)
    assert held.label_with(0, PolicyVersion(3)) == "3,"
    assert version_in("default", 0) == 0
