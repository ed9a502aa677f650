"""The quickstart on two hosts that share no folder and no memory: the learner on one, engines on both; then one of them fails."""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from far_run import RUNS, FarRun
from two_nodes import RayCluster, cannot_make, encrypted, hosts

from asyncrl.run.summary import Status

_WHY_NOT = cannot_make()
IN_THE_CLEAR = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'said in the clear', (sys.argv[1], 9))"


@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
@pytest.mark.timeout(600)
def test_engines_on_two_hosts_of_which_one_fails_and_nobody_on_the_line_reads_anything(tiny_model, tmp_path):
    """Weights go by shared memory to one engine and over the network to the other; the model comes to the far host, its logs and
    episodes come back; when it fails, the run goes on. With TLS none of it can be read on the way.
    """
    # Else each host would begin with an empty cache, for which vLLM imports all of itself once more to look at the model's class.
    vllm_cache = os.path.expanduser(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm"))
    with hosts(2, tmp_path) as (head, far):
        variables = {"VLLM_CACHE_ROOT": vllm_cache, **encrypted(tmp_path)}
        cluster = RayCluster((head, far), variables=variables)
        inside = Path("/tmp/model")
        shutil.copytree(tiny_model, head.seen_from_outside(inside))
        head.capture(Path("/tmp/packets"))
        far.call([sys.executable, "-c", IN_THE_CLEAR, head.address], {}, 30)
        cluster.start()
        cluster.wait_for(2)
        small = [f"model.path={inside}", f"run_dir={RUNS}", "batch.groups_per_step=4", "batch.group_size=4", "tasks.train=100"]
        small += [
            "tasks.evaluation=8",
            "sampling.max_turn_tokens=16",
            "generators.count=2",
            "generators.placement.strategy=spread",
        ]
        endless = ["steps=100000", "evaluation.every=100000", "network.tls.kind=run"]
        run = FarRun(head, cluster, "launch", "quickstart", *small, *endless)
        run.wait_for(r"training step \d+/", 300)
        far.power_off()
        run.wait_for("Its episodes are issued again", 120)
        at = run.step
        by = time.monotonic() + 120
        while run.step == at:
            assert time.monotonic() < by, f"no training step after the loss: {run.output}"
            time.sleep(0.2)
        interrupted = time.monotonic()
        summary = run.interrupt(60)
        assert time.monotonic() - interrupted < 15
        assert run.process.returncode == 130, run.output
        assert (summary.status, summary.reason) == (Status.INTERRUPTED, "stopped by SIGINT"), run.output
        assert summary.steps > at, run.output
        assert summary.ledger.failed == summary.ledger.expired == 0
        logs = {log.name: log.read_text(errors="replace") for log in (run.folder / "logs").iterdir()}
        assert "vllm" in logs["generator-0.log"]
        assert "vllm" in logs["generator-1.log"]
        players = {file.stem.split("-", 2)[2] for file in (run.folder / "trajectories").glob("evaluation-000000-*")}
        assert players == {"generator-0", "generator-1"}
        packets = head.seen_from_outside(Path("/tmp/packets")).read_bytes()
    assert len(packets) > 1 << 20
    assert b"said in the clear" in packets
    secrets = (b"generator-1", b"calculator", b"quickstart", cluster.environment["RAY_AUTH_TOKEN"].encode())
    assert [secret for secret in secrets if secret in packets] == []
