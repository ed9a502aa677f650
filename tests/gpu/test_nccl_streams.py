"""Joining a group of NCCL's leaves CUDA's default stream alone, on which training and sampling wait: vLLM's code, CUDA faked."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import torch
import vllm.platforms
from vllm.distributed.device_communicators import pynccl
from vllm.utils import torch_utils

from asyncrl.weights.nccl.collective import Nccl

CPU = torch.device("cpu")
MEMBERS = 2
NUMBERS = itertools.count(1)


class Stream:
    """A stream, which notes for what it waits."""

    def __init__(self, *_: object, number: int | None = None) -> None:
        self.cuda_stream = next(NUMBERS) if number is None else number
        self.waited: list[Stream] = []
        self.synchronized = 0

    def wait_stream(self, other: "Stream") -> None:
        self.waited.append(other)

    def synchronize(self) -> None:
        self.synchronized += 1


class Cuda:
    """What vLLM and our collective call of CUDA and NCCL.

    Attributes:
        default: the default stream, which the others are never used in place of.
        current: the stream that each thread has made its own, by its name.
        used: the stream of each collective, in order.
    """

    def __init__(self) -> None:
        self.default = Stream(number=0)
        self.current: dict[str, Stream] = {}
        self.used: list[tuple[str, int]] = []
        self.library = mock.Mock()
        self.library.ncclAllReduce.side_effect = lambda *given: self.used.append(("all_reduce", given[-1].value or 0))
        self.library.ncclBroadcast.side_effect = lambda *given: self.used.append(("broadcast", given[-1].value or 0))

    def set_stream(self, stream: Stream) -> None:
        self.current[threading.current_thread().name] = stream

    def current_stream(self, *_: object) -> Stream:
        return self.current.get(threading.current_thread().name, self.default)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        yield

    @contextmanager
    def installed(self) -> Iterator[None]:
        on_cuda = mock.Mock(**{"is_cuda.return_value": True, "is_rocm.return_value": False})
        with ExitStack() as stack:
            for owner, name, value in (
                (torch.cuda, "Stream", Stream),
                (torch.cuda, "current_stream", self.current_stream),
                (torch.cuda, "set_stream", torch_utils._patched_set_stream),  # other tests put torch's own back
                (torch.cuda, "stream", self.stream),
                (torch.cuda, "device", lambda _: nullcontext()),
                (torch.accelerator, "device_index", lambda _: nullcontext()),
                (torch_utils, "prev_set_stream", self.set_stream),
                (vllm.platforms, "current_platform", on_cuda),
                (pynccl, "NCCLLibrary", lambda _: self.library),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


def test_a_join_in_a_thread_of_its_own_uses_streams_of_its_own() -> None:
    cuda, groups = Cuda(), []
    with cuda.installed():
        join = threading.Thread(target=lambda: groups.append(Nccl().join(bytes(128), 1, MEMBERS, CPU)), name="joining")
        join.start()
        join.join(60)
        (group,) = groups
        ((call, used),) = cuda.used
        assert call == "all_reduce", "vLLM tries a communicator out"
        assert list(cuda.current) == ["joining"], "no other thread has another stream than before"
        own = cuda.current["joining"]
        assert used == own.cuda_stream != cuda.default.cuda_stream
        assert own.waited == [cuda.default], "it goes on after what was there, which waits for nothing"
        assert own.synchronized == 1
        assert not cuda.default.waited
        assert not cuda.default.synchronized
        piece = torch.zeros(4, dtype=torch.uint8)
        group.receive(piece)
        group.wait()
        assert cuda.current_stream() is cuda.default
    (broadcast,) = cuda.used[1:]
    assert broadcast == ("broadcast", group._stream.cuda_stream)
    assert broadcast[1] not in (own.cuda_stream, cuda.default.cuda_stream)
