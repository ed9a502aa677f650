"""What standard output and standard error do with characters that a terminal lacks."""

import io
import sys


def show_what_can_be_shown() -> None:
    """Make stdout write a question mark, and stderr an escape, for a character that its encoding lacks (``·`` in ASCII)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
