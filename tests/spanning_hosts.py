"""Plays what spans two hosts in whole runs, by hand, and prints what is seen: ranks apart, pools, latecomers, folders.

As root: ``python tests/spanning_hosts.py late pools`` plays these one after the other, on one pair of hosts made of
namespaces. Each fails at the first thing that is not as it should be, and the next one is played. ``late`` must come first.
With ``--tls`` all connections are encrypted, the runs' and Ray's.
"""

import argparse
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from far_run import EXPERTS, FEW_STEPS, RUNS, Command, Stage
from namespace_hosts import SHARED, hosts
from two_nodes import RayCluster, encrypted

from asyncrl.run.measures.summary import Status

FAR = ["generators.count=1", "generators.placement.resources={node-1: 1}"]
"""One engine, on the second host."""
RANKS_APART = "learner.placement.per_node=1"


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
    assert run.process.wait(600) == 0, run.output
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
    stage.call(*stage.recipe(*near, far, "weights.kind=disk", "+weights.delta=true"))
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
    assert ledger.failed == ledger.tasks.filtered == ledger.trajectories.missing == 0, ledger
    # What was handed back begins again, and a few groups are too old by then. Their tasks are issued again.
    assert ledger.expired <= ledger.trained // 50, ledger


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
            stage.runs = (SHARED if name in SHARING else RUNS) / name
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
