"""Plays whole runs over two hosts that a job system starts, stops and resumes, and that are observed: Ray's, and Slurm.

As root: ``python tests/job_hosts.py submitted scraped stored redis slurm`` plays these one after the other, each on hosts as in
``tests/spanning_hosts.py``. The first two need ``ray[default]``, ``redis`` Redis (Debian: ``redis-server``), and ``slurm``
Slurm's daemons (Debian: ``slurm-wlm``).
"""

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import isnan
from pathlib import Path
from sqlite3 import OperationalError

from far_run import FarRun, Stage
from namespace_hosts import SHARED, hosts
from two_nodes import RayCluster

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny import ensure_tiny_model
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.tracking.further_trackers import exported_name

SCRIPT = Path(__file__).parents[1] / "docs" / "how-to" / "scaling" / "slurm.sh"
CONFIG = SHARED / "slurm.conf"
_SLURM = """
ClusterName=hosts
SlurmctldHost=node-0
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
SwitchType=switch/none
SlurmUser=root
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmctldLogFile=/tmp/slurmctld.log
StateSaveLocation=/tmp/slurmctld
SlurmdPidFile=/tmp/slurmd.pid
SlurmdLogFile=/tmp/slurmd.log
SlurmdSpoolDir=/tmp/slurmd
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
TaskPlugin=task/affinity
DefMemPerCPU=1000
NodeName=node-[0-1] CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_EXPORTERS = """
import ray
ray.init(address="auto", log_to_driver=False)
print(",".join(f"{each['NodeManagerAddress']}:{each['MetricsExportPort']}" for each in ray.nodes()))
"""
_GAUGE = re.compile(r'^(ray_asyncrl_\w+)\{[^}]*run="[^}]*\} (\S+)$', re.MULTILINE)
_PUT = """
import os, pathlib, sys, time
from pyarrow.fs import S3FileSystem
files = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True)
for left in range(30, -1, -1):
    try:
        files.create_dir("bucket")
        break
    except OSError:  # the server is not up yet
        if not left:
            raise
        time.sleep(1)
for file in pathlib.Path(sys.argv[1]).iterdir():
    with files.open_output_stream(f"bucket/models/tiny/{file.name}") as out:
        out.write(file.read_bytes())
"""
_LIST = """
import os
from pyarrow.fs import FileSelector, S3FileSystem
files = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"])
print(*(each.path for each in files.get_file_info(FileSelector("bucket", recursive=True))))
"""
PROJECT = Path("/tmp/project")
STORED_STEPS = 12
SPREAD = ["generators.count=2", "generators.placement.strategy=spread", "checkpoint.every=4"]
STEPS, STOPPED_AT = 60, 8
LONG, AWAY_S = 300, 20
"""Steps of a run that goes on while the head of the cluster is away, and for how long it is."""


def submitted(stage: Stage, call: Callable[..., str]) -> None:
    """A run is a job of Ray on a cluster of both hosts: stopped, and resumed by another job."""
    stage.cluster.start()
    stage.cluster.wait_for(2)
    address = f"--address=http://{stage.head.address}:8265"
    patient = '--runtime-env-json={"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}'
    first = ["--no-wait", "--submission-id=first", patient]
    call("ray", "job", "submit", address, *first, "--", "asyncrl", *stage.recipe(*SPREAD, f"steps={STEPS}"))
    _wait_for_step(stage)
    call("ray", "job", "stop", address, "first")
    assert "was stopped" in call("ray", "job", "status", address, "first")
    _interrupted(stage)
    said = call("ray", "job", "submit", address, "--submission-id=second", "--", "asyncrl", *_resumed(stage))
    assert "succeeded" in said, said
    stage.check()


def scraped(stage: Stage, call: Callable[..., str]) -> None:
    """While a run trains, Ray's exporter gives the values that its own records have, over HTTP."""
    stage.cluster.start()
    stage.cluster.wait_for(2)
    run = stage.start(*stage.recipe(*SPREAD, "steps=100000", "tracking.also=[ray]"))
    _wait_for_step(stage)
    places = call(sys.executable, "-c", _EXPORTERS).split()[-1].split(",")
    step, given = 0.0, dict[str, float]()
    by = time.monotonic() + 120
    while step < STOPPED_AT:
        assert time.monotonic() < by, "the exporters do not give the run's training step"
        time.sleep(1)
        pages = [call("curl", "--silent", "--noproxy", "*", f"http://{place}/metrics") for place in places]
        given = {name: float(value) for name, value in re.findall(_GAUGE, "".join(pages))}
        step = given.pop("ray_asyncrl_training_step", 0.0)
    run.signal(signal.SIGINT)
    recorded = {f"ray_{exported_name(name)}": stage.values(name) for name in stage.metrics()}
    # A gauge has the newest value. A scrape may come while those of a step are handed over one after the other.
    near = {name: [value for at, value in values.items() if at <= step + 1][-3:] for name, values in recorded.items()}
    other = {name: (value, near[name]) for name, value in given.items() if value not in near[name] and not isnan(value)}
    stage.say(f"step {step:g}: {len(given)} gauges; those without the run's values: {other}")
    assert len(given) > 50
    assert not other


