"""A worker's time is split into parts that add up to the whole."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.measures.time_split import PARTS
from asyncrl.generators.engine_time import Doing, EngineTime


class World:
    """A worker's time, with a clock and room that tests set."""

    def __init__(self, room: int = 0) -> None:
        self.now, self.room, self.paused_s = 0.0, room, 0.0
        self.time = EngineTime(lambda: self.room, lambda: self.now)

    def seconds(self, **parts: float) -> None:
        """The parts that are not 0 are these."""
        use = self.time.use()
        assert {part: getattr(use, part) for part in PARTS} == pytest.approx(dict.fromkeys(PARTS, 0.0) | parts)


EVENTS = st.lists(
    st.tuples(st.sampled_from([*Doing, "room", "leave", "pause"]), st.floats(0, 10), st.integers(0, 8)), max_size=40
)


@given(EVENTS)
def test_the_parts_add_up_to_the_whole_whatever_happens(events):
    world = World()
    entered: list[ExitStack] = []
    for what, seconds, number in events:
        world.now += seconds
        if what == "room":
            world.time.settle()
            world.room = number
        elif what == "leave" and entered:
            entered.pop(number % len(entered)).close()
        elif what == "pause":
            world.paused_s += seconds
        elif what is Doing.LOADING:
            entered.append(ExitStack())
            entered[-1].enter_context(world.time.loading_publication(lambda: world.paused_s))
        elif isinstance(what, Doing):
            entered.append(ExitStack())
            entered[-1].enter_context(world.time.doing(what))
        use = world.time.use()
        assert use.wall == pytest.approx(world.now)
        assert min(getattr(use, part) for part in PARTS) >= -1e-9


def test_time_of_requests_is_theirs_whatever_else_waits():
    world = World(room=5)
    doing = world.time.doing
    with doing(Doing.EPISODE), doing(Doing.EVALUATION), doing(Doing.EVALUATION_REQUEST):
        with doing(Doing.REQUEST), doing(Doing.REQUEST), doing(Doing.REQUEST):
            world.now += 4.0
        world.seconds(sampling=3.0, evaluating=1.0)


def test_time_without_requests_is_of_what_is_waited_for():
    world = World(room=2)
    doing = world.time.doing
    with doing(Doing.EPISODE), doing(Doing.SCORE):
        world.now += 4.0
    world.seconds(tools=1.0, scoring=1.0, tickets=2.0)
    world.time.settle()
    world.room = -3
    world.now += 1.0
    world.seconds(tools=1.0, scoring=1.0, tickets=2.0, nothing=1.0)


def test_a_pause_is_taken_from_the_time_of_its_loading():
    world = World()
    with world.time.doing(Doing.EPISODE), world.time.doing(Doing.REQUEST):
        world.now += 10.0
        with world.time.loading_publication(lambda: world.paused_s):
            world.now += 2.0
            world.paused_s = 0.5
    world.seconds(sampling=11.5, paused=0.5)


def test_room_that_waits_for_weights_does_not_wait_for_tickets():
    world = World(room=4)
    with world.time.loading_publication(lambda: world.paused_s):
        world.now += 3.0
    world.seconds(loading=3.0)


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "pause"]), st.integers(0, 5))))
def test_a_worker_is_idle_while_no_request_runs_or_its_engine_is_paused(events):
    world = World()
    entered: list[ExitStack] = []
    idle = requests = 0
    for event, seconds in events:
        if event == "leave" and not entered:
            continue
        idle += seconds if event == "pause" or not entered else 0
        requests += len(entered) * seconds
        with world.time.loading_publication(lambda: world.paused_s) if event == "pause" else ExitStack():
            world.now += seconds
            world.paused_s += seconds if event == "pause" else 0
        if event == "enter":
            entered.append(ExitStack())
            entered[-1].enter_context(world.time.doing(Doing.REQUEST))
        elif event == "leave":
            entered.pop().close()
    use = world.time.use()
    assert use.wall == pytest.approx(world.now)
    assert use.idle * use.wall == pytest.approx(idle)
    assert use.requests == requests
