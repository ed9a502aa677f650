"""Measures and removes folders that somebody else has filled, however deep they are.

What always holds: a folder is opened below an open folder and never through a link, so no step leads out of the tree; there is no
recursion and no path that grows, so neither a thousand levels nor paths longer than ``PATH_MAX`` stop anything; a handful of
descriptors is enough; and another file system that is mounted in the tree is not entered.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK, _CHANGE = stat.S_IRUSR | stat.S_IXUSR, stat.S_IRWXU
"""What the owner must be allowed in a folder to list what is in it, and to remove that."""
_PASSES = 3
"""Times that removing goes through a tree, which may be changed meanwhile."""
_SHOWN = 120
"""Characters of a path that is shown."""


def remove_tree(path: Path, within_s: float = float("inf")) -> str | None:
    """Remove a folder with all that is in it, also what was made read-only; or a file or a link.

    Args:
        within_s: seconds after which the rest is left.

    Returns:
        What is left of it and why, for a log; None if nothing is.
    """
    ends = time.monotonic() + within_s
    try:
        parent = os.open(path.parent, _FOLDER)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{path.parent} cannot be opened: {error.strerror}"
    try:
        left = _Removal(parent, path.name, ends).run()
        for _ in range(_PASSES - 1):
            if left is None or time.monotonic() > ends:
                break
            left = _Removal(parent, path.name, ends).run()
    finally:
        os.close(parent)
    return left


def sizes_below(folder: str) -> Iterator[int]:
    """Yield the bytes on disk of each file and folder below ``folder``. What vanishes meanwhile may be left out.

    A folder that its owner may not read is made readable for as long as it is looked into.
    """
    try:
        descent = _Descent(*_opened(folder, None, _LOOK), _LOOK)
    except OSError:
        return
    with closing(descent):
        while True:
            with suppress(OSError), os.scandir(descent.folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        yield entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            descent.level.unseen.append(entry.name)
            while not _entered_next(descent):
                if not descent.up():
                    return


def _entered_next(descent: "_Descent") -> bool:
    """Go down into one more folder of the open one that can be opened; returns whether there was one."""
    while descent.level.unseen:
        with suppress(OSError):
            descent.down(descent.level.unseen.pop())
            return True
    return False


class _Level:
    """A folder on the way from the top to where a descent is.

    Attributes:
        mode: the mode that it gets back when it is left; None if it was not changed.
        unseen: names of folders in it that are still to be looked into.
        met: names in it that were found to be folders with something in them, or that cannot be removed.
        left: whether something in it cannot be removed.
    """

    def __init__(self, name: str, folder: int, mode: int | None) -> None:
        found = os.fstat(folder)
        self.name, self.mode, self.identity = name, mode, (found.st_dev, found.st_ino)
        self.unseen: list[str] = []
        self.met: set[str] = set()
        self.left = False


class _Descent:
    """An open folder somewhere below the one where the descent began; it goes down and up by one level at a time.

    Args:
        top: an open folder, which is closed with the descent.
        mode: the mode that the top gets back at the end; None if it was not changed.
        needed: what the owner must be allowed in each folder.

    Attributes:
        folder: the open folder.
    """

    def __init__(self, top: int, mode: int | None, needed: int) -> None:
        self.folder = self._top = top
        self._needed = needed
        self._levels = [_Level("", top, mode)]

    @property
    def level(self) -> _Level:
        """The level of the open folder."""
        return self._levels[-1]

    def down(self, name: str) -> None:
        """Open the folder ``name`` of the open folder.

        Raises:
            OSError: it is no folder any more, is of another file system, or belongs to somebody who does not let it be opened.
        """
        below, mode = _opened(name, self.folder, self._needed)
        level = _Level(name, below, mode)
        if level.identity[0] != self._levels[0].identity[0]:
            os.close(below)
            raise OSError(errno.EXDEV, "another file system is mounted there")
        self._enter(below)
        self._levels.append(level)

    def up(self) -> bool:
        """Go back to the folder above, unless the open one is the top; returns whether that was possible.

        If somebody has moved a folder meanwhile, go back to the deepest one above that is where it was.
        """
        if len(self._levels) == 1:
            return False
        left = self._levels.pop()
        above = _opened_again("..", self.folder, self.level)
        _restore_mode(self.folder, left.mode)
        self._enter(self._found_from_the_top() if above is None else above)
        return True

    def close(self) -> None:
        """Close the open folder and the top."""
        self._enter(self._top)
        _restore_mode(self._top, self._levels[0].mode)
        os.close(self._top)

    def path(self, name: str) -> str:
        """The path of ``name`` in the open folder, from the top. The middle of a long one is left out."""
        path = "/".join([*(level.name for level in self._levels[1:]), name])
        return path if len(path) <= _SHOWN else f"{path[: _SHOWN // 2]}...{path[-_SHOWN // 2 :]}"

    def _enter(self, folder: int) -> None:
        if self.folder != self._top:
            os.close(self.folder)
        self.folder = folder

    def _found_from_the_top(self) -> int:
        """Open the levels once more from the top, and forget those that are not where they were."""
        folder = self._top
        for depth, level in enumerate(self._levels[1:], 1):
            below = _opened_again(level.name, folder, level)
            if below is None:
                del self._levels[depth:]
                break
            if folder != self._top:
                os.close(folder)
            folder = below
        return folder


class _Removal:
    """One pass of removing ``name`` from the open folder ``parent``."""

    def __init__(self, parent: int, name: str, ends: float) -> None:
        self._parent, self._name, self._ends = parent, name, ends
        self._left = 0
        self._example = ""

    def run(self) -> str | None:
        """Remove what can be removed; returns what is left."""
        error = _failure(os.unlink, self._name, self._parent)
        if error is None:
            return None
        if error.errno not in (errno.EISDIR, errno.EPERM):
            return str(error.strerror)
        try:
            descent = _Descent(*_opened(self._name, self._parent, _CHANGE), _CHANGE)
        except OSError as of_opening:
            return str(of_opening.strerror)
        with closing(descent):
            if not self._emptied(descent):
                return "there was too much in it for the time that there was"
        if self._left:
            return f"{self._left} of its files and folders, such as {self._example}"
        error = _failure(os.rmdir, self._name, self._parent)
        return None if error is None else str(error.strerror)

    def _emptied(self, descent: _Descent) -> bool:
        """Remove all that can be removed below the top; returns whether there was time enough."""
        while self._cleared(descent):
            while not self._entered_next(descent):
                below = descent.level
                if not descent.up():
                    return True
                if below.left:
                    descent.level.left = True
                elif (error := _failure(os.rmdir, below.name, descent.folder)) is not None:
                    self._fail(descent, below.name, error)
        return False

    def _cleared(self, descent: _Descent) -> bool:
        """Remove files and empty folders from the open folder, and note the others; returns whether there was time enough.

        A folder is listed again until nothing was removed: some file systems leave out names if others are removed meanwhile.
        """
        level, removed = descent.level, True
        while removed:
            removed = False
            try:
                with os.scandir(descent.folder) as entries:
                    for entry in entries:
                        if time.monotonic() > self._ends:
                            return False
                        if entry.name not in level.met:
                            removed |= self._removed(descent, entry)
            except OSError as error:
                self._fail(descent, "", error)
                break
        return True

    def _removed(self, descent: _Descent, entry: "os.DirEntry[str]") -> bool:
        """Remove a file or an empty folder; if it is neither, note it. Returns whether it was removed."""
        is_folder = entry.is_dir(follow_symlinks=False)
        error = _failure(os.rmdir if is_folder else os.unlink, entry.name, descent.folder)
        if error is None:
            return True
        if is_folder and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            descent.level.met.add(entry.name)
            descent.level.unseen.append(entry.name)
        else:
            self._fail(descent, entry.name, error)
        return False

    def _entered_next(self, descent: _Descent) -> bool:
        """Go down into one more folder of the open one that can be opened; returns whether there was one."""
        while descent.level.unseen:
            name = descent.level.unseen.pop()
            try:
                descent.down(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._fail(descent, name, error)
            else:
                return True
        return False

    def _fail(self, descent: _Descent, name: str, error: OSError) -> None:
        descent.level.met.add(name)
        descent.level.left = True
        self._left += 1
        self._example = self._example or f"{descent.path(name)} ({error.strerror})"


def _failure(remove: Callable[..., None], name: str, folder: int) -> OSError | None:
    """Remove ``name`` from an open folder; returns why that is not possible, and None if it is gone."""
    try:
        remove(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _opened(name: str, folder: int | None, needed: int) -> tuple[int, int | None]:
    """Open the folder ``name`` of an open one, and let its owner do there what is ``needed``.

    Returns:
        The descriptor, and the mode that the folder had if that was changed.
    """
    handle = os.open(name, _FOLDER | os.O_NOFOLLOW | os.O_PATH, dir_fd=folder)
    try:
        mode, before = stat.S_IMODE(os.fstat(handle).st_mode), None
        if mode & needed != needed:
            with suppress(OSError):  # it is somebody else's, and may perhaps be opened all the same
                os.chmod(_path_of(handle), mode | needed)
                before = mode
        return os.open(_path_of(handle), _FOLDER), before
    finally:
        os.close(handle)


def _opened_again(name: str, folder: int, level: _Level) -> int | None:
    """Open the folder ``name`` of an open one; None if that is not possible or is not the folder of ``level`` any more."""
    try:
        found = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return None
    now = os.fstat(found)
    if (now.st_dev, now.st_ino) == level.identity:
        return found
    os.close(found)
    return None


def _restore_mode(folder: int, mode: int | None) -> None:
    """Give an open folder the mode that it had, if that was changed."""
    if mode is not None:
        with suppress(OSError):  # it may belong to somebody else by now
            os.chmod(_path_of(folder), mode)


def _path_of(descriptor: int) -> str:
    """A path to an open file or folder, for calls that do not take every descriptor."""
    return f"/proc/self/fd/{descriptor}"
