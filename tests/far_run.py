"""Whole runs on hosts made of namespaces: launched on the first, watched from outside."""

import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from sqlite3 import connect
from subprocess import TimeoutExpired

import psutil
import torch
from namespace_hosts import SHARED, Host
from transformers import AutoConfig, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM
from two_nodes import RayCluster

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny import ensure_tiny_model
from asyncrl.run.measures.summary import Status, Summary

RUNS = Path("/tmp/runs")
"""Where the first host keeps its runs; no other host sees it."""
STEPS, FEW_STEPS = 24, 6
CUT_S = 20.0
"""A cut of the cable that is waited out: shorter than Ray takes to give a node up."""
TINY, EXPERTS = Path("/tmp/models/tiny"), Path("/tmp/models/experts")
"""Models of the first host: the tiny one, and one of the same tokens with experts, untrained."""


class FarRun:
    """A process of ``asyncrl`` on the first host.

    Args:
        arguments: the command and its arguments.
        told: called with each line of its output, while somebody waits for something.
        there: the folder of the first host that it is launched in, instead of this process's.
    """

    def __init__(
        self,
        head: Host,
        cluster: RayCluster,
        *arguments: str,
        told: Callable[[str], None] = lambda line: None,
        there: Path | None = None,
        **environment: str,
    ) -> None:
        self._head, self._told, self._shown = head, told, 0
        command = [*([] if there is None else ["env", f"--chdir={there}"]), sys.executable, "-m", "asyncrl.cli.main", *arguments]
        self._output = head.seen_from_outside(Path(f"/tmp/output-{time.monotonic_ns()}"))
        with self._output.open("wb") as output:
            variables = {**cluster.environment, "PYTHONPATH": ":".join(filter(None, sys.path)), **environment}
            self.process = head.popen(command, variables, output.fileno())

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def look(self) -> str:
        """Tell the lines that are new, and return the whole output."""
        output = self.output
        whole = output[: output.rfind("\n") + 1]
        for line in whole[self._shown :].splitlines():
            self._told(line)
        self._shown = len(whole)
        return output

    def wait_for(self, pattern: str, seconds: float, after: int = 0) -> int:
        """Until the run has printed ``pattern``, in its output from a place on; returns the place behind it."""
        by = time.monotonic() + seconds
        while (found := re.compile(pattern).search(self.look(), after)) is None:
            assert self.process.poll() is None, f"the run ended before {pattern!r}: {self.output}"
            assert time.monotonic() < by, f"{pattern!r} took longer than {seconds:g} s: {self.output}"
            time.sleep(0.2)
        return found.end()

    @property
    def step(self) -> int:
        """The last training step that the run has told of."""
        return int(re.findall(r"training step (\d+)/", self.output)[-1])

    def values(self, metric: str) -> dict[int, float]:
        """The values of a metric so far, by training step."""
        with closing(connect(self.folder.parent / "mlflow.db", timeout=10)) as database:
            return dict(database.execute("select step, value from metrics where key = ? order by step", (metric,)).fetchall())

    def interrupt(self, seconds: float) -> Summary:
        """Its summary, once it has ended because of Ctrl-C."""
        for child in psutil.Process(self.process.pid).children():
            child.send_signal(signal.SIGINT)
        self.process.wait(seconds)
        self.look()
        return Summary.read(self.folder / "summary.json")

    @property
    def folder(self) -> Path:
        """The folder of the only run, as seen from outside."""
        (folder,) = [path for path in self._head.seen_from_outside(RUNS).iterdir() if (path / "recipe.yaml").is_file()]
        return folder


class Stage:
    """Two hosts with a Ray cluster, the first of which has models.

    Attributes:
        runs: where the scenario's runs go.
    """

    def __init__(self, folder: Path, made: Sequence[Host], cluster: RayCluster, *, tls: bool) -> None:
        self.folder, (self.head, self.far), self.cluster = folder, made, cluster
        self._tls = ["network.tls.kind=run"] if tls else []
        self.runs = RUNS
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

    def call(self, *arguments: str, code: int = 0, said: str = "", seconds: float = 600, **variables: str) -> str:
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

    def wait_for_step(self, step: int, seconds: float = 400) -> None:
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
        with suppress(TimeoutExpired):
            run.process.wait(200)
        assert run.process.returncode == 1, run.output
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

    def wait_for(self, pattern: str, seconds: float = 600) -> None:
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
        self.process.wait(200)
        self._stage.say(f"ended after {number.name}")
