"""Asks a Python process of its own, which answers by the last line of its standard output: libraries print, too."""

import os
import subprocess
import sys
from collections.abc import Sequence

from asyncrl.core.errors import ComponentFailed


def ask_python(arguments: Sequence[str], seconds: float, request: bytes = b"", **variables: str) -> bytes:
    """Run ``python -P ARGUMENTS``, and return its answer.

    Args:
        request: its standard input.
        variables: environment variables beside those of this process.

    Raises:
        TimeoutError: it took longer than ``seconds``.
        ComponentFailed: it failed; the text is the last line of its errors.
    """
    command, environment = [sys.executable, "-P", *arguments], os.environ | variables
    try:
        done = subprocess.run(command, input=request, capture_output=True, timeout=seconds, check=False, env=environment)
    except subprocess.TimeoutExpired as late:
        raise TimeoutError from late
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise ComponentFailed((errors or [f"exit code {done.returncode}"])[-1])
    return (done.stdout.splitlines() or [b""])[-1]
