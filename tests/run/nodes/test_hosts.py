"""The quickstart on three hosts that share no folder and no memory, with slow cables that are cut, and a host that fails."""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from far_run import RUNS, FarRun
from judging_models import make_reward_model
from namespace_hosts import Host, cannot_make, hosts
from two_nodes import RayCluster, encrypted
from unhindered import Unhindered
from unhurried import PLACE

from asyncrl.buffers.payload_store import SUFFIX
from asyncrl.run.measures.summary import Status, Summary

_WHY_NOT = cannot_make()
MODEL, REWARD_MODEL, PACKETS = Path("/tmp/models/policy"), Path("/tmp/models/reward"), Path("/tmp/packets")
PROJECT, OWN_MODULE = Path("/tmp/project"), "owned.py"
MBIT = 200
IN_THE_CLEAR = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'said in the clear', (sys.argv[1], 9))"


@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
@pytest.mark.timeout(1200)
def test_a_run_on_hosts_that_are_slow_cut_off_and_lost_while_nobody_on_the_line_reads_anything(tiny_model, tmp_path):
    """The head has the learner and an engine, the second host a payload shard and the reward model, the third an engine.

    Weights go by shared memory to one engine and over the network to the other. Models come to the hosts, logs and episodes come
    back. The environment's module comes, too, which the second lacks, and of which the third has another one in the same place.
    While the second and the third are cut off, training waits; once they are back, all parts go on, and the engine gets the
    newest weights. When the third fails, the run goes on without it. With TLS none of it can be read on the way.
    """
    # Else each host would begin with an empty cache, for which vLLM imports all of itself once more to look at the model's class.
    vllm_cache = os.path.expanduser(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm"))
    with hosts(3, tmp_path) as (head, serving, far):
        # Beside learner and engine, the head has no room for the reward model.
        variables = {"VLLM_CACHE_ROOT": vllm_cache, "PYTHONPATH": ":".join(filter(None, sys.path)), **encrypted(tmp_path)}
        cluster = RayCluster((head, serving, far), cpus=(2, 1, 1), variables=variables)
        shutil.copytree(tiny_model, head.seen_from_outside(MODEL))
        make_reward_model(head.seen_from_outside(REWARD_MODEL), head.seen_from_outside(MODEL))
        for host, text in ((head, Path(PLACE, "unhurried.py").read_text()), (far, "raise RuntimeError('another module')")):
            host.seen_from_outside(PROJECT).mkdir()
            host.seen_from_outside(PROJECT / OWN_MODULE).write_text(text)
        for host in (serving, far):
            host.limit(MBIT)
        for host in (head, far):
            host.capture(PACKETS)
        far.call([sys.executable, "-c", IN_THE_CLEAR, head.address], {}, 30)
        cluster.start()
        cluster.wait_for(3)
        run = _launch(head, cluster)
        run.wait_for(r"training step \d+/", 500)
        assert re.search("Weights: shm to 1 engine .*; Ray's object store to 1 engine ", run.output), run.output
        assert len(serving.processes("ray::RewardModelActor")) == 1
        _trains_on(run)
        _cut_and_repair(run, serving, far)
        shard = serving.seen_from_outside(RUNS) / run.folder.name
        _is_used_again(run, shard)
        assert far.held_back() > 0
        weights = _came_to(far)
        far.power_off()
        _told_silent(run, far, "Nobody waits for far-1. Its episodes are issued again")
        _trains_on(run)
        ending = Unhindered()
        summary = run.interrupt(200)
        assert ending.seconds < 15
        assert run.process.returncode == 130, run.output
        _nothing_was_lost(run, summary)
        assert [*Path(f"/proc/{head.pid}/root/dev/shm").glob("asyncrl-*")] == []
        assert [*Path(f"/proc/{serving.pid}/root/dev/shm").glob("asyncrl-*")] == []
        packets = [host.seen_from_outside(PACKETS).read_bytes() for host in (head, far)]
    assert min(map(len, packets)) > 1 << 20
    assert all(b"said in the clear" in sent for sent in packets)
    secrets = (b"generator-0", b"far-1", b"Unhurried", b"quickstart", cluster.environment["RAY_AUTH_TOKEN"].encode())
    assert [secret for secret in (*secrets, weights) if any(secret in sent for sent in packets)] == []


def _launch(head: Host, cluster: RayCluster) -> FarRun:
    small = [f"model.path={MODEL}", f"run_dir={RUNS}", "batch.groups_per_step=4", "batch.group_size=4", "tasks.train=100"]
    small += ["tasks.evaluation=8", "sampling.max_turn_tokens=16", "checkpoint.every=100000", "steps=100000"]
    engines = ["generators.count=1", "generators.placement.resources={node-0: 1}"]
    engines += ["generators.pools={far: {count: 1, placement: {resources: {node-2: 1}}}}"]
    served = ["buffer.shards=2", f"+reward={{kind: model, path: {REWARD_MODEL}}}", "+tracking.trajectories.keep=all"]
    kept = ["evaluation.every=4", "network.tls.kind=run", "environment.name=owned:Unhurried"]
    return FarRun(head, cluster, "launch", "quickstart", *small, *engines, *served, *kept, there=PROJECT)


def _step(run: FarRun) -> int:
    """The newest training step in the run's metrics."""
    return int(max(run.values("learner/step_seconds"), default=0))


def _until(run: FarRun, condition: Callable[[], bool], seconds: float, what: str) -> None:
    by = time.monotonic() + seconds
    while not condition():
        assert run.process.poll() is None, f"the run ended before {what}: {run.output}"
        assert time.monotonic() < by, f"{what} took longer than {seconds:g} s: {run.output}"
        time.sleep(0.2)


def _trains_on(run: FarRun) -> None:
    """The run trains steps that begin from now on."""
    at = _step(run)
    _until(run, lambda: _step(run) >= at + 3, 300, f"training step {at + 3}")


def _cut_and_repair(run: FarRun, serving: Host, far: Host) -> None:
    """Cut the cables of two hosts until the run has told that they are silent, and repair them."""
    for host in (serving, far):
        host.unplug()
    serves = _told_silent(run, serving, "Training waits for a payload shard and the reward model there")
    plays = _told_silent(run, far, "Nobody waits for far-1. Its episodes are issued again")
    for host in (serving, far):
        host.plug()
    run.wait_for(rf"{serving.address} answers again, and training goes on", 300, after=serves)
    run.wait_for(rf"{far.address} answers again, and its generators go on", 300, after=plays)


def _told_silent(run: FarRun, host: Host, consequence: str) -> int:
    """Wait until the run has told that a host does not answer; it may have been too busy to answer before."""
    after = max(0, run.output.rfind(f"{host.address} answers again"))
    return run.wait_for(re.escape(f"{host.address} does not answer. {consequence}"), 200, after)


def _is_used_again(run: FarRun, shard: Path) -> None:
    """The far engine loads what is published from now on, and plays; some of that goes to the shard."""
    at, kept = _step(run), _bytes(shard)

    def plays() -> bool:
        return any(tokens > 0 for step, tokens in run.values("generators/far/tokens_per_s").items() if step > at + 1)

    def has_new_weights() -> bool:
        files = (run.folder / "trajectories").glob("evaluation-*-far-1.parquet")
        versions = (pq.read_table(file, columns=["versions"]).column(0).to_pylist() for file in files)
        return any(max(each) > at for rows in versions for each in rows)

    _until(run, plays, 120, "that the far engine plays again")
    _until(run, lambda: _bytes(shard) > kept, 120, "that the far engine's episodes are kept")
    _until(run, has_new_weights, 240, "an evaluation by the far engine with new weights")


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob(f"*{SUFFIX}"))


