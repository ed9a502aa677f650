"""What the predictions of a sweep's settings note, each once, with how many settings it is about."""

from collections.abc import Sequence

from asyncrl.planning.remarks import gathered
from asyncrl.sweeps.sweep import Setting


def notes_of(settings: Sequence[Setting]) -> list[str]:
    """The notes of all predictions."""
    notes = ((setting.name, note) for setting in settings if setting.foreseen is not None for note in setting.foreseen.notes)
    return list(gathered(notes, sum(setting.foreseen is not None for setting in settings), "setting"))
