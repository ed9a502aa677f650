"""Wheels that a test reads or runs without installing them: fetched once by pip, and kept unpacked in the user's cache."""

import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

WHEELS = Path.home() / ".cache" / "asyncrl" / "wheels"
FETCHING_S = 120.0


def unpacked_wheel(requirement: str, python: str | None = None, *, compiled: bool = False) -> Path:
    """The folder of an unpacked wheel, e.g. of ``uv==0.13.9``; skips the test that asks if it cannot be fetched.

    Args:
        python: the Python that the wheel is for, if it is not the one that runs this.
        compiled: each Python has a wheel of its own.
    """
    target = WHEELS / (f"{requirement}-{sys.implementation.cache_tag}" if compiled else requirement)
    if target.is_dir():
        return target
    WHEELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WHEELS) as draft:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            *(["--python-version", python] if python else []),
            "--dest",
            draft,
            requirement,
        ]
        try:
            subprocess.run(command, check=True, timeout=FETCHING_S, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            pytest.skip(f"the wheel of {requirement} was not fetched within {FETCHING_S:.0f} s")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"the wheel of {requirement} cannot be fetched: {error.stderr.strip().splitlines()[-1:]}")
        (wheel,) = Path(draft).glob("*.whl")
        made = Path(draft) / "made"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(made)
        with suppress(OSError):  # another test was first
            made.rename(target)
    return target


def script_of(requirement: str, name: str) -> Path:
    """A program that a wheel brings, which may be run."""
    (script,) = unpacked_wheel(requirement).glob(f"*.data/scripts/{name}")
    script.chmod(0o755)  # which archives of zipfile's forget
    return script
