"""Trees that somebody else has made: measured and removed whatever they are, without a step outside."""

import gc
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from nested_folders import LONG, nest, removed_for_sure
from ordinary_user import as_ordinary_user

from asyncrl.core.files.folder_tree import remove_tree, sizes_below

LEVELS = 3000
"""More than the interpreter's recursion takes, with paths a hundred times as long as the kernel takes."""


def fill(folder: int, size: int) -> None:
    """Write a file into an open folder, which is closed."""
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(file, bytes(size))
    os.close(file)
    os.close(folder)


def open_descriptors() -> int:
    gc.collect()  # what earlier tests have left open is closed at some time, which must not be in the middle of this one
    return len(os.listdir("/proc/self/fd"))


def test_a_tree_deeper_than_recursion_and_paths_is_measured_and_removed():
    before = open_descriptors()
    with removed_for_sure() as folder:
        fill(nest(folder, LEVELS), 1 << 20)
        sizes = list(sizes_below(str(folder)))
        assert len(sizes) == LEVELS + 1
        assert sum(sizes) >= 1 << 20
        assert remove_tree(folder / LONG) is None
        assert os.listdir(folder) == []
        assert open_descriptors() == before


def test_every_kind_of_entry_is_removed_and_nothing_behind_a_link(tmp_path: Path):
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    for folder in (outside, tree / "a" / "b", tree / "c", tree / "d"):
        folder.mkdir(parents=True)
    (outside / "kept").write_text("kept")
    (tree / "a" / "b" / "file").write_text("x")
    (tree / "a" / "link").symlink_to(outside)
    (tree / "c" / "link").symlink_to(outside / "kept")
    (tree / "broken").symlink_to("nowhere")
    os.mkfifo(tree / "d" / "pipe")
    os.link(outside / "kept", tree / "d" / "hard")
    assert remove_tree(tree) is None
    assert not tree.exists()
    assert (outside / "kept").read_text() == "kept"


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere"), lambda path: None])
def test_whatever_the_top_is_it_is_gone_afterwards(make: Callable[[Path], None], tmp_path: Path):
    make(tmp_path / "top")
    assert remove_tree(tmp_path / "top") is None
    assert not os.path.lexists(tmp_path / "top")


def test_a_top_that_is_a_link_is_removed_and_not_what_is_behind_it(tmp_path: Path):
    (tmp_path / "behind").mkdir()
    (tmp_path / "link").symlink_to("behind")
    assert remove_tree(tmp_path / "link") is None
    assert os.listdir(tmp_path) == ["behind"]


def closed_tree(top: Path) -> Path:
    """A tree whose folders nobody may read, search or write, as long as they are what they are."""
    tree = top / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_bytes(bytes(1 << 20))
    for folder in (tree / "a" / "b", tree / "a", tree):
        folder.chmod(0)
    return tree


def test_what_was_made_inaccessible_is_measured_as_it_is_and_removed(tmp_path: Path):
    def measured_and_removed() -> tuple[int, int, str | None]:
        tree = closed_tree(tmp_path)
        return sum(sizes_below(str(tree))), stat.S_IMODE(tree.stat().st_mode), remove_tree(tree)

    size, mode, left = as_ordinary_user(measured_and_removed)
    assert size >= 1 << 20
    assert (mode, left) == (0, None)
    assert not os.path.lexists(tmp_path / "tree")


def test_what_cannot_be_removed_is_named_and_the_rest_is_gone(tmp_path: Path):
    if os.getuid() != 0:
        pytest.skip("only root can make what an ordinary user cannot remove")
    tree = tmp_path / "tree"
    for folder in ("before", "others", "then"):
        (tree / folder).mkdir(parents=True)
        (tree / folder / "file").write_text("")
    os.chown(tree / "others", 12345, 12345)
    assert as_ordinary_user(remove_tree, tree) == "1 of its files and folders, such as others/file (Permission denied)"
    assert os.listdir(tree) == ["others"]


def test_what_is_not_done_in_time_is_left(tmp_path: Path):
    (tmp_path / "tree" / "folder").mkdir(parents=True)
    assert remove_tree(tmp_path / "tree", within_s=0.0) == "there was too much in it for the time that there was"
    assert (tmp_path / "tree" / "folder").exists()


def test_a_folder_that_is_moved_while_it_is_measured_hides_nothing_but_itself(tmp_path: Path):
    tree, large = tmp_path / "tree", {"one": 1 << 20, "two": 2 << 20}
    for name, size in large.items():
        (tree / "a" / name / "inner").mkdir(parents=True)
        (tree / "a" / name / "inner" / "file").write_bytes(bytes(size))
    sizes = sizes_below(str(tree))
    met = next(size for size in sizes if size >= 1 << 20)
    moved = "one" if met < 2 << 20 else "two"
    (tree / "a" / moved).rename(tmp_path / "away")
    assert sum(sizes) >= sum(large.values()) - large[moved]
