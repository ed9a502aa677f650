"""The pipeline depth grows while both sides wait, and a smaller one is tried once they do not."""

import itertools

from asyncrl.core.measures.pacing import PATIENCE, SETTLING, WINDOW, Pacing


def play(pacing, steps, waits):
    """The depths after each of ``steps``, when at depth d both sides wait for a share of waits[d]."""
    depths = []
    for _ in range(steps):
        pacing.step(waits.get(pacing.depth, 0.0))
        depths.append(pacing.depth)
    return depths


def test_the_depth_grows_one_by_one_until_nobody_waits_twice():
    depths = play(Pacing(1, 8), 60, {1: 0.3, 2: 0.1, 3: 0.02})
    assert depths[-1] == 3
    assert {later - earlier for earlier, later in itertools.pairwise(depths)} == {0, 1}
    assert depths.index(2) == SETTLING + WINDOW - 1
    assert depths.index(3) - depths.index(2) == SETTLING + WINDOW


def test_the_depth_never_exceeds_what_the_recipe_allows():
    assert max(play(Pacing(1, 2), 100, dict.fromkeys(range(10), 0.5))) == 2
    assert play(Pacing(0, 0), 100, {0: 0.9}) == [0] * 100


def test_a_smaller_depth_is_tried_when_nobody_waits_and_never_the_synchronous_one():
    depths = play(Pacing(3, 8), 200, {})
    assert depths[-1] == 1
    assert depths.index(2) >= PATIENCE


def test_a_depth_that_did_not_do_is_tried_ever_more_rarely():
    pacing = Pacing(2, 8)
    depths = play(pacing, 800, {1: 0.3})
    tries = [step for step in range(1, 800) if depths[step] == 1 and depths[step - 1] == 2]
    between = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert len(tries) >= 4
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(between))


def test_little_waiting_changes_nothing():
    assert set(play(Pacing(2, 8), 300, {2: 0.03})) == {2}


def test_a_change_is_told_with_its_reason():
    pacing = Pacing(1, 4)
    for _ in range(SETTLING + WINDOW):
        changed = pacing.step(0.25)
    assert changed
    assert pacing.reason == "learner and engines both waited, for 25 % of the last 4 training steps"