def slurm(stage: Stage, call: Callable[..., str]) -> None:
    """A run is a job of Slurm on both hosts, by the script of the documentation: stopped, and resumed by another job."""
    (stage.folder / SHARED.name / CONFIG.name).write_text(_SLURM)
    # As daemons: they are children of process 1 then, as Slurm's tracking of processes expects.
    call("sh", "-c", "mkdir /tmp/slurmctld && slurmctld > /tmp/slurmctld.out 2>&1")
    for host in (stage.head, stage.far):
        host.call(["sh", "-c", f"slurmd -N {host.name} > /tmp/slurmd.out 2>&1"], {"SLURM_CONF": str(CONFIG)}, 30)
    sbatch = ["sbatch", "--parsable", f"--chdir={SHARED}", "--nodes=2"]
    job = call(*sbatch, str(SCRIPT), *stage.recipe(*SPREAD, f"steps={STEPS}")[1:]).strip()
    _wait_for_step(stage)
    call("scancel", "--batch", "--signal=TERM", job)
    by = time.monotonic() + 90
    while call("squeue", "--noheader", "--jobs", job).strip():
        assert time.monotonic() < by, "the job does not end"
        time.sleep(1)
    _interrupted(stage)
    call(*sbatch, "--wait", str(SCRIPT), *_resumed(stage)[1:])
    stage.check()


def _wait_for_step(stage: Stage) -> None:
    """Until the run trains. While MLflow makes its database, metrics cannot be read."""
    by = time.monotonic() + 600
    while True:
        assert time.monotonic() < by, "the run does not train"
        with suppress(OperationalError):
            if (stage.outside(stage.runs) / "mlflow.db").exists() and stage.step >= STOPPED_AT:
                return
        time.sleep(0.5)


def _interrupted(stage: Stage) -> None:
    assert stage.check(Status.INTERRUPTED).steps < STEPS
    stage.say("weights left in memory:", *stage.weights_in_memory())
    assert stage.weights_in_memory() == [[], []]


def _resumed(stage: Stage) -> list[str]:
    return ["launch", "--resume", str(stage.runs / stage.run.name)]


@contextmanager
def _stage(name: str) -> Iterator[tuple[Stage, Callable[..., str]]]:
    """Two hosts, and what runs a command on the first to its end, as its user would."""
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": ":".join(filter(None, sys.path))}
    with tempfile.TemporaryDirectory() as folder, hosts(2, Path(folder)) as made:
        cluster = RayCluster(made, variables=path, dashboard=True)
        stage = Stage(Path(folder), made, cluster, tls=False)
        stage.runs = SHARED / name
        stage.outside(stage.runs).mkdir()
        known = {**cluster.environment, "RAY_ADDRESS": "", "SLURM_CONF": str(CONFIG)}

        def call(*command: str) -> str:
            began = time.monotonic()
            said = stage.head.call(command, known, 400)
            stage.say(f"{' '.join(command[:4])}: {time.monotonic() - began:.1f} s:", said.strip().splitlines()[-1:])
            return said

        yield stage, call


def _told_with_the_time() -> Callable[..., None]:
    """Return what prints words behind the seconds since this was called."""
    began = time.monotonic()
    return lambda *words: print(f"[{time.monotonic() - began:6.1f}]", *words, flush=True)


