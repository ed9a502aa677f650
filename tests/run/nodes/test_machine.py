"""Which share of its cores a run is said to keep busy where its control groups allow less."""

import pytest

from asyncrl.run.nodes import machine


@pytest.mark.parametrize(("used", "share"), [((2.0, 2.5), 0.5), ((2.0, 9.0), 1.0), ((2.0, 0.5), 0.0)])
def test_the_busy_share_is_one_even_when_another_group_s_limit_holds_now(
    monkeypatch: pytest.MonkeyPatch, used: tuple[float, float], share: float
) -> None:
    times, clock = iter(used), iter((10.0, 12.0))
    monkeypatch.setattr(machine, "used_processor_time", lambda: next(times))
    monkeypatch.setattr(machine, "cores_of_group", lambda: 0.5)
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock, 12.0))
    assert machine.BusyCores().since_last() == share
