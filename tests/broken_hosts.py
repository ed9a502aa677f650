"""Plays what goes wrong between two hosts in one whole run, by hand, and prints what the run says and does about it.

As root: ``python tests/broken_hosts.py full slow unknown_clients cut lost full_first -- OVERRIDES`` plays these one after the
other, in a run whose model of seven million parameters has engines on both hosts. ``full`` must come first: the far host's memory
is almost full from the beginning.
"""

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from far_run import RUNS, FarRun
from namespace_hosts import Host, hosts
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from two_nodes import RayCluster

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny import ensure_tiny_model
from asyncrl.learners.tiny.settings import WarmUp
from asyncrl.run.measures.summary import Summary

SHORT = WarmUp(steps=3, lr_steps=1, batch_size=4, measure_every=2, skill=0.0, training_tasks=60, held_out_tasks=30)
LEFT_MB = 20
"""What ``full`` leaves of the far host's memory file system: less than a publication of 29 MB."""
MBIT = 200

_PORTS = """
import psutil
for each in psutil.net_connections("tcp"):
    if each.status == "LISTEN" and each.pid:
        name = " ".join(psutil.Process(each.pid).cmdline())
        if each.laddr.ip.startswith("10.") and "BufferActor" in name:
            print(each.laddr.ip, each.laddr.port, name.split()[0])
"""
_UNKNOWN_CLIENT = """
import os, socket, sys, time
def refused(one):
    one.settimeout(20)
    try:
        while True:
            if not (said := one.recv(4096)):
                return "closed"
            print("GOT", said[:40])
    except TimeoutError:
        return "open after 20 s"
    except OSError as error:
        return type(error).__name__
for address in sys.argv[1:]:
    host, port = address.split(":")
    def connect():
        return socket.create_connection((host, int(port)), timeout=10)
    silent = [connect() for _ in range(100)]
    for what, sent in {
        "a wrong secret of the right length": os.urandom(32),
        "a wrong secret as a frame": (32).to_bytes(4, "little") + os.urandom(32),
        "4 MB of garbage": os.urandom(4 << 20),
        "a frame of 4 GB announced": b"\\xff" * 8,
        "half a secret": os.urandom(7),
    }.items():
        one = connect()
        try:
            one.sendall(sent)
            end = refused(one)
        except OSError as error:
            end = type(error).__name__
        print(f"{address}: {what}: {end}", flush=True)
    for one in silent[:50]:
        one.close()
    closed = sum(refused(one) != "open after 20 s" for one in silent[50:])
    print(f"{address}: {closed} of 50 connections that said nothing were closed", flush=True)
"""


class Stage:
    """Two hosts, the cluster, and the run on them once it is launched."""

    def __init__(self, head: Host, far: Host, cluster: RayCluster, model: Path) -> None:
        self.head, self.far, self.cluster, self.model = head, far, cluster, model
        self._began = time.monotonic()
        self.run: FarRun

    def say(self, *words: object) -> None:
        """Print with the time since the beginning."""
        print(f"[{time.monotonic() - self._began:6.1f}]", *words, flush=True)

    def launch(self, *overrides: str) -> None:
        """Launch, and wait for the first training step."""
        small = ["batch.groups_per_step=4", "batch.group_size=4", "tasks.evaluation=8", "sampling.max_turn_tokens=24"]
        endless = [
            "steps=100000",
            "evaluation.every=100000",
            "checkpoint.every=20",
            f"run_dir={RUNS}",
            f"model.path={self.model}",
        ]
        engines = ["generators.count=2", "generators.placement.strategy=spread"]
        self.run = FarRun(
            self.head, self.cluster, "launch", "quickstart", *small, *endless, *engines, *overrides, told=self._told
        )
        self.run.wait_for(r"training step \d+/", 600)

    def resume(self) -> None:
        """Resume the run, and wait for a training step."""
        inside = str(RUNS / self.run.folder.name)
        self.run = FarRun(self.head, self.cluster, "launch", "--resume", inside, told=self._told)
        self.run.wait_for(r"training step \d+/", 600)

    def _told(self, line: str) -> None:
        if line.strip():
            self.say("  |", line.strip()[:400])

    def watch(self, seconds: float) -> None:
        """Let the run go on for a while, and say how far it came."""
        ends, at = time.monotonic() + seconds, self.step
        while time.monotonic() < ends:
            assert self.run.process.poll() is None, self.run.output
            self.run.look()
            time.sleep(0.2)
        self.say(f"{self.step - at} training steps in {seconds:g} s")

    @property
    def step(self) -> int:
        """The newest training step in the run's metrics."""
        return max(self.run.values("learner/step_seconds"))

    def log(self, pattern: str, word: str) -> None:
        """Say the lines of logs that have a word."""
        for log in sorted((self.run.folder / "logs").glob(pattern)):
            found = [line for line in log.read_text(errors="replace").splitlines() if word in line]
            self.say(f"{log.name}: {len(found)} lines with {word!r}", *(f"\n           {line[:300]}" for line in found[:6]))


