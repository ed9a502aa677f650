"""A real file system of any size, mounted for one test."""

import os
import shutil
import subprocess
from contextlib import contextmanager, suppress

import pytest


@contextmanager
def mounted(path, kind, options="defaults"):
    """``path`` as a file system of ``kind`` of its own."""
    path.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    done = subprocess.run(["mount", "-t", kind, "-o", options, kind, str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mounting a {kind} is not permitted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@contextmanager
def filled(folder, leave=0):
    """``folder``'s disk with a file on it that leaves only about ``leave`` bytes."""
    ballast = folder / "ballast"
    fill(ballast)
    os.truncate(ballast, max(0, ballast.stat().st_size // 4096 * 4096 - leave))
    try:
        yield ballast
    finally:
        ballast.unlink()


def fill(ballast):
    """Let the file grow until there is no room left."""
    with open(ballast, "ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
