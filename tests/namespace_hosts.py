"""Hosts made of namespaces of this machine, joined by a switch: to run, break and watch what spans hosts.

Each host has a network, processes, a host name, a ``/dev/shm``, a ``/tmp`` and a home folder of its own; the rest of the file
system is shared, as by hosts with the same image. Always holds: the machine's own network is not touched, and however the process
that made the hosts ends, all their processes, interfaces and mounts end with it, since the first process of each host ends with
the pipe to its standard input.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

NETWORK = "10.77.0"
HOME = Path("/tmp/home")
"""The home folder on each host."""
_OWN_FOLDERS = {"HOME": str(HOME), "TMPDIR": "/tmp"}
"""Variables of each host's processes, whatever they are outside."""
_OF_PYTHON = (Path(sys.prefix), Path(__file__).parents[1])
"""Folders that each host sees, wherever they lie."""
SHARED = Path("/tmp/shared")
"""A folder that all hosts share, as by a network file system."""
READY_S = 120.0
"""How long Ray may take to have all nodes."""

_FIRST_PROCESS = "echo up; while read -r _; do :; done"
"""Ends with its standard input. It is process 1 of its host: all others there end with it, and it reaps what it adopts (bash
does, dash does not)."""


def cannot_make() -> str:
    """Return why this system or user cannot make such hosts; empty if it can."""
    missing = [tool for tool in ("ip", "tc", "unshare", "nsenter", "mount") if _which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "sh", "-c", _TRY],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return f"namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


_TRY = """set -e
mount -t tmpfs -o size=1m tmpfs /dev/shm
ip link add name here type veth peer name there
ip link add name switch type bridge
"""


def _which(tool: str) -> str | None:
    return next((d for d in (*os.get_exec_path(), "/usr/sbin", "/sbin") if os.access(f"{d}/{tool}", os.X_OK)), None)


