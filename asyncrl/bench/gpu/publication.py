"""Part 4: a publication from a GPU through shared memory to another process's GPU tensors, beside CUDA's IPC."""

import queue
import time
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch

from asyncrl.bench.gpu.logprob import bandwidth, median_of
from asyncrl.bench.gpu.settings import ModelSize, PublicationSettings
from asyncrl.bench.gpu.subject import device, folder_for, synchronize
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.device.pinning import PinnedFiles
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

WHOLE_S, PAUSE_S = 0.5, 0.2
"""The targets, in seconds, for 1.7 B."""
ANSWER_S, IPC_S = 60.0, 15.0


class PublicationTimes(msgspec.Struct, frozen=True):
    """Seconds of one publication.

    Attributes:
        write: the learner's part, with its fingerprint.
        read: until the engine's process has all tensors on its device, with their fingerprint.
        exchange: copying them over the tensors in use, which is all that needs a pause.
    """

    write: float
    read: float
    exchange: float


class PublicationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes:
        bytes: of one publication.
        first, steady: the first publication, whose memory is touched and pinned, and the last.
        bytes_per_s: of the steady one, written and read.
        to_host_bytes_per_s, to_device_bytes_per_s: of one large copy between the GPU and pinned memory: the bus's limit.
        device_bytes_per_s: of a copy within the device's memory, read and written.
        ipc_seconds: handing over the tensors by CUDA's IPC and copying them there; None where that is not possible.
        fingerprints_equal: whether both processes computed the same fingerprint each time.
        targets: which targets were met.
        missing: what was not measured, and why.
    """

    bytes: int
    first: PublicationTimes
    steady: PublicationTimes
    bytes_per_s: float
    to_host_bytes_per_s: float | None
    to_device_bytes_per_s: float | None
    device_bytes_per_s: float
    ipc_seconds: float | None
    fingerprints_equal: bool
    targets: dict[str, bool]
    missing: tuple[str, ...]


class _Received(msgspec.Struct, frozen=True):
    """What the other process did with a publication."""

    fingerprint: int
    read: float
    exchange: float


def measure(settings: PublicationSettings) -> PublicationResult:
    """Publish from this process to another one, several times."""
    weights = made_weights(settings.model)
    size = sum(tensor.nbytes for tensor in weights.values())
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    receiver = context.Process(target=_receive, args=(theirs,), daemon=True)
    receiver.start()
    theirs.close()
    times: list[PublicationTimes] = []
    equal = True
    try:
        with folder_for(settings.model) as folder, closing(SharedMemory("bench", 0, str(folder))) as files:
            for version in range(settings.repetitions):
                for tensor in weights.values():
                    tensor.add_(0.01)
                synchronize()
                began = time.perf_counter()
                shards = [Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor) for name, tensor in weights.items()]
                published = merge([files.write(PolicyVersion(version), shards)])
                wrote = time.perf_counter() - began
                received = _ask(ours, published)
                equal = equal and received.fingerprint == published.fingerprint
                times.append(PublicationTimes(wrote, received.read, received.exchange))
        missing, ipc = [], None
        if torch.cuda.is_available():
            try:
                ipc = _hand_over(weights)
            except RuntimeError as error:
                missing.append(f"CUDA IPC: {error}")
        else:
            missing += ["a GPU: the figures are of a CPU and mean nothing", "CUDA IPC: there is no GPU"]
        ours.send(None)
        receiver.join(5)
    finally:
        if receiver.is_alive():
            receiver.kill()
        receiver.join()
        ours.close()
    last = times[-1]
    targets = {
        f"{settings.model.name}: whole under {WHOLE_S} s": last.write + last.read < WHOLE_S,
        f"{settings.model.name}: pause under {PAUSE_S} s": last.exchange < PAUSE_S,
    }
    return PublicationResult(
        bytes=size,
        first=times[0],
        steady=last,
        bytes_per_s=size / (last.write + last.read),
        to_host_bytes_per_s=_bus("cpu"),
        to_device_bytes_per_s=_bus("cuda"),
        device_bytes_per_s=bandwidth(),
        ipc_seconds=ipc,
        fingerprints_equal=equal,
        targets=targets if torch.cuda.is_available() else {},
        missing=tuple(missing),
    )


def made_weights(size: ModelSize) -> dict[str, torch.Tensor]:
    """Tensors named and shaped like those of a Qwen3 model, in bfloat16, on the device."""
    attention, groups = size.heads * size.head_dim, size.key_value_heads * size.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size.vocabulary, size.hidden)}
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (attention, size.hidden),
            f"{prefix}self_attn.k_proj.weight": (groups, size.hidden),
            f"{prefix}self_attn.v_proj.weight": (groups, size.hidden),
            f"{prefix}self_attn.o_proj.weight": (size.hidden, attention),
            f"{prefix}mlp.gate_proj.weight": (size.feed_forward, size.hidden),
            f"{prefix}mlp.up_proj.weight": (size.feed_forward, size.hidden),
            f"{prefix}mlp.down_proj.weight": (size.hidden, size.feed_forward),
            f"{prefix}input_layernorm.weight": (size.hidden,),
        }
    torch.manual_seed(0)
    return {name: torch.randn(shape, dtype=torch.bfloat16, device=device()) for name, shape in shapes.items()}


def _ask(pipe: Connection, what: Any) -> Any:
    pipe.send(what)
    if not pipe.poll(ANSWER_S):
        raise RuntimeError(f"the other process did not answer within {ANSWER_S:g} s")
    return pipe.recv()


def _receive(pipe: Connection) -> None:
    """Read each publication that comes, as an engine does, until None comes."""
    in_use: dict[str, torch.Tensor] = {}
    mappings = PinnedFiles()
    while (publication := pipe.recv()) is not None:
        assert isinstance(publication, Publication)
        began = time.perf_counter()
        total, new = Fingerprints(), {}
        for name, tensor in SharedMemory.read(publication, torch.device(device()), mappings):
            total.add(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
            new[name] = tensor
        fingerprint = total.total()
        synchronize()
        read = time.perf_counter() - began
        in_use = in_use or {name: torch.empty_like(tensor) for name, tensor in new.items()}
        synchronize()
        began = time.perf_counter()
        for name, tensor in new.items():
            in_use[name].copy_(tensor)
        synchronize()
        pipe.send(_Received(fingerprint, read, time.perf_counter() - began))
    in_use.clear()
    mappings.close()


def _hand_over(weights: dict[str, torch.Tensor]) -> float:
    """Seconds that another process takes to get the tensors by CUDA's IPC and copy them."""
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    tasks, answers = context.SimpleQueue(), context.Queue()
    process = context.Process(target=_take_over, args=(tasks, answers), daemon=True)
    process.start()
    try:
        for _ in range(2):  # the first time, the other process starts CUDA
            synchronize()
            began = time.perf_counter()
            tasks.put(list(weights.values()))
            answers.get(timeout=IPC_S)
            seconds = time.perf_counter() - began
        tasks.put(None)
        process.join(5)
    except queue.Empty:
        raise RuntimeError(f"the other process did not copy the tensors within {IPC_S:g} s") from None
    finally:
        if process.is_alive():
            process.kill()
    return seconds


def _take_over(tasks: Any, answers: Any) -> None:
    while (tensors := tasks.get()) is not None:
        copies = [tensor.clone() for tensor in tensors]
        synchronize()
        answers.put(len(copies))
        del tensors, copies


def _bus(to: str) -> float | None:
    """Bytes a second of one large copy from or to the GPU, in pinned memory; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    host = torch.ones(1 << 30, dtype=torch.uint8, pin_memory=True)
    on_gpu = torch.empty_like(host, device="cuda")
    target, source = (host, on_gpu) if to == "cpu" else (on_gpu, host)
    seconds, _, _ = median_of(lambda: target.copy_(source, non_blocking=True), 3)
    return host.nbytes / seconds
