"""Plays what spans two hosts in whole runs, by hand, and prints what is seen: ranks apart, pools, latecomers, folders.

As root: ``python tests/spanning_hosts.py late pools`` plays these one after the other, on one pair of hosts made of
namespaces. Each fails at the first thing that is not as it should be, and the next one is played. ``late`` must come first.
With ``--tls`` all connections are encrypted, the runs' and Ray's.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import psutil
import torch
from transformers import AutoConfig, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM
from two_nodes import SHARED, Host, RayCluster, encrypted, hosts

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny import ensure_tiny_model
from asyncrl.run.measures.summary import Status, Summary

OWN = Path("/tmp/runs")
"""A folder of the first host, which the other does not see."""
FAR = ["generators.count=1", "generators.placement.resources={node-1: 1}"]
"""One engine, on the second host."""
RANKS_APART = "learner.placement.per_node=1"
STEPS, FEW_STEPS = 24, 6
CUT_S = 20.0
"""A cut of the cable that is waited out: shorter than Ray takes to give a node up."""
TINY, EXPERTS = Path("/tmp/models/tiny"), Path("/tmp/models/experts")
"""Models of the first host: the tiny one, and one of the same tokens with experts, untrained."""


class Stage:
    """Two hosts with a Ray cluster, the first of which has models.

    Attributes:
        runs: where the scenario's runs go.
    """

    def __init__(self, folder: Path, made: Sequence[Host], cluster: RayCluster, *, tls: bool) -> None:
        self.folder, (self.head, self.far), self.cluster = folder, made, cluster
        self._tls = ["network.tls.kind=run"] if tls else []
        self.runs = OWN
        self._began = time.monotonic()
        model = ensure_tiny_model({"": ClassEnvironmentConfig(name="calculator")}, 0, lambda progress: None)
        shutil.copytree(model, self.outside(TINY))
        make_experts(self.outside(TINY), self.outside(EXPERTS))

    def say(self, *words: object) -> None:
        """Print with the time since the beginning."""
        print(f"[{time.monotonic() - self._began:6.1f}]", *words, flush=True)

    def outside(self, path: Path) -> Path:
        """Where a path of the first host lies for this process."""
        if path.is_relative_to(SHARED):
            return self.folder / SHARED.name / path.relative_to(SHARED)
        return self.head.seen_from_outside(path)

    def recipe(self, *overrides: str) -> list[str]:
        """The quickstart made small, every publication of which is probed."""
        small = [f"model.path={TINY}", f"run_dir={self.runs}", "batch.groups_per_step=4", "weights.probe_every=1"]
        few = ["tasks.train=100", "tasks.evaluation=8", "generators.kv_cache_mb=64", "evaluation.every=100", f"steps={STEPS}"]
        return ["launch", "quickstart", *small, *few, "learner.data_parallel=1", *self._tls, *overrides]

    def start(self, *arguments: str, **variables: str) -> "Command":
        """Start ``asyncrl`` on the first host."""
        self.say("asyncrl", *arguments[:1], *arguments[10:])
        return Command(self, arguments, variables)

    def call(self, *arguments: str, code: int = 0, said: str = "", seconds: float = 300, **variables: str) -> str:
        """Run ``asyncrl`` on the first host to its end; it must exit with ``code`` and have said ``said``."""
        began = time.monotonic()
        command = self.start(*arguments, **variables)
        ended = command.process.wait(seconds)
        assert (ended, bool(re.search(said, command.output))) == (code, True), f"exit {ended}, without {said!r}: {command.output}"
        self.say(f"exit {ended} after {time.monotonic() - began:.1f} s:", command.output.strip().splitlines()[-1][:300])
        return command.output

    @property
    def run(self) -> Path:
        """The folder of the scenario's only run, as seen from outside."""
        (folder,) = [path for path in self.outside(self.runs).iterdir() if (path / "recipe.yaml").is_file()]
        return folder

    def check(self, status: Status = Status.COMPLETED) -> Summary:
        """Check how the run ended, and say how well learner and engines agreed after each publication."""
        summary = Summary.read(self.run / "summary.json")
        self.say(f"{summary.status} after {summary.steps} steps, {summary.versions_published} versions. {summary.reason}")
        assert summary.status == status, summary
        gaps = self.values("publish/probe_mean_gap")
        self.say(f"mean gaps of {len(gaps)} probes: at most {max(gaps.values()):.4f} nats")
        assert len(gaps) >= min(summary.versions_published, STEPS) // 2, gaps
        return summary

    def values(self, metric: str) -> dict[int, float]:
        """The values of a metric of the scenario's run, by training step."""
        with closing(connect(self.outside(self.runs) / "mlflow.db", timeout=10)) as database:
            return dict(database.execute("select step, value from metrics where key = ? order by step", (metric,)).fetchall())

    def metrics(self) -> list[str]:
        """The names of all metrics of the scenario's run."""
        with closing(connect(self.outside(self.runs) / "mlflow.db", timeout=10)) as database:
            return [name for (name,) in database.execute("select distinct key from metrics")]

    @property
    def step(self) -> int:
        """The newest training step in the metrics of the scenario's run."""
        return max(self.values("learner/step_seconds"), default=0)

    def wait_for_step(self, step: int, seconds: float = 120) -> None:
        """Until the run has trained that step. It prints only some of them."""
        by = time.monotonic() + seconds
        while self.step < step:
            assert time.monotonic() < by, f"step {step} took longer than {seconds:g} s; the newest is {self.step}"
            time.sleep(0.2)

    def weights_in_memory(self) -> list[list[str]]:
        """The files of weights in the memory of each host, without the run's name."""

        def of(host: Host) -> list[str]:
            there = Path(f"/proc/{host.pid}/root/dev/shm").glob("asyncrl-*")
            return sorted(re.sub(r".*-(rank|mirror|disk)", r"\1", file.name) for file in there)

        return [of(self.head), of(self.far)]

    def cut_for_good(self, run: "Command") -> None:
        """Cut the second host's cable for 20 s, and then until the run has failed; switch that host off and on, and resume."""
        before = self.step
        self.far.unplug()
        time.sleep(CUT_S)
        within, plugged = self.step - before, time.monotonic()
        self.far.plug()
        self.wait_for_step(before + within + 2)  # the next one may have been under way
        took = time.monotonic() - plugged
        self.say(f"cut for {CUT_S:g} s: {within} training steps in it, the next but one {took:.0f} s after it")
        time.sleep(10)
        assert run.process.poll() is None, run.output
        self.far.unplug()
        assert run.process.wait(200) == 1
        self.say("cut for good:", Summary.read(self.run / "summary.json").reason)
        self.far.power_off()
        self.far.boot()
        self.cluster.start(only=[self.far])
        self.cluster.wait_for(2)
        self.resume()

    def resume(self) -> None:
        """Resume the run for a few steps, and check that none of its work was lost."""
        before = self.step
        resumed = self.start("launch", "--resume", str(self.runs / self.run.name))
        resumed.wait_for(r"training step \d+/")
        self.wait_for_step(before + FEW_STEPS)
        resumed.signal(signal.SIGINT)
        print(resumed.output[:3000])
        ledger = self.check(Status.INTERRUPTED).ledger
        self.say(ledger)
        assert ledger.expired == ledger.tasks.filtered == ledger.trajectories.missing == 0, ledger
        assert self.weights_in_memory() == [[], []]


