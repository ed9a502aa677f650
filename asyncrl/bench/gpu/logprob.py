"""Part 3: log-probabilities and entropies from hidden states, beside full logits and beside what the hardware allows."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.bench.gpu.settings import LogprobSettings
from asyncrl.bench.gpu.subject import device, synchronize

WITHIN, MEMORY_SHARE, ACCEPTED_GAP = 1.5, 0.1, 1e-4
"""The targets: time over the limit of the hardware, memory over that of full logits, and relative error in float32."""


class LogprobResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, both passes together and the sum of the output layer's gradient into the accumulated one.

    Attributes:
        seconds, full_seconds: of the kernel, and by way of full logits; None where these did not fit.
        seconds_keeping: of the kernel if it keeps no exponentials between the passes, or all of them.
        products_seconds: the four matrix products alone, of the same operands: a limit of any way that keeps no logits.
        bandwidth_seconds: reading and writing each operand, gradient and tile of logits once at the measured bandwidth.
        limit_ratio: ``seconds`` over the larger limit.
        peak_bytes, full_peak_bytes: GPU memory beyond the operands; None on a CPU.
        largest_gap: largest difference of the log-probabilities of the two ways.
        float64_gaps: relative error of the kernel's results and gradients in float32, with 512 tokens and a temperature of 0.7,
            beside full logits in float64: the norm of the difference over the norm.
        bytes_per_s: measured bandwidth of a copy within the device's memory, reads and writes.
        targets: which targets were met.
        missing: what was not measured, and why.
    """

    seconds: float
    full_seconds: float | None
    seconds_keeping: dict[str, float]
    products_seconds: float
    bandwidth_seconds: float
    limit_ratio: float
    peak_bytes: int | None
    full_peak_bytes: int | None
    largest_gap: float | None
    float64_gaps: dict[str, float]
    bytes_per_s: float
    targets: dict[str, bool]
    missing: tuple[str, ...]


class _Ways:
    """The ways to log-probabilities that are compared, all of the same random operands and with both passes.

    Args:
        settings: say how large the operands are.
        group: the ranks that divide the vocabulary.
    """

    def __init__(self, settings: LogprobSettings, group: dist.ProcessGroup) -> None:
        dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        torch.manual_seed(0)
        options = {"device": device(), "dtype": dtype}
        self.hidden = torch.randn(settings.tokens, settings.hidden, **options).requires_grad_()  # type: ignore[call-overload]
        self.weight = 0.02 * torch.randn(settings.vocabulary, settings.hidden, **options)  # type: ignore[call-overload]
        self.weight.requires_grad_()
        self._targets = torch.randint(0, settings.vocabulary, (settings.tokens,), device=device())
        self._slopes = torch.randn(settings.tokens, device=device())
        self._of_logits = torch.empty(settings.tokens, min(settings.vocabulary, 8192), **options)  # type: ignore[call-overload]
        self._accumulated = torch.zeros_like(self.weight, dtype=torch.float32)
        self._group = group

    def kernel(self, kept_bytes: int) -> Tensor:
        """By our kernel, which adds up gradients as Megatron has it."""
        from asyncrl.learners.megatron.layers.log_probabilities import token_log_probabilities

        self.weight.main_grad = self._accumulated
        return self._both_passes(
            token_log_probabilities(self.hidden, self.weight, self._targets, 1.0, self._group, kept_bytes=kept_bytes).logp
        )

    def full(self) -> Tensor:
        """By way of full logits."""
        every = torch.log_softmax((self.hidden @ self.weight.t()).float(), -1)
        return self._both_passes(every.gather(1, self._targets.unsqueeze(1)).squeeze(1))

    @torch.no_grad()
    def products(self) -> None:
        """The matrix products alone: logits in both passes, and two gradients."""
        for start in range(0, len(self.weight), self._of_logits.size(1)):
            part = self.weight[start : start + self._of_logits.size(1)]
            for _ in range(2):
                self.hidden @ part.t()
            of_part = self._of_logits[:, : len(part)]
            of_part @ part
            of_part.t() @ self.hidden

    def _both_passes(self, logp: Tensor) -> Tensor:
        _, gradient = torch.autograd.grad((logp * self._slopes).sum(), (self.hidden, self.weight), allow_unused=True)
        if gradient is not None:
            self._accumulated.add_(gradient)
        return logp.detach()


