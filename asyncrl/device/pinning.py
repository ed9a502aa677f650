"""Host memory that a GPU reads and writes by itself (pinned memory), without the driver copying every byte once more.

What always holds: without a GPU, or where CUDA refuses to pin, the memory works all the same, and copies are only slower. Memory
is unpinned before it is unmapped.
"""

import logging
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

_ALIGNMENT = 64
"""Bytes at a multiple of which every copy in a host arena begins."""


class Pinning(Protocol):
    """Pins host memory, and takes that back."""

    def pin(self, address: int, size: int) -> str:
        """Pin ``size`` bytes at ``address``; return an empty string, or why that failed."""

    def unpin(self, address: int) -> None:
        """Unpin what was pinned at ``address``."""


class CudaPinning:
    """Pins by CUDA's runtime, where there is a GPU."""

    def pin(self, address: int, size: int) -> str:
        """Pin by ``cudaHostRegister``; return an empty string, or why that failed."""
        if not torch.cuda.is_available():
            return "there is no GPU"
        error = torch.cuda.cudart().cudaHostRegister(address, size, 0)
        if int(error) == 0:
            return ""
        _forget_last_error()
        return f"cudaHostRegister returned {error}"

    def unpin(self, address: int) -> None:
        """Unpin by ``cudaHostUnregister``."""
        if int(torch.cuda.cudart().cudaHostUnregister(address)) != 0:
            _forget_last_error()


class NoPinning:
    """Pins nothing, because no GPU reads or writes the memory."""

    def pin(self, address: int, size: int) -> str:
        """Pin nothing, which cannot fail."""
        return ""

    def unpin(self, address: int) -> None:
        """Unpin nothing."""


def _forget_last_error() -> None:
    """Have CUDA forget an error that was dealt with; otherwise the next launch of a kernel would raise it as its own."""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda")


class PinnedFile:
    """A whole file as host memory, shared with every process that maps it, and pinned where that is possible.

    The file must have all its blocks already, because touching a missing one would end the process.

    Attributes:
        bytes: uint8 [size of the file].

    Args:
        path: the file, which this process may write.
        pinning: pins the memory.

    Raises:
        OSError: the file cannot be opened or mapped.
    """

    def __init__(self, path: str, pinning: Pinning) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            status = os.fstat(descriptor)
            self._mapping = mmap.mmap(descriptor, status.st_size)
        finally:
            os.close(descriptor)
        self._identity = (status.st_dev, status.st_ino, status.st_size)
        self.bytes: Tensor = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._pinning = pinning
        self._address = self.bytes.data_ptr()
        why_not = pinning.pin(self._address, len(self.bytes))
        self.pinned = not why_not
        if why_not:
            logger.info("%s is not pinned, so that copies are slower: %s", path, why_not)

    def is_of(self, path: str) -> bool:
        """Whether ``path`` still is this file, with the size it had."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        return self._identity == (status.st_dev, status.st_ino, status.st_size)

    def close(self) -> None:
        """Unpin the memory. It is unmapped with the last tensor that views it. Does nothing the second time."""
        if self.pinned:
            self._pinning.unpin(self._address)
            self.pinned = False


class PinnedFiles:
    """Files that stay mapped and pinned while they are used again and again.

    Args:
        pinning: pins the memory.
    """

    def __init__(self, pinning: Pinning | None = None) -> None:
        self._pinning = pinning or CudaPinning()
        self._files: dict[str, PinnedFile] = {}

    def bytes_of(self, path: str) -> Tensor:
        """Return the content of the file, uint8 [its size]. Writing to it changes the file.

        Raises:
            OSError: the file cannot be opened or mapped.
        """
        known = self._files.get(path)
        if known is not None and not known.is_of(path):
            known.close()
            known = None
        if known is None:
            known = self._files[path] = PinnedFile(path, self._pinning)
        return known.bytes

    def close(self) -> None:
        """Unpin all files. Does nothing the second time."""
        for file in self._files.values():
            file.close()
        self._files.clear()


class HostArena:
    """Copies tensors of a device into host memory that is allocated and pinned once, and reused.

    Copies of tensors that are on the CPU get memory of their own. Whoever has the arena closes it: CUDA still takes memory for
    pinned that was freed before it was unpinned, and then refuses copies of tensors of which only a part lies there ("invalid
    argument").

    Args:
        pinning: pins the memory.
        device: the type of the device whose tensors are copied into the arena.
    """

    def __init__(self, pinning: Pinning | None = None, device: str = "cuda") -> None:
        self._pinning, self._device = pinning or CudaPinning(), device
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._pinned = False

    @torch.no_grad()
    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return a copy of each tensor, on the CPU. What an earlier call returned is overwritten.

        All copies from a device are under way at once, and one wait ends them.
        """
        offsets, end = [], 0
        for tensor in tensors:
            offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
            end = offsets[-1] + (tensor.nbytes if tensor.device.type == self._device else 0)
        self._hold(end)
        copied = []
        for tensor, offset in zip(tensors, offsets, strict=True):
            if tensor.device.type == self._device:
                copy = self._memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
                copied.append(copy.copy_(tensor.detach(), non_blocking=True))
            else:
                copied.append(tensor.detach().to("cpu", copy=True))
        if end and torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        return copied

    def close(self) -> None:
        """Unpin and forget the memory. Does nothing the second time."""
        if self._pinned:
            self._pinning.unpin(self._memory.data_ptr())
        self._memory, self._pinned = torch.empty(0, dtype=torch.uint8), False

    def _hold(self, size: int) -> None:
        if size <= len(self._memory):
            return
        self.close()
        # Whole pages of its own, because CUDA pins whole pages: whatever else lay on the last one would be pinned in part.
        self._memory = torch.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
        why_not = self._pinning.pin(self._memory.data_ptr(), size)
        self._pinned = not why_not
        if why_not:
            logger.info("%d bytes of host memory are not pinned, so that copies are slower: %s", size, why_not)


def alone_in_memory(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of it if it is only a part of its memory, all of which would be written to a file with it."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
