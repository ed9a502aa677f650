"""What control groups allow this process and those that it starts: a container, a service or a job of Slurm may have only part of
a machine.

Its processes see all cores and all memory: ``os.sched_getaffinity`` says to which cores they are bound, and psutil what the
machine has. Their limits stand in files, of which there are two kinds: https://docs.kernel.org/admin-guide/cgroup-v2.html and
https://docs.kernel.org/admin-guide/cgroup-v1/index.html.
"""

import math
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ABOUT = Path("/proc/self")
"""Where a process finds its groups, and where their files are."""
_MICROSECOND = 1e-6
_NANOSECOND = 1e-9
_NO_LIMIT = 1 << 60
"""From here on a limit of memory is none: groups of the first kind write the largest number of pages there is."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""How a list of mounts writes a space, a tab, a line's end or a backslash."""


class GroupMemory(NamedTuple):
    """What control groups allow, and what is left of it, in bytes; what the system gives back when it is wanted is left, too."""

    limit: int
    left: int


class _Hierarchy(NamedTuple):
    mount: Path
    root: str
    unified: bool
    controllers: frozenset[str]


def usable_cores() -> int:
    """How many processor cores this process may keep busy: those that it is bound to, or fewer."""
    bound = len(os.sched_getaffinity(0))
    allowed = cores_of_group()
    return bound if allowed is None else max(1, min(bound, math.ceil(allowed)))


def cores_of_group(about: Path = ABOUT) -> float | None:
    """How many cores' time the groups of this process allow it; None without a limit."""
    return min((limit for _, limit in _quotas(about)), default=None)


def used_processor_time(about: Path = ABOUT) -> float | None:
    """What the group whose limit holds for this process has used of it, in seconds; None without a limit."""
    limited = min(_quotas(about), key=lambda quota: quota[1], default=None)
    if limited is None:
        return None
    folder = limited[0]
    if os.path.exists(folder / "cpu.max"):
        return _MICROSECOND * _named_number(folder / "cpu.stat", "usage_usec")
    mounts = {name: place.mount for place in _hierarchies(about) for name in ("cpu", "cpuacct") if name in place.controllers}
    accounts = mounts["cpuacct"] / folder.relative_to(mounts["cpu"]) if mounts.keys() >= {"cpu", "cpuacct"} else None
    used = _number(accounts / "cpuacct.usage") if accounts else None
    return None if used is None else _NANOSECOND * used


def memory_of_group(about: Path = ABOUT) -> GroupMemory | None:
    """The lowest limit of the groups of this process, and the least that one of them leaves it; None without a limit.

    Above ``memory.high`` a group is slowed down until nothing in it goes on, so it is a limit as ``memory.max`` is.
    """
    found = []
    of_two = tuple((name, "memory.current", "inactive_file") for name in ("memory.max", "memory.high"))
    of_one = (("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),)
    for folder in _folders("memory", about):
        for limit_file, used_file, given_back in of_two + of_one:
            limit, used = _number(folder / limit_file), _number(folder / used_file)
            if limit is not None and limit < _NO_LIMIT and used is not None:
                held = max(0, used - _named_number(folder / "memory.stat", given_back))
                found.append(GroupMemory(limit, max(0, limit - held)))
    return GroupMemory(min(each.limit for each in found), min(each.left for each in found)) if found else None


def killed_for_memory(about: Path = ABOUT) -> int:
    """How many processes of this process's group, else of the machine, the system has ended for want of memory so far."""
    for folder in _folders("memory", about):
        for file in (folder / "memory.events", folder / "memory.oom_control"):
            if os.path.exists(file):
                return _named_number(file, "oom_kill")
    return _named_number(about.parent / "vmstat", "oom_kill")


def processes_left(about: Path = ABOUT) -> int | None:
    """How many more processes and threads the user and the groups of this process may have; None without a limit.

    What the user has elsewhere, which counts against ``ulimit -u``, is not subtracted.
    """
    found = []
    for folder in _folders("pids", about):
        limit, used = _number(folder / "pids.max"), _number(folder / "pids.current")
        if limit is not None and used is not None:
            found.append(max(0, limit - used))
    of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if of_user != resource.RLIM_INFINITY and os.geteuid() != 0:  # root's processes are not counted
        found.append(of_user)
    return min(found, default=None)


def _quotas(about: Path) -> Iterator[tuple[Path, float]]:
    for folder in _folders("cpu", about):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = str(_number(folder / "cpu.cfs_quota_us")), str(_number(folder / "cpu.cfs_period_us"))
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield folder, int(quota) / int(period)


def _folders(controller: str, about: Path) -> list[Path]:
    """The folders of this process's group for a controller, and of those around it as far as they are seen."""
    hierarchies = _hierarchies(about)
    places = [place for place in hierarchies if controller in place.controllers]
    places += [place for place in hierarchies if place.unified]
    try:
        lines = [line.split(":", 2) for line in _lines(about / "cgroup")]
    except OSError:
        return []
    for place in places:
        for number, controllers, group in lines:
            if (number == "0") if place.unified else (controller in controllers.split(",")):
                inside = group.removeprefix(place.root.rstrip("/")).lstrip("/")
                own = place.mount / inside
                if not os.path.isdir(own):  # the group's name is that of another namespace
                    own = place.mount
                return [own, *(parent for parent in own.parents if parent.is_relative_to(place.mount))]
    return []


def _hierarchies(about: Path) -> list[_Hierarchy]:
    try:
        lines = _lines(about / "mountinfo")
    except OSError:
        return []
    found = []
    for line in lines:
        fields = [_ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), field) for field in line.split(" ")]  # one may be empty
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        if kind in ("cgroup", "cgroup2"):
            unified = kind == "cgroup2"
            found.append(_Hierarchy(Path(fields[4]), fields[3], unified, frozenset(() if unified else options.split(","))))
    return found


def _lines(file: Path) -> list[str]:
    """The lines of a file with names of folders, which need not be UTF-8."""
    return [line for line in os.fsdecode(file.read_bytes()).split("\n") if line]


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _named_number(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
