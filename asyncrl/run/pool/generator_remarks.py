"""Shows the user what generators report beside their counters: remarks, who blocks them, and errors of the environments' code."""

from collections.abc import Callable, Sequence

from asyncrl.core.ids import WorkerId
from asyncrl.core.plug_ins.error_counts import CountedError
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.generators.worker import GeneratorStatistics

ERRORS_SHOWN = 10
"""How many errors of the environments' code are shown with their tracebacks; the log and the counters have all."""


class GeneratorRemarks:
    """Shows each remark of a run once, whichever generator makes it first.

    Args:
        note: shows a line to the user.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._shown: set[str] = set()
        self._shown_errors: set[tuple[str, str, int, str]] = set()

    def tell(self, worker: WorkerId, statistics: GeneratorStatistics) -> None:
        """Show what is new in the statistics of a generator."""
        for sentence in statistics.blocked_by + statistics.remarks:
            if sentence not in self._shown:
                self._shown.add(sentence)
                self._note(f"{worker}: {sentence}")
        self._tell_errors(statistics.errors)

    def _tell_errors(self, errors: Sequence[CountedError]) -> None:
        """Show the first error of each kind and place with its traceback."""
        for error in errors:
            place = (error.method, error.file, error.line, error.kind)
            if place not in self._shown_errors and len(self._shown_errors) < ERRORS_SHOWN:
                self._shown_errors.add(place)
                self._note(f"{error.example}: {UsersError.__str__(error)}\n{error.traceback}".rstrip())
