"""Which Python `make` sets up with."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def chosen(folder: Path, **interpreters: str) -> str:
    """The Python that make chooses where only these scripts and the system's commands are found."""
    folder.mkdir()
    for name, script in interpreters.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    for command in ("grep", "sh", "make", "echo"):
        found = next(Path(each) / command for each in os.defpath.split(":") if (Path(each) / command).exists())
        (folder / command).symlink_to(found)
    shown = ["make", "--no-print-directory", "--eval", "shown: ; @echo '$(PYTHON)'", "shown"]
    environment = {"PATH": str(folder), "HOME": str(folder)}
    done = subprocess.run(shown, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_the_newest_that_starts_and_is_supported(tmp_path):
    starts, shim, old = f'exec {sys.executable} "$@"', "echo command not found >&2; exit 127", "exit 1"
    assert chosen(tmp_path / "all", python3_13=starts, python3_12=starts, python3_11=starts) == "python3.13"
    assert chosen(tmp_path / "shim", python3_13=shim, python3_12=shim, python3_11=starts) == "python3.11"
    assert chosen(tmp_path / "plain", python3_13=shim, python3=starts) == "python3"
    assert chosen(tmp_path / "none", python3_11=shim, python3=old) == ""
