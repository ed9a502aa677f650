"""Remarks on settings of a sweep, such as those of plans and of predictions: each once, with how many settings it is about."""

import re
from collections.abc import Iterable, Iterator, Sequence

from asyncrl.core.text import pluralize
from asyncrl.sweeps.sweep import Setting

_NUMBER = re.compile(r"[\d,.]*\d")


def gathered(remarks: Iterable[tuple[str, str]], settings: int) -> Iterator[str]:
    """Yield the remarks; of those that differ in numbers alone, the first.

    Args:
        remarks: the name of a setting, and a remark on it.
        settings: how many settings there are; what holds for all of them names none.
    """
    about: dict[str, list[tuple[str, str]]] = {}
    for name, remark in remarks:
        about.setdefault(_NUMBER.sub("#", remark), []).append((name, remark))
    for alike in about.values():
        (name, remark), *others = alike
        if len(alike) == settings and all(text == remark for _, text in others):
            yield remark
        else:
            yield f"{name}: {remark}" + (f" (and of {pluralize(len(others), 'other setting')})" if others else "")


def notes_of(settings: Sequence[Setting]) -> list[str]:
    """The notes of all predictions."""
    notes = ((setting.name, note) for setting in settings if setting.foreseen is not None for note in setting.foreseen.notes)
    return list(gathered(notes, sum(setting.foreseen is not None for setting in settings)))
