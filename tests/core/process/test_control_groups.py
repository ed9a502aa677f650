"""What control groups allow, from the files of both kinds as containers see them, and from groups of this machine."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncrl.core.process.control_groups import (
    GroupMemory,
    cores_of_group,
    killed_for_memory,
    memory_of_group,
    processes_left,
    used_processor_time,
)

GIB = 1 << 30


def about(folder: Path, groups: str, mounts: dict[str, str]) -> Path:
    """Write what ``/proc/self`` says: lines of groups, and what is mounted below ``folder`` with which root and kind."""
    (folder / "cgroup").write_text(groups)
    lines = [f"31 23 0:28 {rest.split()[0]} {folder / place} rw - {rest.split(' ', 1)[1]}\n" for place, rest in mounts.items()]
    (folder / "mountinfo").write_text("22 1 0:5 / / rw - ext4 /dev/vda rw\n" + "".join(lines))
    return folder


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n")


def kubernetes(folder: Path) -> Path:
    """A pod with control groups of the second kind, whose names are those of its own namespace."""
    files = {"cpu.max": "350000 100000", "cpu.stat": "usage_usec 2500000\nuser_usec 1", "memory.max": f"{8 * GIB}"}
    files |= {
        "memory.current": f"{3 * GIB}",
        "memory.stat": f"anon 1\ninactive_file {GIB}",
        "pids.max": "1024",
        "pids.current": "24",
        "memory.events": "oom 9\noom_kill 4",
    }
    write(folder / "groups", files)
    return about(folder, "0::/\n", {"groups": "/ cgroup2 cgroup rw"})


def slurm(folder: Path) -> Path:
    """A job's step: the limits are those of the groups around its own."""
    files = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "5", "job/cpu.max": "200000 100000"}
    files |= {"job/cpu.stat": "usage_usec 1000000", "job/memory.max": f"{4 * GIB}", "job/memory.current": f"{GIB}"}
    files |= {"job/step/cpu.max": "max 100000", "job/step/memory.max": "max", "job/step/memory.current": "7"}
    write(folder / "groups", {**files, "job/step/pids.max": "max", "job/step/pids.current": "9"})
    return about(folder, "0::/job/step\n", {"groups": "/ cgroup2 cgroup rw"})