def full(stage: Stage) -> None:
    """The far host's memory file system was almost full from the beginning; now it is emptied."""
    stage.watch(15)
    stage.far.call(["rm", "/dev/shm/fill"], {}, 10)
    stage.say("room again")
    stage.run.wait_for(r"generator-\d+ is up, and has caught up", 300)
    stage.watch(10)
    stage.far.call(["sh", "-c", "cat /dev/zero > /dev/shm/fill; df /dev/shm | tail -1"], {}, 60)
    stage.say("the memory of the far host is full to the last byte")
    stage.watch(15)
    stage.far.call(["rm", "/dev/shm/fill"], {}, 10)


def full_first(stage: Stage) -> None:
    """The memory file system of the first host is filled. If that ends the run, both hosts start anew, and it is resumed."""
    stage.watch(5)
    stage.head.call(["sh", "-c", "cat /dev/zero > /dev/shm/fill; df /dev/shm | tail -1"], {}, 60)
    stage.say("the memory of the first host is full to the last byte")
    ends, at = time.monotonic() + 60, stage.step
    while stage.run.process.poll() is None and time.monotonic() < ends:
        stage.run.look()
        time.sleep(0.2)
    stage.say(f"{stage.step - at} training steps")
    if stage.run.process.poll() is None:
        stage.head.call(["rm", "/dev/shm/fill"], {}, 10)
        stage.watch(10)
        return
    stage.run.look()
    stage.say("exit", stage.run.process.poll(), Summary.read(stage.run.folder / "summary.json").reason)
    for host in (stage.head, stage.far):
        host.power_off()
        host.boot()
    stage.cluster.start()
    stage.cluster.wait_for(2)
    stage.resume()


def slow(stage: Stage) -> None:
    """The cable of the far host carries 200 Mbit/s."""
    stage.far.limit(MBIT)
    stage.say(f"{MBIT} Mbit/s")
    stage.watch(40)
    stage.log("driver.log", "does not have version")


def unknown_clients(stage: Stage) -> None:
    """Somebody without the secret connects to the buffer's process from the other host: to our port, and to Ray's."""
    ports = [line.split() for line in stage.head.call([sys.executable, "-c", _PORTS], {}, 60).splitlines()]
    stage.say(ports)
    calling = [f"{host}:{port}" for host, port, _ in ports]
    assert calling, "the buffer listens nowhere"
    stage.say("\n" + stage.far.call([sys.executable, "-c", _UNKNOWN_CLIENT, *calling], {}, 300))
    stage.watch(10)
    stage.log("buffer.log", "did not show")


def cut(stage: Stage) -> None:
    """The cable of the far host is cut for 8 s, and then for 20 s."""
    for seconds in (8, 20):
        stage.say(f"cut for {seconds} s")
        stage.far.unplug()
        stage.watch(seconds)
        stage.far.plug()
        stage.say("repaired")
        stage.watch(30)


def lost(stage: Stage) -> None:
    """The far host is switched off, and on again."""
    stage.far.power_off()
    stage.say("switched off")
    stage.watch(60)
    stage.far.boot()
    stage.cluster.start(only=[stage.far])
    stage.say("switched on")
    stage.run.wait_for(r"generator-\d+ is up, and has caught up", 400, after=len(stage.run.output))
    stage.watch(10)


PLAYS: dict[str, Callable[[Stage], None]] = {each.__name__: each for each in (full, slow, unknown_clients, cut, lost, full_first)}


def make_model(folder: Path) -> Path:
    """Make a model of seven million parameters that reads and writes as the tiny model does."""
    tiny = ensure_tiny_model({"": ClassEnvironmentConfig(name="calculator")}, 0, lambda progress: None, folder / "cache", SHORT)
    config = AutoConfig.from_pretrained(tiny)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 256, 1024, 8
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32).save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(folder / "model")
    return folder / "model"


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plays", nargs="+", choices=PLAYS)
    own, _, overrides = " ".join(sys.argv[1:]).partition("--")
    chosen = parser.parse_args(own.split())
    with tempfile.TemporaryDirectory() as folder, hosts(2, Path(folder)) as (head, far):
        model = make_model(head.seen_from_outside(Path("/tmp/models")))
        cluster = RayCluster((head, far), cpus=(2, 4))  # an engine that the far host loses has no room on the first
        cluster.start()
        cluster.wait_for(2)
        stage = Stage(head, far, cluster, Path("/tmp/models") / model.name)
        with contextlib.suppress(KeyboardInterrupt):
            if "full" in chosen.plays:
                far.call(
                    [
                        "sh",
                        "-c",
                        f"head -c $(($(df -B1 --output=avail /dev/shm | tail -1) - {LEFT_MB << 20})) /dev/zero > /dev/shm/fill",
                    ],
                    {},
                    60,
                )
            stage.launch(*overrides.split())
            for play in chosen.plays:
                stage.say(f"--- {play}: {PLAYS[play].__doc__}")
                PLAYS[play](stage)
            if stage.run.process.poll() is None:
                summary = stage.run.interrupt(200)
                stage.say(summary.status, summary.ledger)
        shutil.copytree(stage.head.seen_from_outside(RUNS), Path("/var/tmp/broken-hosts") / str(int(time.time())), symlinks=True)


if __name__ == "__main__":
    main()
