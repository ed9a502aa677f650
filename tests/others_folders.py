"""What others may have put where a folder of ours shall be."""

import os
from pathlib import Path

import pytest


def link(path: Path) -> None:
    """A link to a folder."""
    behind = path.with_name("behind")
    behind.mkdir()
    path.symlink_to(behind)


def of_another_user(path: Path) -> None:
    """A folder of user 12345."""
    path.mkdir()
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    os.chown(path, 12345, 12345)


def writable(path: Path) -> None:
    """A folder that everybody may write to."""
    path.mkdir()
    path.chmod(0o777)


def file(path: Path) -> None:
    """A file."""
    path.write_text("")
