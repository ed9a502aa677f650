"""Plays whole runs over two hosts with what serves a run beside its engines: rewards, tools, folders of episodes, payload.

As root: ``python tests/served_hosts.py tools model shard evaluate`` plays these one after the other, on one pair of hosts, as
``tests/spanning_hosts.py`` does.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
from far_run import TINY, Command, Stage
from judging_models import make_reward_model
from namespace_hosts import Host
from spanning_hosts import FAR, main

from asyncrl.buffers.payload_store import SUFFIX
from asyncrl.core.task import Task
from asyncrl.envs.builtin.sandboxed import SandboxedEnvironment, write_files
from asyncrl.envs.mcp.calculator import make_tasks, reward
from asyncrl.envs.sandbox.python_programs import RUN_CODE, python_command, python_folders
from asyncrl.envs.sandbox.run_report import describe_run
from asyncrl.envs.tool_marks import tool
from asyncrl.run.measures.summary import Status, Summary

SERVED = Path("/tmp/served")
"""Where the service on the first host tells who asked it, and for how many scores."""
BESIDE = 10.0
"""What the service adds to each reward, so that nothing else can have given it."""
_SERVICE = f"""
import http.server, json

class Scores(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        episodes = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["episodes"]
        body = json.dumps({{"scores": [{BESIDE} + each["reward"] for each in episodes]}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        with open("{SERVED}", "a") as served:
            served.write(f"{{self.client_address[0]}} {{len(episodes)}}\\n")

    def log_message(self, *told):
        pass

http.server.ThreadingHTTPServer(("0.0.0.0", 8900), Scores).serve_forever()
"""
_RECIPE = """
name: tools
steps: 6
model: {path: /tmp/models/tiny, max_context: 320}
environment:
  kind: mixed
  members:
    served:
      kind: mcp
      command: [python, -m, asyncrl.envs.mcp.calculator_server]
      reward: asyncrl.envs.mcp.calculator:reward
      tasks: asyncrl.envs.mcp.calculator:make_tasks
      max_turns: 4
    sandboxed: {name: "served_hosts:Sandboxed", max_turns: 4, tool_timeout_s: 60}
tasks: {train: 200, evaluation: 4}
batch: {groups_per_step: 6, group_size: 4}
sampling: {max_turn_tokens: 64}
learner: {lr: 2e-4, warmup_steps: 2, data_parallel: 1}
generators: {kv_cache_mb: 64}
evaluation: {every: 100}
tracking: {trajectories: {keep: all}}
"""


class Sandboxed(SandboxedEnvironment):
    """Has tasks and tool of the built-in calculator, which computes in a sandbox, from a file in the episode's folder."""

    @tool
    async def calculator(self, expression: str) -> str:
        """One operation on two integers: +, - or *."""
        await write_files(self.workspace, {"expression": expression})
        code = b"print(eval(open('expression').read()))"
        return describe_run(await self.run(python_command(RUN_CODE, False), code, python_folders(False)), self.limits).strip()

    def reward(self, task: Task, answer: str) -> float:
        """1 if the answer is right, else 0."""
        return reward(task, answer)

    @classmethod
    def make_tasks(cls, split: str, count: int, seed: int, **options: Any) -> Sequence[Task]:
        """Make arithmetic tasks."""
        return make_tasks(split, count, seed)


def tools(stage: Stage) -> None:
    """MCP servers, a sandbox and folders of episodes beside the only engine, on the far host; a service on the head scores."""
    stage.head.popen([sys.executable, "-c", _SERVICE], {})
    stage.outside(Path("/tmp/tools.yaml")).write_text(_RECIPE)
    scored = [f"reward={{kind: remote, url: 'http://{stage.head.address}:8900/score'}}", "buffer.shards=2"]
    run = stage.start("launch", "/tmp/tools.yaml", f"run_dir={stage.runs}", *FAR, *scored)
    seen = _watch(stage, run, files=["tmp/asyncrl-0/*/episode-*"], processes=["calculator_server", "sandbox.supervisor"])
    summary = _accounted(stage, 6 * 6)
    stage.say("seen on the hosts:", seen)
    assert all(seen[1].values()), seen
    assert not any(seen[0].values()), seen
    asked = [line.split() for line in stage.outside(SERVED).read_text().splitlines()]
    stage.say(f"scores asked for: {sum(int(count) for _, count in asked)}, from {sorted({host for host, _ in asked})}")
    assert {host for host, _ in asked} == {stage.far.address}
    assert sum(int(count) for _, count in asked) >= summary.ledger.trained * 4
    for each in (trained := _trained(stage)):
        metrics = dict(each["metrics"])
        assert each["reward"] == metrics["model_score"] == BESIDE + metrics["environment_reward"], each
    calls = [(each["environment"], call["outcome"]) for each in trained for turn in each["turns"] for call in turn["calls"]]
    counts = {each: calls.count(each) for each in sorted(set(calls))}
    stage.say(f"{len(trained)} episodes were trained; their calls: {counts}")
    assert all(counts.get((member, "ok"), 0) > 0 for member in ("served", "sandboxed")), counts
    _nothing_left(stage)


def model(stage: Stage) -> None:
    """A reward model on one host scores what engines on both hosts play, each with a payload shard beside it."""
    make_reward_model(stage.outside(Path("/tmp/models/reward")), stage.outside(TINY))
    scored = ["+reward={kind: model, path: /tmp/models/reward}", "+tracking.trajectories.keep=all", "buffer.shards=2", "steps=8"]
    spread = ["generators.count=2", "generators.placement.strategy=spread", "buffer.journal.kind=none"]
    run = stage.start(*stage.recipe(*spread, *scored))
    payload = f"dev/shm/asyncrl-*-payload/shard-[01]/*{SUFFIX}"
    seen = _watch(stage, run, files=[payload], processes=["RewardModelActor"])
    _accounted(stage, 8 * 4)
    stage.say("seen on the hosts:", seen)
    assert all(each[payload] for each in seen), seen
    assert sum(each["RewardModelActor"] for each in seen) == 1, seen
    trained = _trained(stage)
    scores = {dict(each["metrics"])["model_score"] for each in trained}
    assert all(each["reward"] == dict(each["metrics"])["model_score"] for each in trained)
    stage.say(f"{len(trained)} episodes were trained, with {len(scores)} scores from {min(scores):.2f} to {max(scores):.2f}")
    assert len(scores) > 10
    _nothing_left(stage)


def shard(stage: Stage) -> None:
    """The cable of the host with a payload shard and an engine is cut for 20 s, and then for good; the run is resumed."""
    spread = ["generators.count=2", "generators.placement.strategy=spread", "buffer.shards=2", "steps=100000"]
    run = stage.start(*stage.recipe(*spread))
    run.wait_for(r"training step \d+/")
    stage.wait_for_step(8)
    stage.cut_for_good(run)


def evaluate(stage: Stage) -> None:
    """A run with an engine on each host is interrupted, and its checkpoint evaluated with an engine on each host."""
    spread = ["generators.count=2", "generators.placement.strategy=spread"]
    run = stage.start(*stage.recipe(*spread, "steps=100000", "checkpoint.every=4"))
    run.wait_for(r"training step \d+/")
    stage.wait_for_step(8)
    run.signal(signal.SIGINT)
    stage.check(Status.INTERRUPTED)
    _nothing_left(stage)
    stage.call("evaluate", str(stage.runs / stage.run.name), f"run_dir={stage.runs}", "evaluation.temperature=1", *spread)
    (folder,) = stage.outside(stage.runs).glob("evaluation-*/1-*")
    rows = {file.stem: pq.read_metadata(file).num_rows for file in (folder / "trajectories").glob("*.parquet")}
    stage.say("episodes:", rows, "logs:", {file.name: file.stat().st_size for file in (folder / "logs").iterdir()})
    assert sum(rows.values()) == 8 * 8
    assert {name.split("-")[3] for name in rows} == {"0", "1"}, rows
    _nothing_left(stage)


def _watch(stage: Stage, run: Command, *, files: Sequence[str], processes: Sequence[str]) -> list[dict[str, int]]:
    """Wait until a run has completed; returns for each host how many such files and processes it had while training, at most."""
    run.wait_for("Training steps")  # before, an episode is tried on the first host
    most = [dict.fromkeys((*files, *processes), 0) for _ in range(2)]
    by = time.monotonic() + 400
    while run.process.poll() is None:
        assert time.monotonic() < by, run.output
        for host, found in zip((stage.head, stage.far), most, strict=True):
            names = [name for each in psutil.process_iter() if (name := _name(each, host))]
            now = {each: sum(1 for _ in Path(f"/proc/{host.pid}/root").glob(each)) for each in files}
            now |= {each: sum(each in name for name in names) for each in processes}
            found.update({what: max(count, found[what]) for what, count in now.items()})
        time.sleep(0.3)
    assert run.process.returncode == 0, run.output
    return most


def _name(process: psutil.Process, host: Host) -> str:
    """The command line of a process; empty if it is not on the host."""
    try:
        there = os.readlink(f"/proc/{process.pid}/ns/pid") == os.readlink(f"/proc/{host.pid}/ns/pid")
        return " ".join(process.cmdline()) if there else ""
    except (OSError, psutil.Error):
        return ""


def _accounted(stage: Stage, trained: int) -> Summary:
    """Check that a run has completed with so many groups trained, and lost none of those that it issued."""
    summary = Summary.read(stage.run / "summary.json")
    ledger = summary.ledger
    stage.say(f"{summary.status} after {summary.steps} steps. {summary.reason}", ledger)
    ended = ledger.trained + ledger.filtered + ledger.expired
    assert (summary.status, ledger.trained) == (Status.COMPLETED, trained), summary
    assert ledger.issued == ended + ledger.running + ledger.committed + ledger.taken + ledger.failed, ledger
    return summary


def _trained(stage: Stage) -> list[dict[str, Any]]:
    """The episodes that the run has trained."""
    columns = ["environment", "reward", "metrics", "turns"]
    files = sorted((stage.run / "trajectories").glob("train-*.parquet"))
    return [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]


def _nothing_left(stage: Stage) -> None:
    """Say what is left on the hosts, and check that it is nothing but the run folder and copies of models that runs are given."""
    for host in (stage.head, stage.far):
        root, far = Path(f"/proc/{host.pid}/root"), host is stage.far
        below = [*root.glob("dev/shm/*"), *root.glob("tmp/*"), *root.glob("tmp/home/.cache/*")]
        stage.say(f"left on {host.name}:", sorted(str(each.relative_to(root)) for each in below))
        assert not [*root.glob("dev/shm/asyncrl-*"), *root.glob("tmp/asyncrl-*/*/*"), *root.glob("tmp/asyncrl-engine-*")]
        copies = [str(each.relative_to(root)) for each in root.glob("tmp/home/.cache/asyncrl/models/*/*")]
        runs = [str(each.relative_to(root)) for each in root.glob("tmp/runs/*/*/*")]
        if far:
            stage.say("copies of models and files of runs there:", copies, runs)
            assert all(Path(each).name in ("in-use", "lock", "tiny", "reward") for each in copies), copies
            assert all(Path(each).name == "buffer" for each in runs), runs


if __name__ == "__main__":
    main({each.__name__: each for each in (tools, model, shard, evaluate)})
