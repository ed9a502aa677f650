"""Where the disk refuses what a run writes, the error names the file and a remedy."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from small_disk import filled, mounted

from asyncrl.buffers.payload_store import PayloadStore, PayloadWriter
from asyncrl.cli.written_file import write_file
from asyncrl.core.files.durable import sync
from asyncrl.core.files.file_errors import explained
from asyncrl.core.files.model_copies import copy_folder
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.plug_ins.given_code import write_module
from asyncrl.core.storage.storage import Storage
from asyncrl.learners.megatron.hugging_face import save_tensors
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.weights.disk import stored_file


@contextmanager
def no_writes() -> Iterator[None]:
    """Have the system refuse every write of this process to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("summary.json", lambda file: write_whole(file, b"{}")),
        ("resumes", lambda file: RunFolder(file.parent).count_resume()),
        ("model.safetensors", lambda file: save_tensors({"norm": torch.zeros(2)}, file)),
        ("weights", lambda file: stored_file.write_whole(file, memoryview(bytes(4096)), [])),
        ("model/source", lambda file: copy_folder(file.parents[1] / "there", file.parent)),
        ("given_0.py", lambda file: write_module(file.stem, "text", file.parent)),
        ("fetched", lambda file: Storage(f"file://{file.parent}/there").fetch("source", file)),
        ("plan.json", lambda file: write_file(file, b"{}")),
    ],
)
def test_a_refused_write_names_its_file(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / name
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "source").write_bytes(b"content")
    with pytest.raises(OSError, match="File too large") as caught, no_writes():
        write(file)
    told = explained(caught.value)
    assert told.startswith(f"{file}: File too large; ")
    assert "ulimit -f" in told
    assert not [*tmp_path.glob(".*")]


@pytest.mark.parametrize("noted", [b"", b"x" * 4089 + b"\n"], ids=["no room", "room for a part of it"])
def test_a_resume_that_begins_on_a_full_disk_counts(noted: bytes, tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "tmpfs", "size=1m") as disk:
        (disk / "resumes").write_bytes(noted)
        folder = RunFolder(disk)
        before = folder.resumes
        with filled(disk):
            folder.count_resume()
        folder.count_resume()
        assert folder.resumes == before + 2


def test_a_file_that_a_user_names_is_whole_or_what_it_was_before(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    write_file(page, b"before")
    link.symlink_to(page)
    with pytest.raises(OSError, match="File too large"), no_writes():
        write_file(page, b"now")
    assert page.read_bytes() == b"before"
    write_file(link, b"now")
    assert link.is_symlink()
    assert page.read_bytes() == b"now"
    with page.open("r+b") as open_already:  # what a shell has redirected to is written to, not replaced
        write_file(Path(f"/dev/fd/{open_already.fileno()}"), b"then")
        assert open_already.read() == b"then"


def test_a_file_that_does_not_reach_the_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="Input/output error") as caught:
        sync(tmp_path)
    assert explained(caught.value).startswith(f"{tmp_path}: Input/output error; the disk, ")


def test_a_segment_that_cannot_be_freed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PayloadWriter(tmp_path, 0, "worker", segment_bytes=4096, fsync=False)
    refs = writer.append([b"payload"])
    writer.close()
    monkeypatch.setattr(os, "ftruncate", refused)
    with pytest.raises(OSError, match="Input/output error") as caught:
        PayloadStore(tmp_path).free(refs)
    assert explained(caught.value).startswith(f"{tmp_path / refs[0].segment}: Input/output error; the disk, ")


def refused(*_: object) -> None:
    """What the system answers for a disk that fails."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))
