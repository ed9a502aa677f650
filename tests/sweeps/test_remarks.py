"""Notes of predictions, each told once."""

import msgspec
from made_predictions import made_prediction
from made_sweep import made_sweep

from asyncrl.sweeps.remarks import notes_of


def test_notes_are_those_of_the_settings_that_are_foreseen():
    first, second = made_sweep().settings
    foreseen = msgspec.structs.replace(made_prediction(5.0, 1.0), notes=("extrapolated from 32",))
    assert notes_of([msgspec.structs.replace(first, foreseen=foreseen), second]) == ["extrapolated from 32"]
