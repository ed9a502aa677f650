"""Learner ranks as processes under a supervising parent.

Ranks are forked from a server that has imported Megatron (``fork_server``), so pytest's own process stays as it is. The parent
ends all ranks at the first failure or at the deadline: gloo aborts a process (SIGABRT, no Python exception) when sizes do not
match, and the other ranks would wait for it.
"""

import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec
from fork_server import WITH_MEGATRON

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.rank import FileMeeting, RankSpec, TcpMeeting


class RankFailed(AssertionError):
    """A rank raised, died or did not finish; the message holds its traceback or exit code."""


def run_ranks(
    function: Callable[..., Any],
    *arguments: Any,
    over_tcp: bool = False,
    deadline: float = 270.0,
    **dimensions: int,
) -> list[Any]:
    """Call ``function(spec, *arguments)`` in one process for each rank of the layout with ``dimensions``; what they return, in
    order of ranks.

    ``function`` must be importable, arguments and results picklable. Ranks meet in a file, or as those of several hosts do.
    """
    layout = ParallelLayout(**dimensions)
    ranks = []
    folder = tempfile.TemporaryDirectory()
    meeting, listening = TcpMeeting.listen("127.0.0.1") if over_tcp else (FileMeeting.make(Path(folder.name) / "meeting"), None)
    for rank in range(layout.ranks):
        spec = RankSpec(rank=rank, meeting=meeting, layout=layout)
        receiver, sender = WITH_MEGATRON.Pipe(duplex=False)
        its_socket = listening if rank == 0 else None
        process = WITH_MEGATRON.Process(target=_run, args=(sender, function, spec, its_socket, arguments), daemon=True)
        process.start()
        sender.close()
        ranks.append((process, receiver))
    try:
        return _collect([receiver for _, receiver in ranks], [process for process, _ in ranks], deadline)
    finally:
        for process, receiver in ranks:
            if process.is_alive():
                process.kill()
            process.join()
            receiver.close()
        if listening is not None:
            listening.close()
        folder.cleanup()


def _collect(receivers: list[Connection], processes: list[Any], deadline: float) -> list[Any]:
    ends = time.monotonic() + deadline
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = [receiver for rank, receiver in enumerate(receivers) if rank not in results]
        ready = wait(waiting, max(0.0, ends - time.monotonic()))
        if not ready:
            raise RankFailed(f"ranks {sorted(set(range(len(receivers))) - results.keys())} did not finish in {deadline:g} s")
        for receiver in ready:
            rank = receivers.index(receiver)
            try:
                succeeded, value = receiver.recv()
            except EOFError:
                processes[rank].join()
                raise RankFailed(f"rank {rank} died with exit code {processes[rank].exitcode}") from None
            if not succeeded:
                raise RankFailed(f"rank {rank} raised\n{value}")
            results[rank] = value
    return [results[rank] for rank in range(len(receivers))]


def _run(
    sender: Connection,
    function: Callable[..., Any],
    spec: RankSpec,
    listening: socket.socket | None,
    arguments: tuple[Any, ...],
) -> None:
    if listening is not None:
        spec = msgspec.structs.replace(spec, listening=listening.detach())
    try:
        result = (True, function(spec, *arguments))
    except BaseException:  # noqa: BLE001 - the parent must learn of every end, whatever it is
        result = (False, traceback.format_exc())
    sender.send(result)
    sender.close()
