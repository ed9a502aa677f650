"""All descendants of a process are ended, but for those that are spared with all that belongs to them."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, subprocess, sys, threading
from asyncrl.run.host.processes import end_descendants

CHILD = "import subprocess, sys; open('/proc/self/comm', 'w').write(sys.argv[1]); " \\
    "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); child.wait()"

def start(name):
    child = subprocess.Popen([sys.executable, "-c", CHILD, name], stdout=subprocess.PIPE)
    return child.pid, int(child.stdout.readline())

def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().split()[2] != "Z"
    except OSError:
        return False

spared, other = start("wandb-core"), start("a-tool")
end_descendants(5.0, "wandb-core")
assert [alive(pid) for pid in (*spared, *other)] == [True, True, False, False]
end_descendants(5.0)
assert not any(alive(pid) for pid in spared)
"""


def test_what_is_spared_is_ended_later() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


SEMAPHORES = """
import psutil, subprocess, sys
from asyncrl.run.host.processes import end_descendants

CHILD = "import multiprocessing, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "lock = multiprocessing.get_context('spawn').Lock(); print(lock._semlock.name, flush=True); time.sleep(60)"

child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
name = child.stdout.readline().strip()
while not any("multiprocessing.resource_tracker" in str(each.cmdline()) for each in psutil.Process().children(recursive=True)):
    pass  # it has been forked, but is not yet the program that it will be
end_descendants(5.0)
print(name)
"""


def test_semaphores_of_killed_processes_are_removed() -> None:
    """As vLLM makes them for the workers of an engine, in every launch."""
    done = subprocess.run([sys.executable, "-c", SEMAPHORES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip().removeprefix("/")
    assert name.startswith("mp-")
    assert not Path(f"/dev/shm/sem.{name}").exists()
