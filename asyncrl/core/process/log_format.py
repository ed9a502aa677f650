"""The format of our own lines in logs, which quote what models, tools and servers wrote.

What always holds: a record has no control character but line feed and tab, so that a log can be shown on a terminal as it is; and
no line of it but the first looks like the beginning of a record, whatever it quotes.
"""

import logging
import re

UNSEEN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What is written for each control character."""
_LIKE_A_RECORD = re.compile(
    r"^(?=(?:\([^)\n]*pid=\d+\) )?(?:\[?\d{4}-\d\d-\d\d |\[?[DIWEFC]\d{4} |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ))", re.MULTILINE
)
"""Where a line begins as those of this format, of vLLM's or of C++ libraries do; see :mod:`asyncrl.run.views.logs`."""


class LogFormatter(logging.Formatter):
    """Time, level, logger and message of a record, then its traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record; the further lines of a message of several are indented."""
        return super().formatMessage(record).replace("\n", "\n  ")

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        first, line_feed, rest = super().format(record).translate(UNSEEN).partition("\n")
        return f"{first}{line_feed}{_LIKE_A_RECORD.sub('  ', rest)}"


def log_to(handler: logging.Handler) -> None:
    """Send all logging of this process, from INFO on, to ``handler`` alone."""
    handler.setFormatter(LogFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
