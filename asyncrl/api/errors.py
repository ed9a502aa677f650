"""The errors of runs, evaluations and sweeps that a program started."""

from pathlib import Path

from asyncrl.core.errors import AsyncRLError


class RunFailed(AsyncRLError):
    """A run or an evaluation failed, or runs of a sweep did not complete.

    Attributes:
        folder: what it left behind; see ``logs`` there.
        reason: why it failed.
    """

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(f"{reason}; see {folder}")


class RunInterrupted(AsyncRLError):
    """A run, an evaluation or a sweep was stopped by a signal that was not meant for this program.

    An interrupt of this program, with Ctrl-C or by a notebook's button, ends the run too, and is raised as
    ``KeyboardInterrupt``.

    Attributes:
        folder: what it left behind.
        reason: what stopped it.
    """

    def __init__(self, folder: Path, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(f"{reason}; see {folder}")


class NotThere(AsyncRLError):
    """A run does not have, or does not have yet, what is asked of it."""
