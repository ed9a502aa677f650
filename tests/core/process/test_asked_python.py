"""A Python process that is asked answers by its last line, and its failure is told by its last error."""

import pytest

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.process.asked_python import ask_python


def test_the_last_line_is_the_answer():
    code = "import json, os, sys; print('a warning'); print(json.dumps([os.environ['SAID'], sys.stdin.read()]))"
    assert ask_python(list[str], ("-c", code), 60.0, b"there", SAID="who is") == ["who is", "there"]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os; os._exit(0)", "it ended without an answer, and wrote nothing"),
        ("print('[\"who\"]'); print('bye')", "it ended without an answer, and wrote 'bye' last"),
        ("print('[1]')", r"it ended without an answer, and wrote '\[1\]' last"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", "it ended without an answer, and wrote '\ufffd' last"),
    ],
)
def test_a_failure_is_told_by_the_last_error(code: str, told: str):
    with pytest.raises(ComponentFailed, match=f"^{told}$"):
        ask_python(list[str], ("-c", code), 60.0)


def test_a_process_that_is_late_is_ended():
    with pytest.raises(TimeoutError):
        ask_python(list[str], ("-c", "import threading; threading.Event().wait()"), 0.1)
