"""A Ray cluster on hosts made of namespaces of this machine (:mod:`namespace_hosts`).

By hand, as root: ``python tests/two_nodes.py`` makes two hosts with a Ray cluster, tells how to enter and break them, and keeps
them until Ctrl-C; ``python tests/two_nodes.py -- COMMAND`` runs a command on the first host and ends with it.
"""

import argparse
import contextlib
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from namespace_hosts import NETWORK, READY_S, SHARED, Host, cannot_make, hosts

RAY_PORT = 6379

_OF_NODES = {
    # While they begin side by side, the others ask this often, once a second, for the head.
    "RAY_NUM_REDIS_GET_RETRIES": f"{READY_S:.0f}",
    # Ray would start a process for each CPU, which a run's actors cannot use: theirs begin with what the driver asks for.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}
"""Environment variables of each node of Ray."""


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
