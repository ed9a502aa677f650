"""The cores that engines and learner share on a machine without devices of their own: who gets how much of them.

Everybody wants a number of cores and has a weight. As Linux's scheduler does, cores are divided by weight, nobody gets more than
it wants, and what is left is divided among the others.
"""

from collections.abc import Callable

import msgspec


class Share(msgspec.Struct):
    """One user of the cores.

    Attributes:
        wants: cores that it would keep busy.
        weight: its weight for each core that it wants.
        changed: called with its new speed, of at most 1, whenever that changes.
    """

    wants: float
    weight: float
    changed: Callable[[float], None]
    speed: float = 1.0


class Processor:
    """Cores, and who uses them now.

    Args:
        cores: how many there are; 0 for as many as anybody wants.
        others: how many of them other processes keep busy all the time.
        clock: returns the time in seconds.
    """

    def __init__(self, cores: float, others: float, clock: Callable[[], float]) -> None:
        self._cores, self._others, self._clock = cores, min(others, 0.9 * cores), clock
        self._using: dict[int, Share] = {}
        self._settled_at = self._busy = self._busy_now = 0.0

    @property
    def core_seconds(self) -> float:
        """Seconds for which cores were busy so far, summed over cores; 0 where they are not modelled."""
        now = self._clock()
        self._busy += (now - self._settled_at) * self._busy_now
        self._settled_at = now
        return self._busy

    def use(self, share: Share) -> None:
        """Have ``share`` use the cores from now on, until :meth:`leave`; its speed is that of its last change."""
        if self._cores:
            self._using[id(share)] = share
            self._divide()

    def leave(self, share: Share) -> None:
        """Have ``share`` use the cores no more."""
        if self._using.pop(id(share), None) is not None:
            self._divide()

    def _divide(self) -> None:
        before = self.core_seconds
        left, hungry = self._cores - self._others, list(self._using.values())
        speeds: dict[int, float] = {}
        while hungry:
            each = left / sum(share.wants * share.weight for share in hungry)
            full = [share for share in hungry if each * share.weight >= 1]
            if not full:
                speeds |= {id(share): each * share.weight for share in hungry}
                break
            for share in full:
                speeds[id(share)] = 1.0
                left -= share.wants
            hungry = [share for share in hungry if id(share) not in speeds]
        self._busy = before
        self._busy_now = self._others + sum(share.wants * speeds[id(share)] for share in self._using.values())
        for share in list(self._using.values()):
            if share.speed != speeds[id(share)]:
                share.speed = speeds[id(share)]
                share.changed(share.speed)
