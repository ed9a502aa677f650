"""Ends a run before its recipe's last training step, as if the recipe had fewer."""

from collections.abc import Callable


class EarlyEnd:
    """Says whether the training step under way is the run's last.

    Args:
        note: shows a line to the user.

    Attributes:
        reason: who wants that, or why; None while nobody does.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self.reason: str | None = None
        self._note = note

    def ask(self, reason: str, *, trains: bool) -> None:
        """Have the step under way, or the first one if none is, be the last; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._note(f"The run ends after {'this' if trains else 'one'} training step: {reason}")
