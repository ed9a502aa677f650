"""A real file system of any size, mounted for one test."""

import shutil
import subprocess
from contextlib import contextmanager

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
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            file.truncate(max(0, file.tell() // 4096 * 4096 - leave))
    try:
        yield
    finally:
        ballast.unlink()
