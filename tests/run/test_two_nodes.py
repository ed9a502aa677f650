"""The quickstart on two hosts that share no folder and no memory: the learner on one, engines on both; then one of them fails."""

import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from two_nodes import Host, RayCluster, cannot_make, encrypted, hosts
from whole_run import small_model

from asyncrl.run.summary import Status, Summary

RUNS = Path("/tmp/runs")
"""Where the first host keeps its runs; no other host sees it."""
_WHY_NOT = cannot_make()
IN_THE_CLEAR = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(b'said in the clear', (sys.argv[1], 9))"


class FarRun:
    """A run that was launched on the first host."""

    def __init__(self, head: Host, cluster: RayCluster, model: Path, *overrides: str) -> None:
        self._head = head
        small = [f"model.path={model}", f"run_dir={RUNS}", "batch.groups_per_step=4", "batch.group_size=4"]
        small += ["tasks.train=100", "tasks.evaluation=8", "sampling.max_turn_tokens=16", "generators.count=2"]
        command = [sys.executable, "-m", "asyncrl.cli.main", "launch", "quickstart", *small, *overrides]
        self._output = head.seen_from_outside(Path("/tmp/output"))
        with self._output.open("wb") as output:
            environment = {**cluster.environment, "PYTHONPATH": ":".join(filter(None, sys.path))}
            self.process = head.popen(command, environment, output.fileno())

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float) -> None:
        """Until the run has printed ``pattern``."""
        by = time.monotonic() + seconds
        while not re.search(pattern, self.output):
            assert self.process.poll() is None, f"the run ended before {pattern!r}: {self.output}"
            assert time.monotonic() < by, f"{pattern!r} took longer than {seconds:g} s: {self.output}"
            time.sleep(0.2)

    @property
    def step(self) -> int:
        """The last training step that the run has told of."""
        return int(re.findall(r"training step (\d+)/", self.output)[-1])

    def interrupt(self, seconds: float) -> Summary:
        """Its summary, once it has ended because of Ctrl-C."""
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(signal.SIGINT)
        self.process.wait(seconds)
        return Summary.read(self.folder / "summary.json")

    @property
    def folder(self) -> Path:
        (folder,) = [path for path in self._head.seen_from_outside(RUNS).iterdir() if path.is_dir()]
        return folder


@pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
@pytest.mark.timeout(600)
def test_engines_on_two_hosts_of_which_one_fails_and_nobody_on_the_line_reads_anything(tmp_path):
    """Weights go by shared memory to one engine and over the network to the other; the model comes to the far host, its logs and
    episodes come back; when it fails, the run goes on. With TLS none of it can be read on the way.
    """
    with hosts(2, tmp_path) as (head, far):
        cluster = RayCluster((head, far), variables=encrypted(tmp_path))
        model = small_model(head.seen_from_outside(Path("/tmp/models")))
        head.capture(Path("/tmp/packets"))
        far.call([sys.executable, "-c", IN_THE_CLEAR, head.address], {}, 30)
        cluster.start()
        cluster.wait_for(2)
        inside = Path("/tmp/models") / model.relative_to(head.seen_from_outside(Path("/tmp/models")))
        spread = ["generators.placement.strategy=spread", "network.tls.kind=run"]
        run = FarRun(head, cluster, inside, "steps=100000", "evaluation.every=100000", *spread)
        run.wait_for(r"training step \d+/", 300)
        far.power_off()
        run.wait_for("Its episodes are issued again", 120)
        at = run.step
        by = time.monotonic() + 120
        while run.step == at:
            assert time.monotonic() < by, f"no training step after the loss: {run.output}"
            time.sleep(0.2)
        summary = run.interrupt(60)
        assert summary.status == Status.INTERRUPTED, run.output
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
