"""Cores are divided by weight, and nobody gets more than it wants."""

import pytest

from asyncrl.simulation.processor import Processor, Share


def speeds(cores: float, others: float, wanted: list[tuple[float, float]]) -> list[float]:
    processor = Processor(cores, others, lambda: 0.0)
    shares = [Share(wants, weight, lambda speed: None) for wants, weight in wanted]
    for share in shares:
        processor.use(share)
    return [share.speed for share in shares]


@pytest.mark.parametrize(
    ("cores", "others", "wanted", "expected"),
    [
        (4, 0, [(1, 1), (2, 1)], [1, 1]),
        (2, 0, [(1, 1), (1, 1), (2, 1)], [0.5, 0.5, 0.5]),
        (2, 0, [(1, 1), (1, 1), (1, 4)], [0.5, 0.5, 1]),
        (2, 1, [(1, 3), (1, 1)], [0.75, 0.25]),
        (0, 0, [(8, 1), (8, 1)], [1, 1]),
    ],
)
def test_cores_are_divided(cores: float, others: float, wanted: list[tuple[float, float]], expected: list[float]):
    assert speeds(cores, others, wanted) == pytest.approx(expected)


def test_what_others_leave_is_used_and_counted():
    now = [0.0]
    processor = Processor(2, 0.5, lambda: now[0])
    told = []
    one, other = Share(1, 1, told.append), Share(1, 1, lambda speed: None)
    processor.use(one)
    now[0] = 10.0
    processor.use(other)
    now[0] = 20.0
    processor.leave(other)
    now[0] = 30.0
    assert told == [0.75, 1.0]
    assert processor.core_seconds == pytest.approx(10 * 1.5 + 10 * 2.0 + 10 * 1.5)
