"""Remarks on settings, each told once."""

import msgspec
import pytest
from made_predictions import made_prediction
from made_sweep import made_sweep

from asyncrl.sweeps.remarks import gathered, notes_of


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
    assert list(gathered(remarks, 2)) == told


def test_notes_are_those_of_the_settings_that_are_foreseen():
    first, second = made_sweep().settings
    foreseen = msgspec.structs.replace(made_prediction(5.0, 1.0), notes=("extrapolated from 32",))
    assert notes_of([msgspec.structs.replace(first, foreseen=foreseen), second]) == ["extrapolated from 32"]
