"""Consoles on terminals, pipes and files that cannot show everything or stop reading, which is no reason for a run to end."""

import io
import os
import sys

from rich.console import Console


class PatientConsole(Console):
    """A console that never raises: what cannot be written is lost.

    Attributes:
        failure: the first error that lost something; None if there was none, or if only the reader went away, as ``head`` does.
    """

    failure: OSError | None = None

    def on_broken_pipe(self) -> None:
        """Be quiet from now on; rich would end the process with :class:`SystemExit`."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            del self._buffer[:]
            self.failure = self.failure or not_shown(error)


def error_console() -> PatientConsole:
    """A console on standard error for sentences, which are not wrapped, so that they can be searched for."""
    return PatientConsole(stderr=True, soft_wrap=True, highlight=False)


def not_shown(error: OSError) -> OSError:
    """An error that says that ``error`` came from writing to standard output."""
    return OSError(error.errno, f"{error.strerror}; not everything could be shown", "standard output")


def show_what_can_be_shown() -> None:
    """Have stdout and stderr show a question mark, or an escape, for characters that their encoding lacks (``·`` in ASCII)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
