"""Tells the user which processes a run waits for while it starts."""

from collections.abc import Callable, Iterable

from asyncrl.core.text import first_few

NAMED = 3
"""How many of the processes that are waited for are named."""


class ComingUp:
    """The processes of a run that are not up yet, which are shown from the beginning.

    Args:
        names: what comes up, e.g. ``generator-0``.
        advance: shows a share in [0, 1] and a text, as :meth:`asyncrl.run.views.live_view.LiveView.advance` does.
    """

    def __init__(self, names: Iterable[str], advance: Callable[[float, str], None]) -> None:
        self._waited_for, self._advance = list(names), advance
        self._all = len(self._waited_for)
        self._show()

    def up(self, name: str) -> None:
        """Note that one is up, and show which are not."""
        self._waited_for.remove(name)
        self._show()

    def _show(self) -> None:
        if left := len(self._waited_for):
            self._advance(1 - left / self._all, f"waiting for {first_few(self._waited_for, NAMED)}")
