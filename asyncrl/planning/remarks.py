"""Remarks on several points of a plan, or settings of a sweep: each once, with how many of them it is about."""

import re
from collections.abc import Iterable, Iterator

from asyncrl.core.text import pluralize

_NUMBER = re.compile(r"[\d,.]*\d")


def gathered(remarks: Iterable[tuple[str, str]], count: int, thing: str) -> Iterator[str]:
    """Yield the remarks; of those that differ in numbers alone, the first.

    Args:
        remarks: the name of a thing, and a remark on it.
        count: how many things there are; what holds for all of them names none.
        thing: what they are called, such as ``setting``.
    """
    about: dict[str, list[tuple[str, str]]] = {}
    for name, remark in remarks:
        about.setdefault(_NUMBER.sub("#", remark), []).append((name, remark))
    for alike in about.values():
        (name, remark), *others = alike
        if len(alike) == count and all(text == remark for _, text in others):
            yield remark
        else:
            yield f"{name}: {remark}" + (f" (and of {pluralize(len(others), f'other {thing}')})" if others else "")
