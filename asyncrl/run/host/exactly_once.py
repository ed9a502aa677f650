"""Makes each call of an actor once, although Ray delivers it again if the connection broke before the answer was back.

What always holds: a call with a number that was made before has the same outcome and no effect, as long as fewer than
:data:`KEPT` others have been made since. The caller gives each call a number of its own.
"""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

KEPT = 32
"""Outcomes that are kept: more than calls that one caller ever has under way at once."""


class ExactlyOnce:
    """Remembers the outcomes of calls. Calls must be made one at a time."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[int, Future[Any]] = OrderedDict()

    def do(self, number: int, work: Callable[[], Any]) -> Any:
        """Do ``work``, unless call ``number`` was made before; returns what it returned then, or raises what it raised."""
        if number not in self._outcomes:
            self._outcomes[number] = outcome = Future[Any]()
            try:
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001 - raised below, however often it is asked for
                outcome.set_exception(error)
            if len(self._outcomes) > KEPT:
                self._outcomes.popitem(last=False)
        return self._outcomes[number].result()
