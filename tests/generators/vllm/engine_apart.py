"""Compares an engine whose two workers are on two hosts with engines on one, by hand and as root, after three publications.

``PYTHONPATH=tests:tests/generators/vllm python tests/generators/vllm/engine_apart.py`` makes the hosts of namespaces of this
machine. Each host has files of the publications of its own, under other names. An engine with as many workers on one host must
compute the same bits; one that is not divided, nearly the same.
"""

import argparse
import asyncio
import pickle
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
from namespace_hosts import SHARED, hosts
from small_engine import CONFIG, LONGEST, perturb, publish, small_model

from asyncrl.core.network.open_port import held_port
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.generators.vllm.engine_follower import EngineFollower
from asyncrl.generators.vllm.engine_node import EngineNode, variables_towards_other_nodes
from asyncrl.weights.shm.shared_tensors import SharedMemory

VERSIONS, SECONDS = 3, 600.0
MODEL, MEETING, OWN = SHARED / "model", SHARED / "meeting", Path("/dev/shm")
ROWS = [[int(token) for token in np.random.default_rng(number).integers(1, 320, 40 + number)] for number in range(8)]


def versions_of(host: int) -> list[Publication]:
    """Write the publications on this host, the same on each."""
    model, written = small_model(), []
    for version in range(1, VERSIONS + 1):
        perturb(model)
        shards = [Shard(n, tuple(p.shape), (0,) * p.dim(), p.detach()) for n, p in model.named_parameters()]
        target = OWN / f"host{host}-{version}"
        target.mkdir(exist_ok=True)
        written.append(publish(SharedMemory("apart", 0, str(target)), version, shards))
    return written


async def lead(node: EngineNode, workers: int) -> bytes:
    """Load each publication into the engine, and return what it computes of the rows, pickled."""
    config = msgspec.structs.replace(CONFIG, tensor_parallel=workers, engine_nodes=node.count)
    variables = variables_towards_other_nodes(node.host) if node.count > 1 else {}
    settings, server = EngineSettings(config, str(MODEL), LONGEST, node=node), EngineProcessServer.start(variables)
    engine = await VllmEngine.start(settings, name="engine", start_s=SECONDS, answer_s=SECONDS, server=server)
    found = []
    for here in versions_of(0):
        elsewhere = [tuple(msgspec.structs.replace(f, path=f.path.replace("host0", "host1")) for f in here.files)]
        publication = msgspec.structs.replace(here, copies=tuple(elsewhere[: node.count - 1]))
        asked = asyncio.ensure_future(engine.generate(ROWS[0], max_tokens=200, sampling=Sampling(1.0), stop_token_ids=(0,)))
        await asyncio.sleep(0.1)
        assert await engine.load_publication(publication) == publication.fingerprint
        scored = await engine.score(ROWS)
        assert {row.version for row in scored} == {publication.version}
        spans = [span.version for span in (await asked).spans]
        found.append((np.concatenate([row.logprobs for row in scored]), spans, engine.use().last_pause_seconds))
    await engine.close()
    return pickle.dumps(found)


def work(number: int, count: int, workers: int, address: str, result: Path) -> None:
    """Be one of the nodes of an engine, which meet at an address of the first."""
    if number == 0:
        holding = held_port(address)
        node = EngineNode(0, count, address, holding.getsockname()[1])
        draft = MEETING.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(node))
        draft.rename(MEETING)
        result.write_bytes(asyncio.run(lead(node, workers)))
        return
    versions_of(number)
    by = time.monotonic() + SECONDS
    while not MEETING.exists():
        assert time.monotonic() < by, f"the first node did not come within {SECONDS:g} s"
        time.sleep(0.05)
    node = msgspec.structs.replace(msgspec.json.decode(MEETING.read_bytes(), type=EngineNode), number=number)
    config = msgspec.structs.replace(CONFIG, tensor_parallel=workers, engine_nodes=count)
    server = EngineProcessServer.start(variables_towards_other_nodes(address))
    EngineFollower.start(EngineSettings(config, str(MODEL), LONGEST, node=node), address, server).wait()


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work is not None:
        number, count, workers, address, result = chosen.work
        work(int(number), int(count), int(workers), address, Path(result))
        return
    seen = {}
    with tempfile.TemporaryDirectory() as folder, hosts(2, Path(folder)) as made:
        small_model().save_pretrained(Path(folder) / SHARED.name / MODEL.name)
        environment = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        for name, workers, count in (("two on two hosts", 2, 2), ("two on one host", 2, 1), ("one worker", 1, 1)):
            result = SHARED / name.replace(" ", "-")
            started = [
                host.popen(
                    [sys.executable, __file__, "--work", str(n), str(count), str(workers), host.address, str(result)], environment
                )
                for n, host in enumerate(made[:count])
            ]
            assert started[0].wait(SECONDS) == 0, name
            for process in started[1:]:
                process.kill()
            (Path(folder) / SHARED.name / MEETING.name).unlink()
            seen[name] = pickle.loads((Path(folder) / SHARED.name / result.name).read_bytes())
    for version in range(VERSIONS):
        (two, spans, pause), (one, *_), (whole, *_) = (of[version] for of in seen.values())
        worst = np.abs(whole - two).max()
        print(f"version {version + 1}, which a request met that has tokens of versions {spans}, in {pause:.3f} s:", flush=True)
        print(f"  equal to one host: {np.array_equal(one, two)}; one worker differs by {worst:.1e} at most", flush=True)
        assert np.array_equal(one, two)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
