"""Measures how long weights take from two ranks on one host to others, through Ray's object store, by hand and as root.

``PYTHONPATH=tests python tests/run/publications/between_hosts.py --mb 201 --far 4 --mbit 200`` makes five hosts of namespaces of
this machine and limits the cables of four; with ``--all`` that of the first as well. Prints when each host had all bytes.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
from namespace_hosts import hosts
from two_nodes import RayCluster

from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, WeightFile
from asyncrl.run.publications.mirror_actor import start_mirror
from asyncrl.run.publications.ray_mirror import RayMirror
from asyncrl.run.publications.ray_transport import RayTransport
from asyncrl.run.publications.transport import read_stores

RANKS, WARM_UP_BYTES, SECONDS = 2, 2 << 20, 600.0


async def measure(size: int, repetitions: int) -> None:
    """Publish from this host to all others of the cluster, after one publication that starts the mirrors."""
    ray.init(log_to_driver=False)
    here = ray.get_runtime_context().get_node_id()
    far = [node["NodeID"] for node in ray.nodes() if node["NodeID"] != here]
    logs = Path(tempfile.mkdtemp(dir=memory_file_system()))
    transport = RayTransport(lambda node, log: start_mirror(node, log, "bench", None, RayMirror), logs, SECONDS, read_stores)

    def written(version: int, of: int) -> Publication:
        files = []
        for rank in range(RANKS):
            path = logs / f"rank{rank}-{version % 2}"
            path.write_bytes(np.random.default_rng(version).bytes(of // RANKS))
            files.append(WeightFile(str(path), here, of // RANKS))
        return Publication(version=PolicyVersion(version), files=tuple(files), shards=(), fingerprints=(), fingerprint=0)

    async def seconds(publication: Publication, node: str, began: float) -> float:
        await transport.fetch_to_node(publication, node)
        return time.perf_counter() - began

    for version in range(repetitions + 1):
        publication, began = written(version, size if version else WARM_UP_BYTES), time.perf_counter()
        took = await asyncio.gather(*(seconds(publication, node, began) for node in far))
        if version:
            print(f"{size / 1e6:.0f} MB:", *(f"{each:.1f} s" for each in sorted(took)), flush=True)
    await transport.close(SECONDS)


def main() -> None:
    """Make the hosts, and measure on the first of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=201, help="size of a publication")
    parser.add_argument("--far", type=int, default=4, help="hosts that fetch")
    parser.add_argument("--mbit", type=int, help="limit the cables of these hosts")
    parser.add_argument("--all", action="store_true", help="limit the cable of the first host as well")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        asyncio.run(measure(chosen.mb * 1_000_000, chosen.repetitions))
        return
    store = 3 * chosen.mb
    with tempfile.TemporaryDirectory() as folder, hosts(1 + chosen.far, Path(folder), 3 * store) as made:
        for host in made:
            if chosen.mbit and (chosen.all or host is not made[0]):
                host.limit(chosen.mbit)
        cluster = RayCluster(made, object_store_mb=store)
        cluster.start()
        cluster.wait_for(len(made))
        made[0].popen([sys.executable, *sys.argv, "--here"], {**cluster.environment, "PYTHONPATH": ":".join(sys.path)}).wait()


if __name__ == "__main__":
    main()