class _Namespaces:
    """Namespaces of one kind of place, held by a process."""

    def __init__(self, *kinds: str) -> None:
        unshare = ["unshare", *kinds, "--fork", "--kill-child", "bash", "-c", _FIRST_PROCESS]
        if "--pid" not in kinds:
            unshare = ["unshare", *kinds, "bash", "-c", _FIRST_PROCESS]
        self._holder = subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n", "the namespaces were not made"
        self.pid = _child_of(self._holder.pid) if "--pid" in kinds else self._holder.pid
        self._enter = ["nsenter", "--target", str(self.pid), *(kind for kind in kinds if kind != "--mount-proc")]

    def command(self, *command: str) -> list[str]:
        """Return the command that runs ``command`` there."""
        return [*self._enter, f"--wd={os.getcwd()}", *command] if "--mount" in self._enter else [*self._enter, *command]

    def run(self, *command: str) -> str:
        """Run a short command there; returns its output, or raises with what it said."""
        done = subprocess.run(self.command(*command), capture_output=True, text=True, timeout=READY_S)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def end(self) -> None:
        """End everything there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        for pipe in (self._holder.stdin, self._holder.stdout):
            assert pipe is not None
            pipe.close()


def _child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


class Host:
    """One host; made by :func:`hosts`.

    Attributes:
        address: its address in the network of the hosts.
    """

    def __init__(self, number: int, switch: _Namespaces, folder: Path, shared: Path, memory_mb: int) -> None:
        self.number, self.name, self.address = number, f"node-{number}", f"{NETWORK}.{number + 1}"
        self._switch, self._shared, self._memory_mb = switch, shared, memory_mb
        self._folder = folder / self.name
        self._port = f"port{number}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._start()

    def _start(self) -> None:
        self._place = place = _Namespaces("--net", "--mount", "--pid", "--uts", "--ipc", "--mount-proc")
        place.run("hostname", self.name)
        tmp, names = self._folder / "tmp", self._folder / "hosts"
        (tmp / "home").mkdir(parents=True, exist_ok=True)
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{NETWORK}.{n + 1} node-{n}\n" for n in range(9)))
        place.run("mount", "-t", "tmpfs", "-o", f"size={self._memory_mb}m", "tmpfs", "/dev/shm")
        place.run("mount", "--bind", str(names), "/etc/hosts")
        place.run("mount", "--bind", str(tmp), str(tmp))
        (tmp / SHARED.name).mkdir(exist_ok=True)
        place.run("mount", "--bind", str(self._shared), str(tmp / SHARED.name))
        for needed in _OF_PYTHON:  # a checkout may lie in /tmp
            if needed.is_relative_to("/tmp"):
                there = tmp / needed.relative_to("/tmp")
                there.mkdir(parents=True, exist_ok=True)
                place.run("mount", "--bind", str(needed), str(there))
        place.run("mount", "--rbind", str(tmp), "/tmp")
        self._switch.run("ip", "link", "add", "name", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(place.pid))
        self._switch.run("ip", "link", "set", self._port, "master", "switch", "up")
        place.run("ip", "link", "set", "lo", "up")
        place.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        place.run("ip", "link", "set", "eth0", "up")
        place.run("ip", "route", "add", "default", "via", f"{NETWORK}.254")

    def seen_from_outside(self, path: Path) -> Path:
        """Return where a path of the host's own ``/tmp`` lies for other processes of this machine."""
        return self._folder / path.relative_to("/")

    @property
    def enter(self) -> str:
        """The beginning of a command line that runs a command on this host."""
        return shlex.join([*self._place.command(), "env", *(f"{name}={value}" for name, value in _OWN_FOLDERS.items())])

    @property
    def pid(self) -> int:
        """The id of its first process, as seen from outside."""
        return self._place.pid

    def popen(self, command: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command; it ends with the host."""
        own = {**os.environ, **environment, **_OWN_FOLDERS}
        process = subprocess.Popen(
            self._place.command(*command), env=own, stdout=output, stderr=None if output is None else subprocess.STDOUT
        )
        self._running.append(process)
        return process

    def call(self, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
        """Run a command to its end and return its output; raises ``RuntimeError`` with the output if it fails."""
        own = {**os.environ, **environment, **_OWN_FOLDERS}
        done = subprocess.run(
            self._place.command(*command), env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {shlex.join(command)}: {done.stdout}")
        return done.stdout

    def unplug(self) -> None:
        """Cut the cable: nothing arrives, and nobody is told."""
        self._switch.run("ip", "link", "set", self._port, "down")

    def plug(self) -> None:
        """Repair the cable."""
        self._switch.run("ip", "link", "set", self._port, "up")

    def limit(self, mbit: int) -> None:
        """Limit both directions of the cable to ``mbit`` Mbit/s."""
        rate = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
        self._switch.run("tc", "qdisc", "replace", "dev", self._port, *rate)
        self._place.run("tc", "qdisc", "replace", "dev", "eth0", *rate)

    def capture(self, file: Path) -> None:
        """Write every packet that the host sends or receives, into ``file`` of its own, until it is powered off."""
        self.popen([sys.executable, "-c", _CAPTURE, str(file)], {})
        by = time.monotonic() + READY_S
        while not self.seen_from_outside(file).exists():
            assert time.monotonic() < by, "packets are not captured"
            time.sleep(0.05)

    def held_back(self) -> int:
        """How many packets to the host had to wait because of :meth:`limit`."""
        (queue,) = json.loads(self._switch.run("tc", "-s", "-j", "qdisc", "show", "dev", self._port))
        return int(queue["overlimits"])

    def processes(self, name: str) -> list[psutil.Process]:
        """Its processes whose command begins with ``name``."""
        place = os.readlink(f"/proc/{self.pid}/ns/pid")

        def is_there(process: psutil.Process) -> bool:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # it has ended meanwhile, or is none of ours
                return os.readlink(f"/proc/{process.pid}/ns/pid") == place
            return False

        of_name = [each for each in psutil.process_iter(["cmdline"]) if " ".join(each.info["cmdline"] or ()).startswith(name)]
        return [each for each in of_name if is_there(each)]

    def power_off(self) -> None:
        """Kill every process of the host at once; its interface disappears."""
        self._place.end()
        with contextlib.suppress(RuntimeError):  # it has gone with the host already
            self._switch.run("ip", "link", "delete", self._port)
        for process in self._running:
            process.wait()
        self._running.clear()

    def boot(self) -> None:
        """Bring the host up again after :meth:`power_off`, with an empty ``/dev/shm``."""
        self._start()


@contextlib.contextmanager
def hosts(count: int, folder: Path, memory_mb: int = 1536) -> Iterator[list[Host]]:
    """Make hosts, and end everything on them afterwards.

    Args:
        folder: where their files lie; ``folder/shared`` is :data:`SHARED` on all of them.
        memory_mb: the size of each host's ``/dev/shm``, in MB.
    """
    with contextlib.ExitStack() as ending:
        switch = _Namespaces("--net")
        ending.callback(switch.end)
        switch.run("ip", "link", "add", "name", "switch", "type", "bridge")
        switch.run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "switch")
        switch.run("ip", "link", "set", "switch", "up")
        made, shared = [], folder / SHARED.name
        shared.mkdir(exist_ok=True)
        for number in range(count):
            host = Host(number, switch, folder, shared, memory_mb)
            ending.callback(host.power_off)
            made.append(host)
        yield made


_CAPTURE = """
import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
packets.bind(("eth0", 0))
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(packets.recv(1 << 17))
"""
