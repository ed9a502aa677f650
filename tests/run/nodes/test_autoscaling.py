"""A run in a cluster that grows for it, shrinks with it, and replaces a node that it loses."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from far_run import RUNS, FarRun
from namespace_hosts import Host, cannot_make, hosts
from two_nodes import RAY_PORT
from unhurried import UNHURRIED

from asyncrl.run.measures.summary import Status

_WHY_NOT = cannot_make()
MODEL = Path("/tmp/models/policy")
ALIVE = """
import json, sys, time, ray
ray.init(log_to_driver=False)
wanted, by = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while True:
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    if len(alive) == wanted or time.monotonic() > by:
        break
    time.sleep(0.5)
print(json.dumps(alive))
"""
"""Tells which nodes live, once they are as many as wanted or a time is over."""


@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
@pytest.mark.timeout(2400)
def test_a_cluster_grows_for_a_run_shrinks_with_it_and_replaces_a_node_that_is_lost(tiny_model, tmp_path):
    """The cluster begins with its head alone, which has room for the learner and an engine. The recipe wants another engine, and
    ``asyncrl scale`` a third; when that ends, its node is taken away. Then the node of the second dies."""
    with hosts(1, tmp_path) as (head,):
        # Else each engine would begin with an empty cache, for which vLLM imports all of itself once more.
        vllm_cache = os.path.expanduser(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm"))
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(filter(None, sys.path)),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            "VLLM_CACHE_ROOT": vllm_cache,
        }
        head.call([sys.executable, str(Path(__file__).with_name("autoscaled.py")), "2", "3"], variables, 120)
        variables["RAY_ADDRESS"] = f"{head.address}:{RAY_PORT}"
        shutil.copytree(tiny_model, head.seen_from_outside(MODEL))
        run = _launch(head, SimpleNamespace(environment=variables))
        waits = run.wait_for(r"no room for 1 of 1 processes of far.* waits at most 300 s \(deadlines.room\)", 300)
        run.wait_for(r"training step \d+/", 500, after=waits)
        assert len(_alive(head, variables, wanted=2)) == 2

        assert "far-2 is coming up" in _scale(head, variables, run, "far=2") or run.wait_for("Pool far waits for room", 200)
        run.wait_for("far-2 is up", 500)
        assert len(_alive(head, variables, wanted=3)) == 3
        # The engine that is behind with the weights ends, or else the newest.
        (ended,) = re.findall(r"(far-[12]) hands back its episodes", _scale(head, variables, run, "far=1"))
        kept = "far-1" if ended == "far-2" else "far-2"
        left = _alive(head, variables, wanted=2, seconds=180)
        assert len(left) == 2, "the node of the engine that ended is taken away"

        (lost,) = [node for node in left if not node.endswith("00000")]
        commands = [(each, " ".join(each.info["cmdline"] or ())) for each in head.processes("")]
        (raylet,) = [each for each, command in commands if "raylet/raylet" in command.split(" ")[0] and lost in command]
        raylet.kill()
        noticed = rf"{kept}: (its node is gone|version \d+ did not reach its node).*Its episodes are issued again"
        gone = run.wait_for(noticed, 300)
        run.wait_for(r"far-3 is up", 500, after=gone)
        assert lost not in _alive(head, variables, wanted=2)
        summary = run.interrupt(200)
        assert summary.status is Status.INTERRUPTED, run.output
        assert [*Path(f"/proc/{head.pid}/root/dev/shm").glob("asyncrl-*")] == []


def _launch(head: Host, cluster: SimpleNamespace) -> FarRun:
    small = [f"model.path={MODEL}", f"run_dir={RUNS}", "batch.groups_per_step=4", "batch.group_size=4", "tasks.train=100"]
    small += ["tasks.evaluation=8", "sampling.max_turn_tokens=16", "checkpoint.every=100000", "steps=100000"]
    engines = ["generators.count=1", "generators.pools={far: {count: 1, placement: {labels: {role: inference}}}}"]
    rarely = ["deadlines.room=300", "evaluation.every=100000"]
    return FarRun(head, cluster, "launch", "quickstart", *small, *engines, *rarely, UNHURRIED)


def _scale(head: Host, variables: dict[str, str], run: FarRun, size: str) -> str:
    command = [sys.executable, "-m", "asyncrl.cli.main", "scale", str(RUNS / run.folder.name), size]
    return head.call(command, variables, 120)


def _alive(head: Host, variables: dict[str, str], wanted: int, seconds: float = 0.0) -> list[str]:
    """The nodes that live, after at most so many seconds in which there are not as many as wanted."""
    said = head.call([sys.executable, "-c", ALIVE, str(wanted), str(seconds)], variables, 120 + seconds)
    (line,) = re.findall(r"^\[.*\]$", said, re.MULTILINE)
    nodes: list[str] = json.loads(line)
    return nodes
