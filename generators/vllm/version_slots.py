"""Which policy versions an engine holds, each in a slot of its own, and how many episodes sample from each slot.

An engine with whole weights has one slot. With adapters it can have one for each version that the staleness bound admits. What
always holds: a new version takes the place of one that is at least as many versions older as there are slots, and of one that no
episode uses if there is such a one. So an episode keeps its version for as long as the bound admits tokens of it. After that, it
goes on with the version that has taken the place, as all episodes do where there is one slot.
"""

from asyncrl.core.ids import PolicyVersion

_SEPARATOR = ","
_INITIAL = "default"
"""vLLM's label of the weights that an engine began with."""


class VersionSlots:
    """The slots of one engine. Slot 0 begins with version 0, the others are empty.

    Attributes:
        newest: the slot of the newest version, with which new episodes begin.
    """

    def __init__(self, slots: int) -> None:
        self._versions: list[PolicyVersion | None] = [PolicyVersion(0), *[None] * (slots - 1)]
        self._episodes = [0] * slots
        self.newest = 0

    def version(self, slot: int) -> PolicyVersion:
        """Return the version in a slot that is not empty."""
        version = self._versions[slot]
        if version is None:
            raise ValueError(f"slot {slot} of {len(self._versions)} is empty")
        return version

    def enter(self) -> int:
        """Note that an episode begins; returns its slot."""
        self._episodes[self.newest] += 1
        return self.newest

    def leave(self, slot: int) -> None:
        """Note that an episode of ``slot`` has ended."""
        self._episodes[slot] -= 1

    def place(self, version: PolicyVersion) -> int:
        """Return the slot for a new version: that which has it already, else an empty one, else one that is to be replaced."""
        slots = range(len(self._versions))
        for wanted in (version, None):
            if wanted in self._versions:
                return self._versions.index(wanted)
        expired = [slot for slot in slots if self.version(slot) <= version - len(self._versions)]
        return min(expired or slots, key=lambda slot: (self._episodes[slot] > 0, self.version(slot)))

    def label_with(self, slot: int, version: PolicyVersion) -> str:
        """Return the label of all slots with ``version`` in ``slot``; vLLM reports it with each token."""
        versions = [version if other == slot else held for other, held in enumerate(self._versions)]
        return _SEPARATOR.join("" if held is None else str(held) for held in versions)

    def hold(self, slot: int, version: PolicyVersion) -> None:
        """Note that ``slot`` has ``version`` from now on, which is the newest."""
        self._versions[slot] = version
        self.newest = slot


def version_in(label: str, slot: int) -> PolicyVersion:
    """Return the version that ``slot`` had when vLLM reported ``label``."""
    return PolicyVersion(0) if label == _INITIAL else PolicyVersion(int(label.split(_SEPARATOR)[slot]))
