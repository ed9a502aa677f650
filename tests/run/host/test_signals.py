"""Signals, sent to small processes: what they mean to a driver, and that they mean nothing to what it starts."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from asyncrl.run.host.signals import SAME_REQUEST_S, Heard, StopRequests

DEADLINE_S = 60


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_signal_that_is_sent_twice_is_one_request_and_a_later_one_kills():
    clock = Clock()
    requests = StopRequests(clock)
    assert requests.heard() is Heard.STOP
    clock.now += SAME_REQUEST_S / 2
    assert requests.heard() is Heard.SAME
    clock.now += SAME_REQUEST_S / 4
    assert requests.heard() is Heard.SAME, "however often it is sent"
    clock.now += SAME_REQUEST_S / 4
    assert requests.heard() is Heard.KILL, "the time counts from the first"


@contextlib.contextmanager
def script(text: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


INTERRUPTED = """
import time
from asyncrl.run.host.signals import Interrupted, interrupting

with interrupting():
    try:
        print("ready", flush=True)
        time.sleep(3600)
    except Interrupted as interrupt:
        print(interrupt, flush=True)
    print(input(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_where_no_run_is_a_signal_interrupts_once(number):
    with script(INTERRUPTED, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"stopped by {number.name}\n"
        process.send_signal(number)  # as who signals a process and its group does
        process.stdin.write("went on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "went on\n"
        assert process.wait(DEADLINE_S) == 0


PARENT = """
import os, signal, subprocess, sys, threading, time
from asyncrl.run.host.signals import on_sigterm, sigterm_blocked

CHILD = "import os; print(os.getpid(), flush=True); input()"

def start():
    return int(subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE).stdout.readline())

def in_thread():
    with sigterm_blocked():
        pids.append(start())
    on_sigterm(lambda: heard.append(True) or print("heard", len(heard), flush=True))
    pids.append(start())
    if (fork := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(fork, signal.SIGTERM)
    print("fork", os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), len(heard), flush=True)

signal.signal(signal.SIGTERM, lambda *_: None)  # as Ray's workers have a handler of their own
pids, heard = [], []
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
print(*pids, flush=True)
input()
"""


def test_what_is_started_with_sigterm_blocked_does_not_take_it_and_a_thread_hears_what_the_process_gets():
    with script(PARENT, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "fork -15 0\n"
        deaf, hearing = (psutil.Process(int(pid)) for pid in process.stdout.readline().split())
        for child in (deaf, hearing):
            child.terminate()
        deadline = time.monotonic() + DEADLINE_S
        while hearing.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
        assert deaf.status() != psutil.STATUS_ZOMBIE
        process.terminate()
        assert process.stdout.readline() == "heard 1\n"
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 0


ENDING = (
    """
import subprocess, sys, time
from asyncrl.run.host.processes import end_descendants

HEARING = """
    + repr("""
import signal, sys, time

def end(*_):
    print("last words", flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(3600)
""")
    + """
DEAF = """
    + repr("""
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready", flush=True)
time.sleep(3600)
""")
    + """
children = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) for text in (HEARING, DEAF)]
assert all(child.stdout.readline() == "ready\\n" for child in children)
print(end_descendants(3600.0), *(child.stdout.read() for child in children))
"""
)


def test_at_the_end_who_takes_sigterm_may_clean_up_and_who_does_not_is_not_waited_for():
    with script(ENDING) as process:
        assert process.communicate(timeout=DEADLINE_S)[0] == "[] last words\n \n"


SLOW_ENVIRONMENT = """
import time
print("importing", flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_a_run_is_an_interrupt(number, tmp_path):
    (tmp_path / "slow_environment.py").write_text(SLOW_ENVIRONMENT)
    launch = "from asyncrl.cli.main import run; run()"
    command = [sys.executable, "-c", launch, "launch", "quickstart", "environment.name=slow_environment:Slow"]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not (tmp_path / "runs").exists()
