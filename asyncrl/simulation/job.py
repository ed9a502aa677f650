"""Something that takes its time on the processor, longer where others use it too: a training step of the learner."""

from collections.abc import Callable
from functools import partial

from asyncrl.simulation.events import Events
from asyncrl.simulation.processor import Processor, Share


class Job:
    """One job after the other, of the same user of the processor.

    Args:
        cores: cores that it keeps busy; 0 where it computes on a device of its own.
        weight: its weight for each of them.
    """

    def __init__(self, events: Events, processor: Processor, cores: float, weight: float) -> None:
        self._events, self._processor = events, processor
        self._share = Share(cores, weight, self._speed_changed)
        self._left = self._since = 0.0
        self._speed = 1.0
        self._epoch = 0
        self._done: Callable[[], None] = lambda: None

    def start(self, seconds: float, done: Callable[[], None]) -> None:
        """Take ``seconds`` of the processor's full speed, and then call ``done``."""
        self._left, self._since, self._speed, self._done = seconds, self._events.now, self._share.speed, done
        if self._share.wants > 0:
            self._processor.use(self._share)
        self._plan()

    def _speed_changed(self, speed: float) -> None:
        self._left -= (self._events.now - self._since) * self._speed
        self._since, self._speed = self._events.now, speed
        self._plan()

    def _plan(self) -> None:
        self._epoch += 1
        self._events.after(max(0.0, self._left) / self._speed, partial(self._end, self._epoch))

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._epoch += 1
        self._processor.leave(self._share)
        self._done()
