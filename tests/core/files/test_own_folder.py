"""A folder of ours at a path that others can guess."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from others_folders import file, link, of_another_user, writable

from asyncrl.core.files.own_folder import open_own_folder


def test_it_is_made_for_this_user_alone_and_opened_again(tmp_path: Path):
    path = tmp_path / "new" / "folder"
    for _ in range(2):
        folder = open_own_folder(path)
        assert os.path.samestat(os.fstat(folder), path.stat())
        os.close(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (link, r"folder is a link, and links are not followed"),
        (of_another_user, r"folder belongs to another user \(its number is 12345\)"),
        (writable, r"others may write to \S+folder, whose mode is 777"),
        (file, r"File exists: '\S+folder'"),
    ],
)
def test_what_others_may_have_made_is_refused(made: Callable[[Path], None], problem: str, tmp_path: Path):
    made(tmp_path / "folder")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=problem):
        open_own_folder(tmp_path / "folder")
    assert len(os.listdir("/proc/self/fd")) == before