def make_experts(tiny: Path, folder: Path) -> None:
    """Make a model with experts that has the tokens of another, and random weights."""
    base = AutoConfig.from_pretrained(tiny)
    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
    known = {"vocab_size": base.vocab_size, "eos_token_id": base.eos_token_id, "pad_token_id": base.pad_token_id}
    config = Qwen3MoeConfig(**size, **heads, **known, norm_topk_prob=True, tie_word_embeddings=False)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder)


class Command:
    """A process of ``asyncrl`` on the first host."""

    def __init__(self, stage: Stage, arguments: Sequence[str], variables: dict[str, str]) -> None:
        self._stage = stage
        self._output = stage.outside(Path(f"/tmp/output-{time.monotonic_ns()}"))
        known = {**stage.cluster.environment, "PYTHONPATH": ":".join(filter(None, sys.path)), "COLUMNS": "200", **variables}
        with self._output.open("wb") as output:
            self.process = stage.head.popen([sys.executable, "-m", "asyncrl.cli.main", *arguments], known, output.fileno())

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = 400) -> None:
        """Until it has printed ``pattern``."""
        by = time.monotonic() + seconds
        while (found := re.search(pattern, self.output)) is None:
            assert self.process.poll() is None, f"it ended before {pattern!r}: {self.output}"
            assert time.monotonic() < by, f"{pattern!r} took longer than {seconds:g} s: {self.output}"
            time.sleep(0.2)
        self._stage.say(f"saw {found.group()!r}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, and wait until it has ended."""
        (child,) = psutil.Process(self.process.pid).children()
        child.send_signal(number)
        self.process.wait(60)
        self._stage.say(f"ended after {number.name}")


def _ranks_apart(stage: Stage, *overrides: str) -> Command:
    """Launch with learner ranks on both hosts, and wait until it has trained for a while. It would not end by itself."""
    run = stage.start(*stage.recipe(*FAR, *overrides, RANKS_APART, "checkpoint.every=4", "steps=100000"))
    run.wait_for(r"training step \d+/")
    stage.wait_for_step(8)
    stage.say("weights in memory:", *stage.weights_in_memory())
    return run


def data(stage: Stage) -> None:
    """Replicas on two hosts; the driver is killed, and the run resumed."""
    _ranks_apart(stage, "learner.data_parallel=2").signal(signal.SIGKILL)
    stage.resume()


def pipeline(stage: Stage) -> None:
    """Pipeline stages on two hosts, of which one is lost; once it is back, the run is resumed."""
    run = _ranks_apart(stage, "learner.pipeline_parallel=2")
    stage.far.power_off()
    _fails(stage, run, r"learner rank 1.*node is gone")
    stage.far.boot()
    stage.cluster.start(only=[stage.far])
    stage.cluster.wait_for(2)
    stage.resume()


def cut(stage: Stage) -> None:
    """Replicas on two hosts, whose cable is cut for 20 s, and then for good; once it is back, the run is resumed."""
    stage.cut_for_good(_ranks_apart(stage, "learner.data_parallel=2"))


def killed(stage: Stage) -> None:
    """Pipeline stages on two hosts, the process of one of which is killed; the run is resumed."""
    run = _ranks_apart(stage, "learner.pipeline_parallel=2")
    (rank,) = stage.far.processes("ray::LearnerActor")
    rank.kill()
    _fails(stage, run, r"learner rank 1.*process died")
    stage.resume()


def _fails(stage: Stage, run: Command, why: str) -> None:
    """Wait until a run has failed, and check what it says of it."""
    began = time.monotonic()
    assert run.process.wait(200) == 1  # a host that is off is given up by Ray only after a while
    stage.say(f"ended by itself {time.monotonic() - began:.1f} s later")
    summary = stage.check(Status.FAILED)
    assert re.search(why, summary.reason or ""), summary.reason
    assert "--resume" in run.output, run.output


def _spanning(stage: Stage, per_node: int, *overrides: str) -> None:
    """A short run with learner ranks on both hosts, and an engine on the second."""
    few = [f"learner.placement.per_node={per_node}", f"steps={FEW_STEPS}"]
    run = stage.start(*stage.recipe(*FAR, *few, *overrides))
    run.wait_for(rf"training step [1-{FEW_STEPS}]/")
    stage.say("weights in memory:", *stage.weights_in_memory())
    assert run.process.wait(300) == 0, run.output
    assert stage.check().steps == FEW_STEPS
    assert (stage.run / "model" / "config.json").is_file()


def tensor(stage: Stage) -> None:
    """Two pipeline stages, each on a host with two tensor-parallel ranks."""
    _spanning(stage, 2, "learner.tensor_parallel=2", "learner.pipeline_parallel=2")


def layers(stage: Stage) -> None:
    """Each layer is divided between ranks on two hosts; the plan says what that costs."""
    apart = ["learner.tensor_parallel=2", "learner.tensor_parallel_nodes=several"]
    few = ["learner.placement.per_node=1", f"steps={FEW_STEPS}"]
    stage.call(*stage.recipe(*FAR, *few, *apart), "--dry-run", said="ranks that divide the same layers are on several nodes")
    _spanning(stage, 1, *apart)


def engine(stage: Stage) -> None:
    """An engine has a worker on each host; one is killed, and then its host. The run goes on, the second time when it is back."""
    apart = ["generators.count=1", "generators.tensor_parallel=2", "generators.engine_nodes=2"]
    stage.call(*stage.recipe(*apart), "--dry-run", said="each engine of generators is on 2 nodes")
    run = stage.start(*stage.recipe(*apart, "steps=100000"))
    run.wait_for(r"training step \d+/")
    stage.wait_for_step(6)
    stage.say("weights in memory:", *stage.weights_in_memory())
    assert all(stage.weights_in_memory())
    (follower,) = stage.far.processes("ray::FollowerActor")
    follower.kill()
    run.wait_for(r"generator-0.* generator-1 takes its place")
    run.wait_for(r"generator-1 is up, and has caught up")
    stage.wait_for_step(stage.step + 3)
    stage.far.power_off()
    began = time.monotonic()
    run.wait_for(r"generator-1.*goes on without it while there is no room")
    stage.say(f"that was said {time.monotonic() - began:.0f} s after the host was lost")
    stage.far.boot()
    stage.cluster.start(only=[stage.far])
    stage.cluster.wait_for(2)
    run.wait_for(r"generator-2 is up, and has caught up")
    stage.wait_for_step(stage.step + 3)
    run.signal(signal.SIGINT)
    ledger = stage.check(Status.INTERRUPTED).ledger
    stage.say(ledger)
    assert ledger.expired == ledger.tasks.filtered == ledger.trajectories.missing == 0, ledger


def experts(stage: Stage) -> None:
    """The experts are divided between ranks on two hosts."""
    _spanning(stage, 1, f"model.path={EXPERTS}", "learner.data_parallel=2", "learner.expert_parallel=2")


def context(stage: Stage) -> None:
    """The tokens of each row are divided between ranks on two hosts."""
    _spanning(stage, 1, "learner.context_parallel=2")


def pools(stage: Stage) -> None:
    """Two pools of their own sizes and settings, each on its host, get weights through a folder, as changed blocks."""
    far = "generators.pools={far: {count: 1, max_running: 8, kv_cache_mb: 32, placement: {resources: {node-1: 1}}}}"
    near = ["generators.count=1", "generators.placement.resources={node-0: 1}"]
    stage.call(*stage.recipe(*near, far, "weights.kind=disk", "+weights.delta=true"), seconds=400)
    stage.check()
    for pool in ("generators", "far"):
        sampled = stage.values(f"generators/{pool}/tokens_per_s").values()
        stage.say(f"{pool}: up to {max(sampled):.0f} tokens a second")
        assert max(sampled) > 0
    stage.say("stored:", *sorted(file.name for file in (stage.run / "weights").glob("version-*/rank*")))


def blind(stage: Stage) -> None:
    """Weights go through a folder that the second host does not see any more; after it was switched off and on, it does."""
    run = stage.start(*stage.recipe("generators.count=1", "generators.placement.per_node=1", "steps=100000", "weights.kind=disk"))
    run.wait_for(r"training step \d+/")
    inside = str(stage.runs / stage.run.name)
    stage.far.call(["umount", "--lazy", str(SHARED)], {}, 10)
    stage.call("scale", inside, "generators=2", said="coming up")
    run.wait_for(r"did not come up.*does not see .*/weights, through which new weights go")
    stage.call("scale", inside, "generators=2", code=2, said="there is no room")
    stage.far.power_off()
    stage.far.boot()
    stage.cluster.start(only=[stage.far])
    stage.cluster.wait_for(2)
    stage.call("scale", inside, "generators=2", said="coming up")
    run.wait_for(r"generator-\d+ is up, and has caught up")
    run.signal(signal.SIGINT)
    ledger = stage.check(Status.INTERRUPTED).ledger
    assert ledger.failed == ledger.expired == 0, ledger


def late(stage: Stage) -> None:
    """The second host joins while the run trains adapters, and takes an engine for which the first has no room.

    The adapters alone are published, and each episode is played with one version of them.
    """
    lora = ["+learner.lora={rank: 8, publish: adapter}", "generators.updates=at_episode"]
    run = stage.start(*stage.recipe("generators.count=1", "steps=100000", *lora))
    run.wait_for(r"training step \d+/")
    inside = str(stage.runs / stage.run.name)
    stage.call("scale", inside, "generators=2", code=2, said="there is no room")
    stage.cluster.start(only=[stage.far])
    stage.cluster.wait_for(2)
    stage.call("scale", inside, "generators=2", said="coming up")
    run.wait_for(r"generator-\d+ is up, and has caught up")
    assert stage.weights_in_memory()[1]
    stage.call("scale", inside, "generators=1", said="hands back its")
    run.wait_for(r"generator-[1-9]\d* has handed back its episodes, and ends")
    at = stage.step
    stage.wait_for_step(at + 5)
    assert not stage.far.processes("ray::GeneratorActor")
    stage.say(f"the far engine is gone, and training went on from step {at}")
    run.signal(signal.SIGINT)
    ledger = stage.check(Status.INTERRUPTED).ledger
    stage.say(ledger)
    assert ledger.failed == ledger.expired == 0


def folders(stage: Stage) -> None:
    """What cannot be shared is refused before anything starts; what is brought or fetched instead is said."""
    ranks = ["learner.data_parallel=2", RANKS_APART]
    stage.call(*stage.recipe(*FAR, *ranks), code=2, said="learner ranks there write checkpoints into it")
    stage.call(*stage.recipe(*FAR, "weights.kind=disk", "--dry-run"), code=2, said="new weights go through it")
    stage.call(*stage.recipe(*FAR, "weights.kind=shm", "--dry-run"), code=2, said="shm reaches engines on the node of all")
    shown = stage.call(*stage.recipe(*FAR, "--dry-run"), said="not on 10.77.0.2: fetched there")
    print(shown[shown.index("Nodes") : shown.index("Tasks")])
    assert list(stage.outside(stage.runs).iterdir()) == []


def unreachable(stage: Stage) -> None:
    """A cluster that is not there is refused within the deadlines that the documentation states."""
    strange = "import socket, time; s = socket.create_server(('0.0.0.0', 7777)); time.sleep(600)"
    stage.far.popen([sys.executable, "-c", strange], {})
    for address in ("10.77.0.99:6379", "10.78.0.1:6379", f"{stage.head.address}:9", f"{stage.far.address}:7777"):
        stage.call(*stage.recipe("--dry-run"), code=2, said="cannot join Ray", seconds=80, RAY_ADDRESS=address)
    stage.call(*stage.recipe("--dry-run"), code=2, said="RAY_AUTH_TOKEN", seconds=80, RAY_AUTH_TOKEN="0" * 64)


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    each.__name__: each
    for each in (data, pipeline, cut, killed, tensor, layers, engine, experts, context, pools, blind, late, folders, unreachable)
}
SHARING = {"data", "pipeline", "cut", "killed", "tensor", "layers", "experts", "context", "pools", "blind"}
"""Scenarios whose runs lie where both hosts see them."""


