"""Hosts made of namespaces of this machine, joined by a switch: to run, break and watch what spans hosts.

Each host has a network, processes, a host name, a ``/dev/shm``, a ``/tmp`` and a home folder of its own; the rest of the file
system is shared, as by hosts with the same image. Always holds: the machine's own network is not touched, and however the process
that made the hosts ends, all their processes, interfaces and mounts end with it, since the first process of each host ends with
the pipe to its standard input.

By hand, as root: ``python tests/two_nodes.py`` makes two hosts with a Ray cluster, tells how to enter and break them, and keeps
them until Ctrl-C; ``python tests/two_nodes.py -- COMMAND`` runs a command on the first host and ends with it.
"""

import argparse
import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

NETWORK = "10.77.0"
RAY_PORT = 6379
HOME = Path("/tmp/home")
"""The home folder on each host."""
_OF_PYTHON = (Path(sys.prefix), Path(__file__).parents[1])
"""Folders that each host sees, wherever they lie."""
SHARED = Path("/tmp/shared")
"""A folder that all hosts share, as by a network file system."""
READY_S = 120.0
"""How long Ray may take to have all nodes."""

_OF_NODES = {
    # While they begin side by side, the others ask this often, once a second, for the head.
    "RAY_NUM_REDIS_GET_RETRIES": f"{READY_S:.0f}",
    # Ray would start a process for each CPU, which a run's actors cannot use: theirs begin with what the driver asks for.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
"""Environment variables of each node of Ray."""

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
        return shlex.join([*self._place.command(), "env", f"HOME={HOME}"])

    @property
    def pid(self) -> int:
        """The id of its first process, as seen from outside."""
        return self._place.pid

    def popen(self, command: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command; it ends with the host."""
        own = {**os.environ, **environment, "HOME": str(HOME)}
        process = subprocess.Popen(
            self._place.command(*command), env=own, stdout=output, stderr=None if output is None else subprocess.STDOUT
        )
        self._running.append(process)
        return process

    def call(self, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
        """Run a command to its end and return its output; raises ``RuntimeError`` with the output if it fails."""
        own = {**os.environ, **environment, "HOME": str(HOME)}
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


def encrypted(folder: Path) -> dict[str, str]:
    """Make keys for Ray's own connections, with the addresses of all hosts; returns the environment variables that name them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hosts of a test")])
    own = ["127.0.0.1", *(f"{NETWORK}.{number + 1}" for number in range(9))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), *(x509.IPAddress(ip_address(each)) for each in own)]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / SHARED.name / "ray.pem").write_bytes(certificate.public_bytes(pem))
    (folder / SHARED.name / "ray.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(SHARED / "ray.pem"),
        "RAY_TLS_SERVER_KEY": str(SHARED / "ray.key"),
        "RAY_TLS_CA_CERT": str(SHARED / "ray.pem"),
    }


class RayCluster:
    """A Ray cluster over hosts, whose head is the first.

    Args:
        cpus: what each host has for Ray's actors, or all of them alike.
        dashboard: whether the first host takes jobs, at port 8265; that needs ``ray[default]``.
        variables: further environment variables of Ray and its drivers.

    Attributes:
        environment: what a driver on the first host needs in its environment.
    """

    def __init__(
        self,
        on: Sequence[Host],
        cpus: int | Sequence[int] = 4,
        object_store_mb: int = 100,
        variables: Mapping[str, str] | None = None,
        *,
        dashboard: bool = False,
    ) -> None:
        self._hosts, self._store = on, object_store_mb << 20
        self._cpus = [cpus] * len(on) if isinstance(cpus, int) else cpus
        self._dashboard = [f"--include-dashboard={dashboard}", f"--dashboard-host={on[0].address}"]
        self.address = f"{on[0].address}:{RAY_PORT}"
        self.environment = {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            **(variables or {}),
        }

    def start(self, *, only: Sequence[Host] | None = None) -> None:
        """Start Ray on all hosts or ``only`` on some, and wait until they have joined."""
        head, *_ = self._hosts

        def start(host: Host) -> None:
            part = ["--head", f"--port={RAY_PORT}", *self._dashboard] if host is head else [f"--address={self.address}"]
            self._start(host, part)

        with ThreadPoolExecutor() as side_by_side:
            list(side_by_side.map(start, self._hosts if only is None else only))

    def _start(self, host: Host, part: list[str]) -> None:
        cpus = self._cpus[self._hosts.index(host)]
        part += [f"--node-ip-address={host.address}", f"--num-cpus={cpus}", f"--object-store-memory={self._store}"]
        part += ["--num-gpus=0", f'--resources={{"{host.name}": 100}}', "--include-log-monitor=False"]
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"} | _OF_NODES
        # Not in the driver's folder: nobody starts Ray there on many hosts.
        elsewhere = ["env", "--chdir=/", sys.executable, "-m", "ray.scripts.scripts", "start", *part]
        host.call(elsewhere, environment, READY_S)

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` nodes are alive."""
        by = time.monotonic() + READY_S
        script = "import ray; ray.init(log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
        while True:
            said = self._hosts[0].call([sys.executable, "-c", script], self.environment, READY_S)
            if int(said.split()[-1]) >= count:
                return
            assert time.monotonic() < by, f"only {said} of {count} nodes joined within {READY_S:g} s"


def main() -> int:
    """Make the hosts by hand."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--memory-mb", type=int, default=1536, help="size of each /dev/shm")
    parser.add_argument("--tls", action="store_true", help="encrypt Ray's own connections")
    parser.add_argument("--dashboard", action="store_true", help="let the first node take jobs (needs ray[default])")
    parser.add_argument("--mbit", type=int, help="limit the cable of every node but the first")
    parser.add_argument("command", nargs="*", help="runs on the first node; without it the hosts stay until Ctrl-C")
    chosen = parser.parse_args()
    if why := cannot_make():
        parser.exit(1, f"{why}\n")
    with tempfile.TemporaryDirectory() as folder, hosts(chosen.nodes, Path(folder), chosen.memory_mb) as made:
        for host in made:
            if chosen.mbit and host is not made[0]:
                host.limit(chosen.mbit)
        cluster = RayCluster(made, variables=encrypted(Path(folder)) if chosen.tls else None, dashboard=chosen.dashboard)
        cluster.start()
        settings = shlex.join(f"{name}={value}" for name, value in cluster.environment.items())
        for host in made:
            print(f"{host.name} {host.address}: {host.enter} {settings} bash", flush=True)
            print(f"  cut off: {shlex.join(host._switch.command('ip', 'link', 'set', host._port, 'down'))}  (and up)", flush=True)
            print(f"  power off: kill -9 {host.pid}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            if chosen.command:
                return made[0].popen(chosen.command, cluster.environment).wait()
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
