"""Standard output and error of a process, which stay open when some code closes the stream."""

import io
from typing import TextIO

from asyncrl.core.process.log_format import UNSEEN

_UNSEEN = {code: shown for code, shown in UNSEEN.items() if chr(code) != "\r"}
"""Progress bars return to the beginning of their line."""


def standard_stream(number: int) -> TextIO:
    """Return a text stream that writes to descriptor ``number``. The descriptor stays open when the stream is closed."""
    return open(number, "w", buffering=1, errors="backslashreplace", closefd=False)


def logged_stream(number: int) -> TextIO:
    """Return a :func:`standard_stream` that spells control characters out, for a log: what is printed may be a model's text."""
    binary = open(number, "wb", closefd=False)  # noqa: SIM115 - it lives as long as the process
    return _WithoutControls(binary, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class _WithoutControls(io.TextIOWrapper):
    def write(self, text: str) -> int:
        super().write(text.translate(_UNSEEN))
        return len(text)
