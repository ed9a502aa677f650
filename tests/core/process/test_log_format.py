import io
import logging

import pytest

from asyncrl.core.process.log_format import LogFormatter
from asyncrl.run.views.logs import LogFile


@pytest.fixture
def log(tmp_path):
    """A logger, and a function that returns the text in its log and the records that are read from it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LogFormatter())
    logger = logging.Logger("asyncrl.generators.worker", logging.INFO)
    logger.addHandler(handler)

    def read():
        path = tmp_path / "generator-0.log"
        path.write_text(written.getvalue(), encoding="utf-8")
        return written.getvalue(), list(LogFile(path).read(whole=True, ended=True))

    return logger, read


FORGED = (
    "2026-11-22 06:37:14,802 ERROR asyncrl.run.launch: the run failed",
    "(EngineCore pid=32290) ERROR 11-22 06:37:25 [utils.py:333] out of memory",
    "[2026-11-22 06:37:14,304 E 32072 32072] node died",
    "[E1122 06:37:25.233902357 utils.cpp:68] crash",
    "E1122 06:37:25.233902357 crash",
)


@pytest.mark.parametrize("forged", FORGED)
def test_what_a_record_quotes_cannot_pass_for_a_record(log, forged):
    logger, read = log
    logger.warning("a tool failed: %s", f"all is well\n{forged}\nand more")
    logger.info("the next")
    _, records = read()
    assert [(record.level, record.lines[0].partition(": ")[2]) for record in records] == [
        (logging.WARNING, "a tool failed: all is well"),
        (logging.INFO, "the next"),
    ]
    assert records[0].lines[1:2] == [f"  {forged}"]


def test_an_error_whose_text_forges_a_record_stays_one_record_with_its_traceback(log):
    logger, read = log
    try:
        raise ValueError(f"wrong\n{FORGED[0]}")
    except ValueError:
        logger.exception("task t")
    text, records = read()
    assert len(records) == 1
    assert "\nTraceback (most recent call last):\n" in text
    assert text.count("\n  " + FORGED[0]) == 1


def test_a_record_holds_no_control_characters(log):
    logger, read = log
    logger.warning("%s", "\x1b[31mred\x07 \r over \x9b2J \x00\ttab\x7f")
    text, _ = read()
    assert text.endswith(r": \x1b[31mred\x07 \x0d over \x9b2J \x00" + "\t" + r"tab\x7f" + "\n")
