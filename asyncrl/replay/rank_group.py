"""Starts the ranks of a replay as processes of this machine, and hears them out.

What always holds: all of them have ended when :func:`run_ranks` returns or raises; every wait for them has a deadline, but where
there is a hook, because a person may be looking at it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded
from asyncrl.replay.job import Answer, Failed, Job, Replayed, Stopped, answers, encoder

END_S = 5.0
"""How long a rank whose connection is gone may take to end."""
_LOG_LINES = 3


class ReplayFailed(AsyncRLError):
    """A rank of a replay could not go on."""


class _Rank(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection
    log: Path


def run_ranks(job: Job, folder: Path, seen: Callable[[int, Answer], None]) -> Stopped | None:
    """Compute the steps of ``job`` on as many processes as its layout has ranks.

    Args:
        folder: a folder of the caller's, for the job and the logs.
        seen: called with the rank and each of its answers.

    Returns:
        why a hook stopped the replay; None if it came to its end.

    Raises:
        ReplayFailed: a rank failed; its text says why.
        ComponentFailed: the process of a rank died.
        DeadlineExceeded: a rank was silent for longer than ``deadlines.start`` or ``deadlines.step``. A hook that has the
            terminal may take as long as it likes.
    """
    file = folder / "job"
    file.write_bytes(encoder.encode(job))
    count = job.recipe.learner.layout.ranks
    alone = count == 1 and job.hook is not None
    with ExitStack() as ending:
        ranks = [_start(file, rank, folder, ending, on_terminal=alone) for rank in range(count)]
        return _hear(job, ranks, seen, patient=alone)


def _start(job: Path, rank: int, folder: Path, ending: ExitStack, *, on_terminal: bool) -> _Rank:
    reading, writing = os.pipe()
    log = folder / f"rank-{rank}.log"
    with log.open("ab") as output:
        streams = {} if on_terminal else {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "asyncrl.replay.rank_process", str(job), str(rank), str(writing), str(log)],
            pass_fds=[writing],
            # Threads that spin while they wait for each other make this several times slower on a busy machine.
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            **streams,  # type: ignore[call-overload]
        )
    os.close(writing)
    connection = Connection(reading, writable=False)
    ending.callback(_end, process, connection)
    return _Rank(process, connection, log)


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    connection.close()
    if process.poll() is None:
        process.kill()
    process.wait()


def _hear(job: Job, ranks: list[_Rank], seen: Callable[[int, Answer], None], *, patient: bool) -> Stopped | None:
    deadlines, steps = job.recipe.deadlines, len(job.batches)
    seconds = deadlines.start
    silent_since = dict.fromkeys(range(len(ranks)), time.monotonic())
    done = dict.fromkeys(range(len(ranks)), 0)
    while silent_since:
        longest = min(silent_since.values()) + seconds - time.monotonic()
        ready = wait([ranks[rank].connection for rank in silent_since], None if patient else max(0.0, longest))
        if not ready:
            rank = min(silent_since, key=lambda each: silent_since[each])
            owner, remedy = f"rank {rank} of the replay", "raise deadlines.step, or deadlines.start if it has not begun"
            raise DeadlineExceeded("the replay", owner, seconds, remedy)
        for rank in [rank for rank in silent_since if ranks[rank].connection in ready]:
            answer = _answer(rank, ranks[rank])
            if isinstance(answer, Failed):
                why = answer.error if answer.own else f"rank {rank} failed: {answer.error}{_tail(ranks[rank])}"
                raise ReplayFailed(why)
            seen(rank, answer)
            if isinstance(answer, Stopped):
                return answer
            silent_since[rank], seconds = time.monotonic(), max(deadlines.step, deadlines.start)
            done[rank] += isinstance(answer, Replayed)
            if done[rank] == steps or (isinstance(answer, Replayed) and answer.diverged):
                del silent_since[rank]
    for rank, ending in enumerate(ranks):
        if _ended(rank, ending, max(deadlines.step, deadlines.start)):
            raise _died(rank, ending)
    return None


def _answer(rank: int, of: _Rank) -> Answer:
    try:
        return answers.decode(of.connection.recv_bytes())
    except EOFError:
        _ended(rank, of, END_S)
        raise _died(rank, of) from None


def _ended(rank: int, of: _Rank, seconds: float) -> int:
    """Wait for the end of a rank that has nothing more to say, and return its exit code."""
    try:
        return of.process.wait(seconds)
    except subprocess.TimeoutExpired:
        remedy = f"its process hangs while it ends, and is killed{_tail(of)}"
        raise DeadlineExceeded("the replay", f"the end of rank {rank}", seconds, remedy) from None


def _died(rank: int, of: _Rank) -> ComponentFailed:
    code = of.process.returncode
    how = f"was killed by signal {-code}; is there enough memory?" if code < 0 else f"ended with code {code}"
    return ComponentFailed(f"rank {rank} of the replay {how}{_tail(of)}")


def _tail(rank: _Rank) -> str:
    lines = rank.log.read_text(errors="replace").strip().splitlines()[-_LOG_LINES:]
    return "; the last lines of its log: " + " | ".join(lines) if lines else ""
