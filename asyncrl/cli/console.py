"""Terminals, pipes and files that cannot show everything, or stop reading: neither is a reason for a run to end."""

import io
import sys
from contextlib import suppress

from rich.console import Console


class PatientConsole(Console):
    """A console whose reader may go away, as ``head`` does: what is printed afterwards is lost, and nothing is raised."""

    def on_broken_pipe(self) -> None:
        """Be quiet from now on; rich would end the process with :class:`SystemExit`."""
        with suppress(SystemExit):
            super().on_broken_pipe()


def show_what_can_be_shown() -> None:
    """Have stdout and stderr show a question mark, or an escape, for characters that their encoding lacks (``·`` in ASCII)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
