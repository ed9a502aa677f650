"""Compares peak memory and time of log-probabilities and entropies: directly from hidden states, and from full logits.

The way with full logits is the obvious one: a matrix product, ``log_softmax``, ``gather`` and the entropy, with torch's autograd.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

TEMPERATURE = 0.8


class _Operands(NamedTuple):
    hidden: Tensor
    weight: Tensor
    targets: Tensor
    slopes: Tensor


def megabytes(way: str, tokens: int, vocabulary: int, hidden: int) -> float:
    """Megabytes by which one forward and backward pass raises this process's peak of resident memory.

    The kernel's own count (``VmHWM``, reset just before) misses nothing, neither scratch memory of the matrix products nor
    temporaries inside an operator. A small pass before the measurement warms up the libraries.

    Args:
        way: ``tiled`` (directly from hidden states) or ``full`` (from full logits).
    """
    _prepare()
    with _alone() as group:
        of = _ways(group)[way]
        _both_passes(of, _operands(64, 512, hidden), entropy_bonus=False)
        operands = _operands(tokens, vocabulary, hidden)
        Path("/proc/self/clear_refs").write_text("5")
        before = _resident("VmRSS")
        _both_passes(of, operands, entropy_bonus=False)
        return _resident("VmHWM") - before


def seconds(tokens: int, vocabulary: int, hidden: int, repetitions: int, entropy_bonus: bool) -> list[tuple[float, float]]:
    """Wall-clock seconds of forward and backward pass, (tiled, full), for each repetition after one that warms up."""
    _prepare()
    with _alone() as group:
        operands = _operands(tokens, vocabulary, hidden)
        pairs = []
        for _ in range(repetitions + 1):
            took = []
            for of in _ways(group).values():
                started = time.perf_counter()
                _both_passes(of, operands, entropy_bonus)
                took.append(time.perf_counter() - started)
            pairs.append((took[0], took[1]))
        return pairs[1:]


def _prepare() -> None:
    """Have this process multiply as a learner does."""
    from asyncrl.learners.megatron.cpu.onednn_products import multiply_with_onednn

    torch.set_num_threads(1)
    multiply_with_onednn()


Way = Callable[[_Operands], tuple[Tensor, Tensor]]


def _ways(group: dist.ProcessGroup) -> dict[str, Way]:
    from asyncrl.learners.megatron.layers.log_probabilities import token_log_probabilities

    def tiled(operands: _Operands) -> tuple[Tensor, Tensor]:
        return token_log_probabilities(operands.hidden, operands.weight, operands.targets, TEMPERATURE, group)

    return {"tiled": tiled, "full": full_logits}


def full_logits(operands: _Operands) -> tuple[Tensor, Tensor]:
    """Compute [n] log-probabilities and [n] entropies from full logits."""
    logp = torch.log_softmax(operands.hidden @ operands.weight.t() / TEMPERATURE, -1)
    return logp.gather(1, operands.targets.unsqueeze(1)).squeeze(1), -(logp.exp() * logp).sum(-1)


def _both_passes(of: Way, operands: _Operands, entropy_bonus: bool) -> None:
    logp, entropy = of(operands)
    loss = (logp * operands.slopes).sum()
    if entropy_bonus:
        loss = loss - 0.01 * entropy.sum()
    torch.autograd.grad(loss, (operands.hidden, operands.weight))


def _operands(tokens: int, vocabulary: int, hidden: int) -> _Operands:
    torch.manual_seed(0)
    return _Operands(
        hidden=torch.randn(tokens, hidden).requires_grad_(),
        weight=(0.1 * torch.randn(vocabulary, hidden)).requires_grad_(),
        targets=torch.randint(0, vocabulary, (tokens,)),
        slopes=torch.randn(tokens),
    )


@contextmanager
def _alone() -> Iterator[dist.ProcessGroup]:
    """Provide a tensor-parallel group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def _resident(field: str) -> float:
    """A field of this process's memory status (``VmRSS``, ``VmHWM``) in megabytes."""
    (kilobytes,) = re.findall(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kilobytes) * 1024 / 1e6
