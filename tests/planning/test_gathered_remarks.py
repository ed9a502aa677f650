"""Remarks on points or settings, each told once."""

import pytest

from asyncrl.planning.remarks import gathered


@pytest.mark.parametrize(
    ("remarks", "told"),
    [
        ([("a", "slow"), ("b", "slow")], ["slow"]),
        ([("a", "slow")], ["a: slow"]),
        ([("a", "takes 3 GiB"), ("b", "takes 4 GiB")], ["a: takes 3 GiB (and of 1 other setting)"]),
        ([("b", "slow"), ("a", "stale"), ("b", "stale")], ["b: slow", "stale"]),
        ([], []),
    ],
)
def test_what_is_said_of_several_settings_is_said_once(remarks, told):
    assert list(gathered(remarks, 2, "setting")) == told
