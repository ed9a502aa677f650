import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from asyncrl.core.process.parent_watch import die_with_parent

DEADLINE_S = 120

PARENT = """
import multiprocessing, os, sys, time
from asyncrl.core.process.parent_watch import die_with_parent

def child(ready):
    die_with_parent()
    ready.send(os.getpid())
    time.sleep(3600)

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=child, args=(there,)).start()
    print(here.recv(), flush=True)
    time.sleep(3600)
"""


def test_a_child_ends_when_its_parent_is_killed(tmp_path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    handle = os.pidfd_open(child)
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait(DEADLINE_S)
        ended, _, _ = select.select([handle], [], [], DEADLINE_S)
        assert ended, f"the child {child} outlived its parent"
    finally:
        parent.stdout.close()
        os.close(handle)


def answer(connection: Connection) -> None:
    die_with_parent()
    die_with_parent()
    watches = sum(thread.name == "asyncrl parent watch" for thread in threading.enumerate())
    while connection.recv() == "alive?":
        connection.send(watches)


def test_a_child_outlives_the_thread_that_started_it_and_watches_once() -> None:
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=answer, args=(there,), daemon=True)
    starter = threading.Thread(target=child.start)
    starter.start()
    starter.join()
    for _ in range(2):
        here.send("alive?")
        assert here.poll(DEADLINE_S)
        assert here.recv() == 1
    here.send("done")
    child.join(DEADLINE_S)
    assert child.exitcode == 0


def test_a_process_that_multiprocessing_did_not_start_watches_nothing() -> None:
    before = set(threading.enumerate())
    die_with_parent()
    assert set(threading.enumerate()) <= before
