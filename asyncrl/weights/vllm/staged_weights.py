"""New weights of a model on a GPU, made beside those in use while the engine samples, and copied over them in a pause.

What always holds: parameters stay where they are, because CUDA graphs replay with the addresses that they saw. Weights are staged
only if they leave enough memory free. A plan is trusted once it has made, from a publication that vLLM's own loaders have loaded,
bit by bit what these made: whatever else vLLM does to weights on this GPU, such as another layout of experts, is noticed then,
and the plan is given up.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

from asyncrl.core.publication import LEFT_FREE
from asyncrl.weights.vllm.load_plan import LoadPlan, empty_like
from asyncrl.weights.vllm.slice_reader import Reading

logger = logging.getLogger(__name__)

_SHARED = 0.5
"""An engine that takes no more than this share of its GPU's memory may share the GPU with a learner."""
_LEFT_TO_LEARNER = 1 / 8
"""Share of such a GPU's memory that must stay free: batches of a learner differ in what they take."""


class Device(Protocol):
    """What is asked of a GPU."""

    def memory(self) -> tuple[int, int]:
        """Free bytes and all bytes."""

    def beside(self) -> AbstractContextManager[None]:
        """Launch what is done meanwhile on a stream beside the engine's, and wait for it at the end."""

    def wait(self) -> None:
        """Wait for what was launched on the engine's stream."""

    def give_back(self) -> None:
        """Let other processes have the memory that this one no longer uses."""


class Cuda:
    """A GPU of CUDA's, with a stream of its own for staging."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def memory(self) -> tuple[int, int]:
        """Free bytes and all bytes."""
        free, whole = torch.cuda.mem_get_info(self._device)
        return int(free), int(whole)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Launch on the stream for staging, and wait for it."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._stream.synchronize()

    def wait(self) -> None:
        """Wait for the engine's stream."""
        torch.cuda.current_stream(self._device).synchronize()

    def give_back(self) -> None:
        """Let other processes have what torch keeps for further tensors."""
        with torch.cuda.device(self._device):
            torch.cuda.empty_cache()


class StagedWeights:
    """The place beside the weights in use; it is made for the first publication and kept for the next.

    Args:
        plan: made with ``in_place``.
        device: where the model is.
        share: share of the GPU's memory that the engine takes.
        gpu: that of ``device``.
    """

    def __init__(self, plan: LoadPlan, device: torch.device, share: float, gpu: Device) -> None:
        self._plan: LoadPlan | None = plan
        self._device, self._share, self._gpu = device, share, gpu
        self._room: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}
        self.proven = False

    def stage(self, reading: Reading) -> int | None:
        """Stage a publication. May run in any thread.

        Returns:
            The fingerprint of what was read; None if weights are not staged, for want of memory or of a plan.
        """
        if self._plan is None or not (self._room or self._has_room(self._plan)):
            return None
        try:
            return self._fill(self._plan, reading)
        except torch.OutOfMemoryError:
            logger.info("there was no memory left for new weights beside those in use: the engine pauses longer")
        self._leave_room()  # not before the error is gone, which holds the frames that hold the tensors
        return None

    def _fill(self, plan: LoadPlan, reading: Reading) -> int:
        with self._gpu.beside(), torch.no_grad():
            self._room = self._room or {layer: empty_like(like, self._device) for layer, like in plan.templates.items()}
            for layer, tensors in self._room.items():
                plan.fill_layer(layer, tensors, reading.fill_on_device)
            return reading.total()

    def _leave_room(self) -> None:
        self._room = {}
        self._gpu.give_back()

    @torch.no_grad()
    def exchange(self) -> None:
        """Copy what was staged over the weights in use."""
        used, staged = zip(*self._pairs(), strict=True)
        torch._foreach_copy_(used, staged)
        self._gpu.wait()

    def prove(self) -> None:
        """Compare what was staged with what vLLM has loaded from the same publication, and give the plan up if they differ."""
        self.proven = all(torch.equal(used, staged) for used, staged in self._pairs())
        if self.proven:
            self.exchange()  # changes nothing, and has CUDA load its kernel now instead of in the next pause
        else:
            logger.info("no load plan, so weights are loaded while the engine is paused: vLLM arranges them in another way")
            self._plan = None
            self._leave_room()

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter in use, and what was staged for it."""
        for layer, tensors in self._room.items():
            for name, staged in tensors.items():
                used = layer._parameters[name]
                assert used is not None
                yield used, staged

    def _has_room(self, plan: LoadPlan) -> bool:
        layers = [sum(like.nbytes for like in templates.values()) for templates in plan.templates.values()]
        size = sum(layers) + max(layers)  # the shards of one layer, too
        free, whole = self._gpu.memory()
        left = LEFT_FREE if self._share > _SHARED else max(LEFT_FREE, int(whole * _LEFT_TO_LEARNER))
        if size + left > free:
            logger.info("new weights do not fit beside those in use: the engine pauses longer")
        return size + left <= free
