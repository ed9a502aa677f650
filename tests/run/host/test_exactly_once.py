"""A call that Ray delivers again, because its connection broke, is not made again."""

import pytest

from asyncrl.run.host.exactly_once import KEPT, ExactlyOnce


def test_a_call_that_comes_again_has_its_first_outcome_and_no_effect() -> None:
    once, made = ExactlyOnce(), list[str]()

    def work(name: str) -> int:
        made.append(name)
        if name == "bad":
            raise ValueError(name)
        return len(made)

    assert [once.do(0, lambda: work("first")), once.do(1, lambda: work("second"))] == [1, 2]
    assert [once.do(number, lambda: work("again")) for number in (0, 1, 0)] == [1, 2, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            once.do(2, lambda: work("bad"))
    assert made == ["first", "second", "bad"]


def test_only_the_last_outcomes_are_kept() -> None:
    once, made = ExactlyOnce(), list[int]()
    for number in range(2 * KEPT):
        once.do(number, lambda number=number: made.append(number))
    for number in range(KEPT, 2 * KEPT):
        once.do(number, lambda number=number: made.append(number))
    assert made == list(range(2 * KEPT))
    once.do(0, lambda: made.append(0))
    assert made[-1] == 0
