"""Part 5: a publication from one GPU to another by NCCL, as it goes to engines on other nodes."""

import time
from contextlib import closing
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection

import msgspec
import torch

from asyncrl.bench.gpu.publication import ANSWER_S, made_weights
from asyncrl.bench.gpu.settings import PublicationSettings
from asyncrl.bench.gpu.subject import folder_for, synchronize
from asyncrl.core.errors import AsyncRLError, ComponentFailed
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.weights.fingerprint import fingerprint
from asyncrl.weights.nccl.broadcast_receiver import BroadcastReceiver
from asyncrl.weights.nccl.broadcast_sender import BroadcastSender
from asyncrl.weights.nccl.collective import Collective, Nccl
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

_HOST = "127.0.0.1"


class BroadcastTimes(msgspec.Struct, frozen=True):
    """What was measured.

    Attributes:
        bytes: of one publication.
        first_seconds: from asking until the whole publication is there, the first time, when the group is made.
        steady_seconds: the last time.
        bytes_per_s: of the last time.
        fingerprints_equal: whether every publication arrived as it was sent.
    """

    bytes: int
    first_seconds: float
    steady_seconds: float
    bytes_per_s: float
    fingerprints_equal: bool


class BroadcastResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the part found.

    Attributes:
        times: None if something was missing.
        missing: what.
    """

    times: BroadcastTimes | None
    missing: tuple[str, ...]


def measure(settings: PublicationSettings) -> BroadcastResult:
    """Publish from the first GPU to the second one, several times."""
    missing = []
    if find_spec("vllm") is None:
        missing.append("vllm: not installed")
    if torch.cuda.device_count() < 2:
        missing.append(f"a second GPU: NCCL does not send within one, and there are {torch.cuda.device_count()}")
    if missing:
        return BroadcastResult(times=None, missing=tuple(missing))
    times = measure_between(torch.device("cuda", 0), torch.device("cuda", 1), Nccl(), settings)
    return BroadcastResult(times=times, missing=())


def measure_between(
    device: torch.device, other: torch.device, collective: Collective, settings: PublicationSettings
) -> BroadcastTimes:
    """Publish from ``device`` of this process to ``other``, of another process.

    Raises:
        ComponentFailed: the other process raised an error.
        EOFError: it died.
    """
    weights = made_weights(settings.model)
    size = sum(tensor.nbytes for tensor in weights.values())
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    receiver = context.Process(target=_receive, args=(theirs, other, collective), daemon=True)
    receiver.start()
    theirs.close()
    seconds, equal = [], True
    try:
        with (
            folder_for(settings.model) as folder,
            closing(SharedMemory("bench", 0, str(folder))) as files,
            closing(BroadcastSender(0, _HOST, device, ANSWER_S, collective)) as sender,
        ):
            for version in range(settings.repetitions):
                for tensor in weights.values():
                    tensor.add_(0.01)
                synchronize()
                shards = [Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor) for name, tensor in weights.items()]
                published = merge([sender.offer(files.write(PolicyVersion(version), shards))])
                ours.send(published)
                if not ours.poll(2 * ANSWER_S):
                    raise ComponentFailed(f"the other process did not answer within {2 * ANSWER_S:g} s")
                answer = ours.recv()
                if isinstance(answer, str):
                    raise ComponentFailed(answer)
                took, found = answer
                seconds.append(took)
                equal = equal and found == published.fingerprint
    finally:
        receiver.kill()
        receiver.join()
        ours.close()
    return BroadcastTimes(size, seconds[0], seconds[-1], size / seconds[-1], equal)


def _receive(pipe: Connection, device: torch.device, collective: Collective) -> None:
    """Take each publication that comes, as an engine does; answer with seconds and fingerprint, or with what went wrong."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    receiver = BroadcastReceiver("bench", 0, 1, device, collective, lambda size, device: True)
    while True:
        publication = pipe.recv()
        assert isinstance(publication, Publication)
        began = time.perf_counter()
        try:
            receiver.receive_publication(publication)
            seconds = time.perf_counter() - began
            parts = [
                fingerprint(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
                for name, tensor in receiver.read(publication)
            ]
        except AsyncRLError as error:
            pipe.send(str(error))
            return
        pipe.send((seconds, sum(parts) % 2**64))
