"""Processes that do not end when they are killed, such as one that waits for a file system: SIGKILL is made to do nothing."""

import subprocess
import sys

UNKILLABLE = """
import os, subprocess, sys
from asyncrl.envs.sandbox import processes
processes._kill, processes._KILL_WITHIN_S = lambda pid: None, 0.05
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
try:
    print(child.pid)
    processes.{call}
except TimeoutError as late:
    print(late)
finally:
    child.communicate()
"""


def told(call: str) -> list[str]:
    command = [sys.executable, "-c", UNKILLABLE.replace("{call}", call)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_what_is_left_is_named_with_a_remedy() -> None:
    pid, problem = told("kill_descendants()")
    assert problem == (
        f"processes {pid} are still there 0.05 s after SIGKILL; "
        "look what they wait for, such as a file system that does not answer"
    )


def test_orphans_that_do_not_end_are_not_waited_for() -> None:
    assert len(told("kill_orphans_except(set())")) == 1