def _came_to(host: Host) -> bytes:
    """Some bytes of weights that came to a host."""
    mirrored = sorted(Path(f"/proc/{host.pid}/root/dev/shm").glob("asyncrl-*-mirror-*"))
    content = mirrored[0].read_bytes()
    some = content[len(content) // 2 :][:32]
    assert len(set(some)) > 8, some
    return some


def _nothing_was_lost(run: FarRun, summary: Summary) -> None:
    assert (summary.status, summary.reason) == (Status.INTERRUPTED, "stopped by SIGINT"), run.output
    ledger = summary.ledger
    assert ledger.failed == ledger.expired == ledger.tasks.filtered == ledger.trajectories.missing == 0, ledger
    logs = {log.name: log.read_text(errors="replace") for log in (run.folder / "logs").iterdir()}
    assert all("vllm" in logs[f"{engine}.log"] for engine in ("generator-0", "far-1"))
    players = {file.stem.split("-", 2)[2] for file in (run.folder / "trajectories").glob("evaluation-000000-*")}
    assert players == {"generator-0", "far-1"}
    files = (run.folder / "trajectories").glob("train-*.parquet")
    trained = [row for file in files for row in pq.read_table(file, columns=["reward", "metrics"]).to_pylist()]
    scores = {dict(each["metrics"])["model_score"] for each in trained}
    assert all(each["reward"] == dict(each["metrics"])["model_score"] for each in trained)
    assert len(scores) > 10
