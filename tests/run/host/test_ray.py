"""Ray as a run starts it: a small cluster of its own, in a process of its own."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asyncrl.run import launch

SCRIPT = """
import asyncio, os, pathlib, signal, subprocess, sys, time
import psutil, ray
from asyncrl.run.cluster import Cluster
from asyncrl.run.nodes.unused_nodes import UnusedNodes
from asyncrl.run.host.ray_cluster import starting_ray, stop_ray
from asyncrl.run.nodes.remote_files import FarFiles
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.nodes.node_watch import NodeWatch
from asyncrl.envs.sandbox.processes import adopt_orphans
from asyncrl.run.host.processes import end_descendants
from asyncrl.run.host.signals import hearing, wait_hearing

STRANGER = '''
import sys
from ray._raylet import GcsClient
print("keys", len(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=30)))
'''

def call(environment):
    command = [sys.executable, "-c", STRANGER, ray.get_runtime_context().gcs_address]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)

@ray.remote(num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()

    def node(self):
        return "this one"

async def lose(learner):
    cluster = object.__new__(Cluster)
    cluster._learners = [learner]
    cluster._folder = RunFolder(pathlib.Path("/nowhere"))
    cluster.far_files = FarFiles(RunFolder(pathlib.Path("/nowhere")), set)
    cluster._nodes = NodeWatch.watching_nobody()
    cluster._unused = UnusedNodes(cluster.far_files, None, lambda: frozenset())
    try:
        async with cluster.watching_learners():
            ray.kill(learner)
            await asyncio.sleep(60)
    except ExceptionGroup as group:
        print("told", *group.exceptions, flush=True)

async def main():
    heard = []
    with hearing(heard.append):
        started = starting_ray()
        await wait_hearing(started)
        actor = Actor.remote()
        assert ray.get(actor.pid.remote()) > 0
        print("known" if "keys" in call(dict(os.environ)).stdout else "unknown", flush=True)
        stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        print("known" if "keys" in call(stranger).stdout else "unknown", flush=True)
        processes = psutil.Process().children(recursive=True)
        for process in (psutil.Process(), *processes):
            process.terminate()
        assert ray.get(actor.pid.remote()) > 0
        print("heard", heard, sum(not process.is_running() for process in processes), flush=True)
        await lose(actor)
        stopping = asyncio.ensure_future(asyncio.to_thread(stop_ray))
        await wait_hearing(stopping)
        print("session", stopping.result() / "logs", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        end_descendants(30.0)
        print("left", psutil.Process().children(recursive=True), heard, flush=True)

adopt_orphans()
asyncio.run(main())
"""


@pytest.mark.timeout(280)
def test_ray_is_the_run_s_alone_and_takes_no_sigterm(tmp_path):
    """It answers nobody without the run's token, needs no home folder, and neither starts nor ends in the way of a signal."""
    (tmp_path / "home").write_text("a file, so that nothing can be written there")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, "HOME": str(tmp_path / "home"), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=270,
    )
    *shown, told, session, left = done.stdout.splitlines()
    assert Path(session.removeprefix("session ")).is_dir()
    assert [*shown, left] == ["known", "unknown", "heard [15] 0", "left [] [15, 15]"], done.stderr
    assert told.startswith("told learner rank 0: its process died")
    assert "***" not in done.stderr, "Ray printed the stack of the driver"


@pytest.mark.parametrize("completed", [True, False])
def test_what_ray_leaves_is_removed_unless_the_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, completed: bool
) -> None:
    session, latest = tmp_path / "session_1", tmp_path / "session_latest"
    (session / "logs").mkdir(parents=True)
    latest.symlink_to(session)
    monkeypatch.setattr(launch, "stop_ray", lambda: session)
    monkeypatch.setattr(launch, "end_descendants", lambda *_: [])
    asyncio.run(launch.end_processes(10.0, time.monotonic() + 10.0, completed=completed))
    assert sorted(tmp_path.iterdir()) == ([] if completed else [session, latest])


SLOW_AGENT = """
import sys, time
if any(each.endswith(("dashboard/agent.py", "runtime_env/agent/main.py")) for each in sys.orig_argv):
    time.sleep(20)
"""
BUSY = """
import ray
from asyncrl.run.host.ray_cluster import start_ray, stop_ray
start_ray(print)
@ray.remote(num_cpus=0, runtime_env={"env_vars": {"GIVEN": "x"}})
def given():
    import os
    return os.environ["GIVEN"]
print("given", ray.get(given.remote(), timeout=200), len(ray.nodes()))
stop_ray()
"""


@pytest.mark.timeout(280)
def test_ray_starts_where_its_agents_are_slower_than_it_allows(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_AGENT)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    elsewhere = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", BUSY], env=elsewhere, capture_output=True, text=True, timeout=270)
    said, given = done.stdout.splitlines()
    assert "starting it once more" in said
    assert given == "given x 1", done.stderr


NO_NETWORK = """
import ctypes, os, sys
from asyncrl.core.errors import ComponentFailed
from asyncrl.run.host.ray_cluster import start_ray
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET
if ctypes.CDLL(None, use_errno=True).unshare(flags):
    sys.exit(77)
try:
    start_ray()
except ComponentFailed as failure:
    print(failure)
"""


SHADOWED = """
import sys
import ray
from asyncrl.run.host.ray_cluster import start_ray, stop_ray

@ray.remote(num_cpus=0)
class Actor:
    def __init__(self, log):
        from asyncrl.run.host.actor_process import begin_actor
        begin_actor(log)

    def found(self, module):
        import importlib
        return importlib.import_module(module).__file__

    def found_by_child(self, method, module):
        import multiprocessing
        from asyncrl.core.plug_ins.plug_in import import_module
        import_module("mine", "", "", "")  # looks in the current folder, too
        with multiprocessing.get_context(method).Pool(1) as pool:
            return pool.apply(eval, (f"__import__({module!r}).__file__",))

if __name__ == "__main__":
    start_ray(print)
    from pathlib import Path
    actor = Actor.remote(Path(sys.argv[1]))
    print(ray.get(actor.found.remote("statistics"), timeout=200))
    for method in "spawn", "forkserver":
        print(ray.get(actor.found_by_child.remote(method, "random"), timeout=200))
    stop_ray()
"""


@pytest.mark.timeout(280)
def test_no_file_of_the_current_folder_hides_a_library(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("statistics", "random", "queue", "types"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the user')")
    (here / "mine.py").touch()
    done = subprocess.run(
        [sys.executable, "-P", "-c", SHADOWED, str(tmp_path / "log")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        cwd=here,
        capture_output=True,
        text=True,
        timeout=270,
    )
    library = str(Path(statistics.__file__).parent)
    assert done.stdout.split() == [f"{library}/statistics.py", f"{library}/random.py", f"{library}/random.py"], done.stderr


def test_a_machine_that_cannot_reach_itself_is_told_at_once():
    elsewhere = os.environ | {"RAY_TMPDIR": "/where/ray/is"}
    done = subprocess.run([sys.executable, "-c", NO_NETWORK], capture_output=True, text=True, timeout=100, env=elsewhere)
    if done.returncode == 77:
        pytest.skip("this system lets nobody make a network of their own")
    assert done.stdout.startswith(
        "Ray did not start: this machine cannot connect to itself at 127.0.0.1 (Network is unreachable)"
    ), done.stderr
    assert "see its logs in /where/ray/is/ray;" in done.stdout
