import errno
from pathlib import Path

import pytest

from asyncrl.core.files.file_errors import cause_and_remedy, explained, naming

FAILING = Path("/proc/self/mem")
"""A file that can be opened and whose first byte cannot be read: a disk that fails answers the same."""


def test_a_disk_that_fails_while_a_file_is_read_is_told_with_the_file_and_a_remedy():
    with FAILING.open("rb", buffering=0) as file, pytest.raises(OSError, match="Input/output error") as caught, naming(FAILING):
        file.read(1)
    remedy = "the disk, or the connection to it, fails: see dmesg, and put the file on a sound one"
    assert explained(caught.value) == f"{FAILING}: Input/output error; {remedy}"
    assert cause_and_remedy(caught.value) == f"Input/output error; {remedy}"


def test_the_name_that_an_error_has_already_is_kept():
    with pytest.raises(FileNotFoundError) as caught, naming(FAILING):
        Path("/no/such/file").read_bytes()
    assert explained(caught.value) == "/no/such/file: No such file or directory"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/a"), "/a: No space left on device; make room there"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "Too many open files; allow this process more open files (ulimit -n 65536)",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/read", None, "/full"),
            "/full: No space left on device; make room there",
        ),
        (OSError(errno.EACCES, "Permission denied", "/read", None, "/to"), "/read: Permission denied; give yourself permission"),
        (OSError("this machine cannot connect to itself"), "this machine cannot connect to itself"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_is_told_in_one_sentence(error, told):
    assert explained(error) == told