def main(scenarios: Mapping[str, Callable[[Stage], None]] = SCENARIOS) -> None:
    """Play the scenarios that were named."""
    parser = argparse.ArgumentParser(description=(sys.modules["__main__"].__doc__ or "").splitlines()[0])
    parser.add_argument("scenarios", nargs="+", choices=scenarios)
    parser.add_argument("--tls", action="store_true", help="encrypt all connections")
    arguments = parser.parse_args()
    chosen: list[str] = arguments.scenarios
    joins_late = chosen[0] == "late"
    if "late" in chosen[1:]:
        parser.error("late must come first: the second host has not joined yet then")
    failed = []
    with tempfile.TemporaryDirectory() as folder, hosts(2, Path(folder)) as made:
        variables = encrypted(Path(folder)) if arguments.tls else None
        cluster = RayCluster(made, cpus=2 if joins_late else 3, variables=variables)  # `late` needs a first host without room
        stage = Stage(Path(folder), made, cluster, tls=arguments.tls)
        cluster.start(only=made[:1] if joins_late else None)
        cluster.wait_for(1 if joins_late else 2)
        for name in chosen:
            stage.say(f"{name}: {scenarios[name].__doc__}")
            stage.runs = (SHARED if name in SHARING else OWN) / name
            stage.outside(stage.runs).mkdir(parents=True)
            try:
                scenarios[name](stage)
            except Exception:  # noqa: BLE001 - the next one is played
                failed.append(name)
                traceback.print_exc()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