def old_docker(folder: Path) -> Path:
    """A container with groups of the first kind, mounted where its own one begins, beside an empty one of the second."""
    write(folder / "cpu", {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000", "cpuacct.usage": "3000000000"})
    write(folder / "memory", {"memory.limit_in_bytes": f"{2 * GIB}", "memory.usage_in_bytes": f"{GIB}"})
    write(folder / "memory", {"memory.stat": f"total_inactive_file {GIB // 2}", "memory.oom_control": "under_oom 0\noom_kill 2"})
    write(folder / "pids", {"pids.max": "300", "pids.current": "100"})
    groups = "9:pids:/docker/7\n4:memory:/docker/7\n3:cpu,cpuacct:/docker/7\n0::/docker/7\n"
    mounts = {"cpu": "/docker/7 cgroup cgroup rw,cpu,cpuacct", "memory": "/docker/7 cgroup cgroup rw,memory"}
    return about(folder, groups, mounts | {"pids": "/docker/7 cgroup cgroup rw,pids", "unified": "/ cgroup2 cgroup rw"})


def slices(folder: Path) -> Path:
    """A service of systemd: its slice has less memory left than it may have itself, its ``memory.high`` is below
    ``memory.max``, and other mounts have names that are not UTF-8, or none."""
    own = {"cpu.max": "max 100000", "memory.max": f"{6 * GIB}", "memory.high": f"{4 * GIB}", "memory.current": f"{GIB}"}
    slice_ = {"cpu.max": "50000 100000", "cpu.stat": "usage_usec 1000000", "memory.max": f"{8 * GIB}", "memory.high": "max"}
    slice_ |= {"memory.current": f"{7 * GIB}", "pids.max": "100", "pids.current": "60"}
    write(folder / "all groups" / "a.slice", slice_)
    write(folder / "all groups" / "a.slice" / "b\\x2dc.service", {**own, "memory.events": "oom_kill 1"})
    place = about(folder, "0::/a.slice/b\\x2dc.service\n", {"all\\040groups": "/ cgroup2 cgroup rw"})
    others = b"40 22 0:9 / /media/caf\xe9 rw - vfat /dev/sdb1 rw\n41 22 0:9 / /nameless rw shared:1 -  tmpfs rw\n"
    (folder / "mountinfo").write_bytes(others + (folder / "mountinfo").read_bytes())
    return place


def nothing_to_read(folder: Path) -> Path:
    """Files without a line."""
    write(folder, {"cgroup": "", "mountinfo": ""})
    return folder


def unlimited(folder: Path) -> Path:
    """Groups of the first kind without a limit."""
    write(folder / "cpu", {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    write(folder / "memory", {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "5"})
    write(folder / "pids", {"pids.max": "max", "pids.current": "100"})
    write(folder.parent, {"vmstat": "oom_kill 7"})
    mounts = {name: f"/ cgroup cgroup rw,{name}" for name in ("cpu", "memory", "pids")}
    return about(folder, "3:pids:/\n2:memory:/\n1:cpu:/\n0::/\n", mounts)


@pytest.mark.parametrize(
    ("made", "cores", "used", "memory", "processes", "killed"),
    [
        (kubernetes, 3.5, 2.5, GroupMemory(8 * GIB, 6 * GIB), 1000, 4),
        (slurm, 2.0, 1.0, GroupMemory(4 * GIB, 3 * GIB), None, 0),
        (old_docker, 1.5, 3.0, GroupMemory(2 * GIB, 3 * GIB // 2), 200, 2),
        (slices, 0.5, 1.0, GroupMemory(4 * GIB, GIB), 40, 1),
        (unlimited, None, None, None, None, 7),
        (nothing_to_read, None, None, None, None, 0),
        (lambda folder: folder / "no /proc", None, None, None, None, 0),
    ],
)
def test_limits_of_containers_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Path], Path],
    cores: float | None,
    used: float | None,
    memory: GroupMemory | None,
    processes: int | None,
    killed: int,
) -> None:
    monkeypatch.setattr("asyncrl.core.process.control_groups.resource.getrlimit", lambda _: (-1, -1))
    (tmp_path / "self").mkdir()
    place = made(tmp_path / "self")
    assert (cores_of_group(place), used_processor_time(place)) == (cores, used)
    assert (memory_of_group(place), processes_left(place), killed_for_memory(place)) == (memory, processes, killed)


SCRIPT = """
import json, os, sys, time
for group in sys.argv[1:]:
    open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
from asyncrl.core.errors import RecipeError
from asyncrl.core.process.control_groups import usable_cores
from asyncrl.run.host.system_limits import check_limits
from asyncrl.run.nodes.machine import BusyCores, Machine
machine, busy = Machine.here(), BusyCores()
until = time.monotonic() + 0.3
while time.monotonic() < until:
    pass
try:
    check_limits()
    refused = ""
except RecipeError as error:
    refused = str(error)
print(json.dumps([usable_cores(), machine.cores, machine.memory, 0 < machine.free < machine.memory, busy.since_last(), refused]))
"""
LIMITS = {
    "cpu": {"cpu.cfs_quota_us": "100000", "cpu.max": "100000 100000"},
    "cpuacct": {},
    "memory": {"memory.limit_in_bytes": f"{3 * GIB}", "memory.max": f"{3 * GIB}"},
    "pids": {"pids.max": "120"},
}


@contextlib.contextmanager
def groups(name: str) -> Iterator[list[Path]]:
    """Make groups with :data:`LIMITS`, as far as this machine lets us."""
    made: list[Path] = []
    try:
        for controller, files in LIMITS.items():
            folder = Path("/sys/fs/cgroup", controller, name)
            if not folder.parent.is_dir():
                pytest.skip("this machine has no control groups of the first kind")
            try:
                folder.mkdir()
            except OSError as error:
                pytest.skip(f"no control group may be made here: {error}")
            made.append(folder)
            for file, text in files.items():
                if (folder / file).exists():
                    (folder / file).write_text(text)
        yield made
    finally:
        for folder in made:
            folder.rmdir()


def test_a_run_in_a_real_group_knows_what_it_may_use() -> None:
    """One core of those that are there, 3 GiB, and too few processes for a run."""
    with groups(f"asyncrl-test-{os.getpid()}") as made:
        command = [sys.executable, "-c", SCRIPT, *map(str, made)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    cores, of_machine, memory, has_some_left, busy, refused = json.loads(done.stdout)
    assert (cores, of_machine, memory, has_some_left) == (1, 1, 3 * GIB, True)
    assert 0 < busy <= 1
    assert "more processes and threads may begin here, and a run has 256 at least; raise the limit of the container" in refused
