"""Names that users choose (of task sources, metrics, tools, options) in names of metrics and parameters: made safe, and bounded.

MLflow takes letters, digits and a few other characters, and a tracker drowns in thousands of curves. So a name that holds
anything else is respelt, and only the most frequent names of a kind have curves of their own.
"""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from asyncrl.core.measures.counters import added
from asyncrl.generators.finished_episodes import OTHER

LONGEST = 60
"""Most characters of a name."""

LONGEST_PARAMETER = 250
"""Most characters of the name of a parameter or of a metric, as MLflow has it."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_TAKEN = re.compile(r"[\w :.-]+")
"""What MLflow takes as a part of a metric's name."""

Counts = TypeVar("Counts")


def safe_name(name: str) -> str:
    """Return ``name`` as a part of a metric's name: letters, digits, ``_``, ``.`` and ``-``, at most :data:`LONGEST` of them.

    A name that had to be changed ends in a checksum, so that two names which become alike stay two.
    """
    safe = _UNSAFE.sub("_", name).strip(".")
    if name and safe == name and len(name) <= LONGEST:
        return name
    checksum = f"{zlib.crc32(name.encode()):08x}"
    return f"{safe[: LONGEST - len(checksum) - 1]}-{checksum}" if safe else checksum


def parameter_name(key: str) -> str:
    """Return the dotted key of a recipe as the name of a parameter that MLflow takes: each part of it is a :func:`safe_name`."""
    name = ".".join(map(safe_name, key.split(".")))
    if len(name) <= LONGEST_PARAMETER:
        return name
    return f"{name[: LONGEST_PARAMETER - 9]}-{zlib.crc32(key.encode()):08x}"


def metric_name(path: str) -> str:
    """Return the name of a metric, whose parts ``/`` divides, as MLflow takes it.

    Of one that it does not take, such as ``pass@4``, each part is a :func:`safe_name`.
    """
    parts = path.split("/")
    if len(path) <= LONGEST_PARAMETER and all(_TAKEN.fullmatch(part) and part.strip(".") for part in parts):
        return path
    name = "/".join(map(safe_name, parts))
    return name if len(name) <= LONGEST_PARAMETER else f"{name[: LONGEST_PARAMETER - 9]}-{zlib.crc32(path.encode()):08x}"


class FrequentNames:
    """Chooses the names of one kind that have curves of their own: the most frequent since the run began or was resumed.

    Attributes:
        folded: whether some name had no curve of its own.

    Args:
        most: how many names have curves.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: Counter[str] = Counter()
        self.folded = False

    def fold(self, counts: Mapping[str, Counts], size: Callable[[Counts], int]) -> dict[str, Counts]:
        """Return the counts of a training step under safe names, those of all less frequent names together as :data:`OTHER`.

        Args:
            counts: the counters since the last training step, by name.
            size: how often a name occurred, given its counts. Names that did not occur are left out.
        """
        new = {name: count for name, count in counts.items() if size(count)}
        self._seen.update({name: size(count) for name, count in new.items() if name != OTHER})
        # Of equally frequent names, those that come first in the alphabet are kept, so that curves do not come and go.
        frequent = set(sorted(self._seen, key=lambda name: (-self._seen[name], name))[: self._most])
        folded: dict[str, Counts] = {}
        for name, count in new.items():
            shown = safe_name(name) if name in frequent else OTHER
            folded[shown] = added(folded[shown], count) if shown in folded else count
        self.folded |= OTHER in folded
        return folded
