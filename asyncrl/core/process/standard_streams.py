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
    """Return a :func:`standard_stream` for a log: what is printed may be a model's text, so control characters are spelled out.

    It raises no error if the disk refuses to be written. Whoever prints is a tool or an environment, whose fault that is not: the
    output is lost, and the next that can be written says so.
    """
    binary = open(number, "wb", closefd=False)  # noqa: SIM115 - it lives as long as the process
    return _LoggedStream(binary, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class _LoggedStream(io.TextIOWrapper):
    _refused = ""

    def write(self, text: str) -> int:
        written = text.translate(_UNSEEN)
        try:
            if self._refused:
                super().flush()  # fails as long as the disk refuses
                written = f"[output is missing here: {self._refused}]\n{written}"
                self._refused = ""
            super().write(written)
        except OSError as error:
            self._refused = error.strerror or str(error)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._refused = error.strerror or str(error)
