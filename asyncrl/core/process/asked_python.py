"""Asks a Python process of its own, which answers by the last line of its standard output, as JSON: libraries print, too."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.text import short

T = TypeVar("T")


def ask_python(answer: type[T], arguments: Sequence[str], seconds: float, request: bytes = b"", **variables: str) -> T:
    """Run ``python -P ARGUMENTS``, and return its answer.

    Args:
        answer: the type of the answer.
        request: its standard input.
        variables: environment variables beside those of this process.

    Raises:
        TimeoutError: it took longer than ``seconds``.
        ComponentFailed: it failed, with the last line of its errors, or its last line is no answer.
    """
    command, environment = [sys.executable, "-P", *arguments], os.environ | variables
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=seconds, check=False, env=environment)
    except subprocess.TimeoutExpired as late:
        raise TimeoutError from late
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise ComponentFailed((errors or [f"exit code {done.returncode}"])[-1])
    return last_line(done.stdout, answer)


def last_line(output: bytes, answer: type[T]) -> T:
    """Read the answer from all that a process wrote.

    Raises:
        ComponentFailed: its last line is none.
    """
    lines = output.splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=answer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        wrote = f"{short(lines[-1].decode(errors='replace'))} last" if lines else "nothing"
        raise ComponentFailed(f"it ended without an answer, and wrote {wrote}") from error
