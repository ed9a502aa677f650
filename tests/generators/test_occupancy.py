from hypothesis import given
from hypothesis import strategies as st

from generators.occupancy import Occupancy


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "pause"]), st.integers(0, 5))))
def test_time_splits_into_busy_and_idle(events: list[tuple[str, int]]) -> None:
    now = 0
    occupancy = Occupancy(lambda: float(now))
    running, idle, pauses, requests = 0, 0, 0, 0
    for event, seconds in events:
        if event == "leave" and not running:
            continue
        now += seconds
        idle += seconds if event == "pause" or not running else 0
        requests += running * seconds
        if event == "pause":
            occupancy.paused_for(float(seconds))
            pauses += seconds
        else:
            getattr(occupancy, event)()
            running += {"enter": 1, "leave": -1}[event]
    assert (occupancy.wall_seconds, occupancy.idle_seconds) == (now, idle)
    assert (occupancy.paused_seconds, occupancy.request_seconds) == (pauses, requests)
    assert occupancy.running == running
