"""All descendants of a process are ended, but for those that are spared with all that belongs to them."""

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys, threading
from asyncrl.run.processes import end_descendants

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