def redis() -> None:
    """A run beside the head of a cluster whose tables are in Redis: the head is switched off and comes
    back; nothing is lost, and an engine that dies then gets a successor."""
    say = _told_with_the_time()
    with tempfile.TemporaryDirectory() as folder, hosts(3, Path(folder)) as made:
        head, worker, store = made
        server = ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", "", "--dir", "/tmp"]
        store.popen(server, {}, os.open(os.devnull, os.O_WRONLY))
        vllm_cache = os.path.expanduser(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm"))
        variables = {"RAY_REDIS_ADDRESS": f"{store.address}:6379", "RAY_gcs_rpc_server_reconnect_timeout_s": "180"}
        path = ":".join(filter(None, sys.path))
        cluster = RayCluster(made[:2], cpus=(0, 4), variables={**variables, "VLLM_CACHE_ROOT": vllm_cache, "PYTHONPATH": path})
        cluster.start()
        cluster.wait_for(2)
        worker.seen_from_outside(PROJECT).mkdir()
        small = [
            "batch.groups_per_step=4",
            "batch.group_size=4",
            "tasks.train=2000",
            "tasks.evaluation=8",
            "evaluation.every=1000",
        ]
        arguments = ["launch", "quickstart", *small, "generators.count=1", f"steps={LONG}", "run_dir=/tmp/runs"]
        run = FarRun(worker, cluster, *arguments, there=PROJECT)
        run.wait_for(r"training step \d+/", 400)
        head.power_off()
        step = run.step
        say(f"at step {step} of {LONG} the head is gone")
        time.sleep(AWAY_S)
        say(f"after {AWAY_S} s without it the run is at step {run.step}")
        head.boot()
        cluster.start(only=[head])
        say(f"at step {run.step} the head is back; the engine's process is killed")
        (generator,) = worker.processes("ray::GeneratorActor")
        generator.kill()
        run.wait_for("takes its place", 300)
        assert run.process.wait(500) == 0, run.output
        summary = Summary.read(run.folder / "summary.json")
        say(summary.status, summary.steps, summary.resumes, summary.ledger)
        assert (summary.status, summary.steps, summary.resumes) == (Status.COMPLETED, LONG, 0)
        assert summary.ledger.trained == LONG * 4


def stored() -> None:
    """A run whose all is in an object store: both of its hosts are switched off, and it goes on on two new ones to its end."""
    say = _told_with_the_time()
    with tempfile.TemporaryDirectory() as folder, hosts(3, Path(folder)) as made:
        head, far, store = made
        vllm_cache = os.path.expanduser(os.environ.get("VLLM_CACHE_ROOT", "~/.cache/vllm"))
        server = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"]
        store.popen(server, {}, os.open(os.devnull, os.O_WRONLY))
        cluster = RayCluster(
            (head, far),
            cpus=2,
            variables={
                "AWS_ENDPOINT_URL": f"http://{store.address}:5000",
                "AWS_ACCESS_KEY_ID": "tester",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
                "VLLM_CACHE_ROOT": vllm_cache,
                "PYTHONPATH": ":".join(filter(None, sys.path)),
            },
        )

        def begin() -> None:
            cluster.start()
            cluster.wait_for(2)
            head.seen_from_outside(PROJECT).mkdir()

        def names() -> list[str]:
            return head.call([sys.executable, "-c", _LIST], cluster.environment, 60).split()

        begin()
        model = ensure_tiny_model({"": ClassEnvironmentConfig(name="calculator")}, 0, lambda progress: None)
        head.call([sys.executable, "-c", _PUT, str(model)], cluster.environment, 60)
        small = ["batch.groups_per_step=4", "batch.group_size=4", "tasks.train=100", "tasks.evaluation=8", "evaluation.every=100"]
        few = ["generators.count=2", "generators.placement.strategy=spread", "checkpoint.every=4", f"steps={STORED_STEPS}"]
        addresses = ["model.path=s3://bucket/models/tiny", "run_dir=s3://bucket/runs"]
        run = FarRun(head, cluster, "launch", "quickstart", *small, *few, *addresses, there=PROJECT)
        run.wait_for(r"training step \d+/", 400)
        by = time.monotonic() + 300
        while not any("version-000004.manifest.json" in name for name in names()):
            assert time.monotonic() < by, run.output
            assert run.process.poll() is None, run.output
            time.sleep(0.5)
        step = run.step
        for host in (head, far):
            host.power_off()
            shutil.rmtree(Path(folder) / host.name)
            host.boot()
        say(f"at step {step} of {STORED_STEPS}, with a checkpoint in the store, both hosts are gone; two new ones are there")
        begin()
        (name,) = {name.split("/")[2] for name in names() if name.startswith("bucket/runs/quickstart")}
        resuming = time.monotonic()
        again = FarRun(head, cluster, "launch", "--resume", f"s3://bucket/runs/{name}", there=PROJECT)
        again.wait_for(r"training step \d+/", 400)
        say(f"trains again {time.monotonic() - resuming:.1f} s after it was resumed")
        assert again.process.wait(400) == 0, again.output
        summary = Summary.read(head.seen_from_outside(PROJECT / "runs" / name / "summary.json"))
        say(summary.status, summary.steps, summary.resumes, summary.ledger)
        ledger = summary.ledger
        assert (summary.status, summary.steps, summary.resumes) == (Status.COMPLETED, STORED_STEPS, 1)
        assert ledger.trained == STORED_STEPS * 4
        left = ledger.committed + ledger.running + ledger.failed + ledger.filtered + ledger.expired
        assert ledger.issued == ledger.trained + left, ledger
        assert f"bucket/runs/{name}/summary.json" in names()
        assert not any((Path(folder) / SHARED.name).iterdir()), "no folder is shared"


SCENARIOS = {each.__name__: each for each in (submitted, scraped, slurm)}
WITHOUT_A_STAGE = {each.__name__: each for each in (stored, redis)}

if __name__ == "__main__":
    for each in sys.argv[1:]:
        if each in WITHOUT_A_STAGE:
            WITHOUT_A_STAGE[each]()
            continue
        with _stage(each) as (stage, call):
            stage.say(f"{each}: {SCENARIOS[each].__doc__}")
            SCENARIOS[each](stage, call)