def measure(settings: LogprobSettings) -> LogprobResult:
    """Measure in this process."""
    from asyncrl.learners.megatron.layers.log_probabilities import KEPT_BYTES

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    ways, often = _Ways(settings, group), settings.repetitions
    hidden, weight = ways.hidden, ways.weight
    missing = [] if torch.cuda.is_available() else ["a GPU: the figures are of a CPU and mean nothing"]
    seconds, peak, ours = median_of(partial(ways.kernel, KEPT_BYTES), often)
    keeping = {"nothing": 0, "all": settings.tokens * settings.vocabulary * weight.element_size()}
    seconds_keeping = {kept: median_of(partial(ways.kernel, room), often)[0] for kept, room in keeping.items()}
    full_seconds: float | None = None
    full_peak: int | None = None
    gap: float | None = None
    try:
        full_seconds, full_peak, theirs = median_of(ways.full, often)
        gap = (ours - theirs).abs().max().item()
    except torch.OutOfMemoryError:
        missing.append("full logits: they did not fit into the GPU's memory")
    products_seconds, _, _ = median_of(ways.products, often)
    speed = bandwidth()
    operands = hidden.nbytes + weight.nbytes
    # Each pass reads the operands and passes over the float32 logits twice; the second writes two gradients.
    moved = 4 * operands + 2 * 2 * 4 * settings.tokens * settings.vocabulary
    limit = max(products_seconds, moved / speed)
    gaps = float64_gaps(group)
    dist.destroy_process_group()
    targets_met = {
        f"within {WITHIN} of the limit": seconds <= WITHIN * limit,
        f"within {ACCEPTED_GAP} of float64": max(gaps.values()) <= ACCEPTED_GAP,
    }
    if peak is not None and full_peak:
        targets_met[f"at most {MEMORY_SHARE} of full logits' memory"] = peak <= MEMORY_SHARE * full_peak
    return LogprobResult(
        seconds=seconds,
        full_seconds=full_seconds,
        seconds_keeping=seconds_keeping,
        products_seconds=products_seconds,
        bandwidth_seconds=moved / speed,
        limit_ratio=seconds / limit,
        peak_bytes=peak,
        full_peak_bytes=full_peak,
        largest_gap=gap,
        float64_gaps=gaps,
        bytes_per_s=speed,
        targets=targets_met if torch.cuda.is_available() else {},
        missing=tuple(missing),
    )


def float64_gaps(group: dist.ProcessGroup) -> dict[str, float]:
    """Relative errors of log-probabilities, entropies and both gradients beside full logits in float64."""
    from asyncrl.learners.megatron.layers.log_probabilities import token_log_probabilities

    tokens, width, entries, temperature = 512, 64, 20_000, 0.7
    torch.manual_seed(1)
    hidden = torch.randn(tokens, width, device=device()).requires_grad_()
    weight = (0.3 * torch.randn(entries, width, device=device())).requires_grad_()
    targets = torch.randint(0, entries, (tokens,), device=device())
    slopes = torch.randn(2, tokens, device=device())
    ours = token_log_probabilities(hidden, weight, targets, temperature, group)
    our_gradients = torch.autograd.grad((slopes * torch.stack(ours)).sum(), (hidden, weight))
    exact_hidden, exact_weight = (each.detach().double().requires_grad_() for each in (hidden, weight))
    every = torch.log_softmax(exact_hidden @ exact_weight.t() / temperature, -1)
    theirs = (every.gather(1, targets.unsqueeze(1)).squeeze(1), -(every.exp() * every).sum(-1))
    their_gradients = torch.autograd.grad((slopes * torch.stack(theirs)).sum(), (exact_hidden, exact_weight))
    names = ("log-probabilities", "entropies", "gradient of hidden states", "gradient of weights")
    pairs = zip(names, (*ours, *our_gradients), (*theirs, *their_gradients), strict=True)
    return {name: ((one - exact).norm() / exact.norm()).item() for name, one, exact in pairs}


def median_of(work: Callable[[], Tensor | None], repetitions: int) -> tuple[float, int | None, Tensor]:
    """Median seconds of ``work``, GPU memory beyond what was there before, and the last result."""
    on_gpu = torch.cuda.is_available()
    result, took, peak = work(), [], None
    for _ in range(repetitions):
        synchronize()
        before = 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        began = time.perf_counter()
        result = work()
        synchronize()
        took.append(time.perf_counter() - began)
        peak = torch.cuda.max_memory_allocated() - before if on_gpu else None
    return statistics.median(took), peak, torch.empty(0) if result is None else result


def bandwidth() -> float:
    """Bytes a second of a copy within the device's memory, read and written."""
    size = (1 << 30) if torch.cuda.is_available() else (64 << 20)
    source = torch.ones(size, dtype=torch.uint8, device=device())
    target = torch.empty_like(source)
    seconds, _, _ = median_of(lambda: target.copy_(source), 5)
    return 2 * size / seconds
