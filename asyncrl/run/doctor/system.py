"""Looks at the machine itself: memory, shared memory, file descriptors, ports, clock, folders, Ray."""

import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from asyncrl.core.files.cache_folder import CACHE_VARIABLE, cache_folder
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.measures.units import memory
from asyncrl.core.process.control_groups import processes_left
from asyncrl.envs.hosting.workspaces import default_root
from asyncrl.run.doctor.finding import Finding, fine, note, problem
from asyncrl.run.host.system_limits import allowed

SHARED_MEMORY_BYTES = 1 << 30
"""Ray's object store, and two versions of a small model's weights, need about this much."""
DESCRIPTORS = 4096
"""Ray and hundreds of episodes with their connections need about this many."""
PROCESSES = 1024
"""Ray, engines and tools have several hundred processes and threads, more with more cores."""
CONNECT_S = 5.0
SKEW_S = 2.0


def check_shared_memory() -> Iterator[Finding]:
    """Room for published weights: two versions of all weights at a time, and Ray's object store."""
    folder = memory_file_system()
    usage = shutil.disk_usage(folder)
    found = f"{memory(usage.free)} free of {memory(usage.total)} at {folder}"
    if str(folder) != "/dev/shm":
        yield note("shared memory", f"{found}: there is no /dev/shm", "mount one (--shm-size for a container): disks are slower")
    elif usage.free < SHARED_MEMORY_BYTES:
        yield problem(
            "shared memory",
            f"{found}; a run keeps two versions of all weights there",
            "make it larger (--shm-size for a container, else mount -o remount,size=...), or remove what killed runs left there",
        )
    else:
        yield fine("shared memory", found)
    left = sorted(path.name for path in folder.glob("asyncrl-*") if path.name != default_root().name)
    if left:
        yield note(
            "shared memory",
            f"{len(left)} files of runs, e.g. {left[0]}",
            f"the next launch removes those of killed runs: {folder}/asyncrl-*",
        )


def check_descriptors() -> Iterator[Finding]:
    """How many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"a process may have {soft} open (at most {hard})"
    if allowed() < DESCRIPTORS:  # a launch raises the first of the two limits by itself
        yield problem("file descriptors", found, f"ulimit -n {DESCRIPTORS} before launching; as root, or in limits.conf")
    else:
        yield fine("file descriptors", found)


def check_processes() -> Iterator[Finding]:
    """How many processes and threads may begin."""
    left = processes_left()
    if left is not None and left < PROCESSES:
        yield problem(
            "processes",
            f"{left} more processes and threads may begin",
            "raise the limit of the container or service (pids.max) or of the user (ulimit -u)",
        )
    else:
        yield fine("processes", "no limit" if left is None else f"{left:,} more processes and threads may begin")


def check_ports() -> Iterator[Finding]:
    """Whether processes of this machine can connect to each other."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), CONNECT_S):
            pass
    except OSError as error:
        yield problem("ports", f"this machine cannot connect to itself at 127.0.0.1: {error}", "bring its loopback interface up")
    else:
        yield fine("ports", "this machine can connect to itself")
    proxies = [name for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY") if os.environ.get(name)]
    exempt = os.environ.get("no_proxy", "") + os.environ.get("NO_PROXY", "")
    if proxies and "127.0.0.1" not in exempt:
        yield note("ports", f"{proxies[0]} is set, and no_proxy does not exempt 127.0.0.1", "export no_proxy=127.0.0.1,localhost")


def check_clock() -> Iterator[Finding]:
    """Whether the clock and that of the file system agree: file times decide what is newer."""
    with tempfile.NamedTemporaryFile(dir=_writable()) as file:
        skew = os.stat(file.name).st_mtime - time.time()
    if abs(skew) > SKEW_S:
        yield problem("clock", f"the file system's clock is {skew:+.1f} s from this machine's", "synchronise both (chrony, ntp)")
    else:
        yield fine("clock", f"agrees with the file system's ({skew:+.2f} s)")


def check_folders(run_dir: Path) -> Iterator[Finding]:
    """Whether the folders that a run writes to can be written, and have room."""
    folders = {"run folder": run_dir, "temporary folder": Path(tempfile.gettempdir())}
    try:
        folders["cache"] = cache_folder()
    except OSError as error:
        yield problem("cache", str(error), f"export {CACHE_VARIABLE}=FOLDER")
    for what, folder in folders.items():
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            yield problem(what, f"{there} cannot be written", f"run_dir=FOLDER, TMPDIR or {CACHE_VARIABLE} names another one")
            continue
        free = shutil.disk_usage(there).free
        if free < SHARED_MEMORY_BYTES:
            yield problem(what, f"{memory(free)} free at {there}", "free some room, or name another folder")
        else:
            yield fine(what, f"{there} can be written, {memory(free)} free")


def check_ray() -> Iterator[Finding]:
    """Which Ray there is, and whether the cluster that ``RAY_ADDRESS`` names answers."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        yield problem("Ray", "not installed", "pip install 'ray>=2.50,<3'")
        return
    address = os.environ.get("RAY_ADDRESS", "")
    if not address or address in ("local", "auto"):
        yield fine("Ray", f"{version}; a run starts its own")
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S):
            yield fine("Ray", f"{version}; RAY_ADDRESS {address} answers")
    except (OSError, ValueError) as error:
        yield problem(
            "Ray", f"RAY_ADDRESS {address} does not answer: {error}", "start the cluster (ray start --head), or unset it"
        )


def _writable() -> str:
    return "." if os.access(".", os.W_OK) else tempfile.gettempdir()
