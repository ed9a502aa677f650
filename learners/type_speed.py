"""Measures how fast this processor multiplies a model's matrices in float32 and in bfloat16, as an engine and as a learner does.

``python -m asyncrl.learners.type_speed PRODUCTS`` measures in its own process, on one thread, and prints the result; whoever asks
need not load torch, which importing this does not load either.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch

ENGINE_TOKENS, LEARNER_TOKENS = 64, 1024
"""Tokens that an engine samples at once, and tokens of a learner's micro-batch, or fewer where the model is large."""
WIDEST = 1024
"""Larger matrices are measured in parts of so many inputs and outputs."""
WORK = 4e9
"""Floating-point operations of one measurement of all products, about."""
SECONDS = 0.4
"""How long is measured, after each way was taken once."""


class Product(msgspec.Struct, frozen=True):
    """Products of one size in a model.

    Attributes:
        inputs, outputs: channels.
        times: how many there are.
        share: share of the tokens that each of them gets, as an expert does.
        trained: whether a learner multiplies in the model's data type too.
    """

    inputs: int
    outputs: int
    times: float = 1.0
    share: float = 1.0
    trained: bool = True


class TypeSpeed(msgspec.Struct, frozen=True):
    """Seconds of one thread for the products of one token, sampled by an engine and trained by a learner."""

    float32: float
    bfloat16: float


def measure(products: Sequence[Product]) -> TypeSpeed:
    """Measure both data types in turn; the shortest time of each product counts."""
    import torch

    from asyncrl.learners.megatron.cpu.onednn_products import multiply_with_onednn

    torch.set_num_threads(1)
    multiply_with_onednn()
    parts = [_part(product) for product in products]
    weights = sum(part.inputs * part.outputs * part.share for part in parts)
    trained = int(min(LEARNER_TOKENS, max(ENGINE_TOKENS, WORK / (6 * weights))))
    dtypes = (torch.float32, torch.bfloat16)
    ways = [
        [(part.times / tokens, _way(part, tokens, dtype, backward=backward)) for dtype in dtypes]
        for tokens, backward in ((ENGINE_TOKENS, False), (trained, True))
        for part in parts
        if part.trained or not backward
    ]
    shortest = [[float("inf")] * len(dtypes) for _ in ways]
    for turn in range(-1, 1000):
        for kind, of_types in enumerate(ways):
            for number, (_, way) in enumerate(of_types):
                started = time.perf_counter()
                way()
                if turn >= 0:
                    shortest[kind][number] = min(shortest[kind][number], time.perf_counter() - started)
        if turn < 0:
            begun = time.perf_counter()
        elif time.perf_counter() - begun > SECONDS:
            break
    totals = [
        sum(of_types[number][0] * seconds[number] for of_types, seconds in zip(ways, shortest, strict=True))
        for number in range(len(dtypes))
    ]
    return TypeSpeed(*totals)


def _part(product: Product) -> Product:
    """A product that is not too wide, as many times as it takes."""
    inputs, outputs = min(product.inputs, WIDEST), min(product.outputs, WIDEST)
    times = product.times * (product.inputs / inputs) * (product.outputs / outputs)
    return msgspec.structs.replace(product, inputs=inputs, outputs=outputs, times=times)


def _way(product: Product, tokens: int, dtype: "torch.dtype", *, backward: bool) -> Callable[[], object]:
    import torch

    rows = max(1, round(tokens * product.share))
    values = torch.linspace(-1, 1, rows * product.inputs).view(rows, product.inputs).to(dtype)
    weight = torch.linspace(1, -1, product.outputs * product.inputs).view(product.outputs, product.inputs).to(dtype)
    if not backward:
        return torch.no_grad()(lambda: torch.nn.functional.linear(values, weight))
    operands = values.requires_grad_(), weight.requires_grad_()

    def passes() -> object:
        output = torch.nn.functional.linear(*operands)
        return torch.autograd.grad(output, operands, output.detach())

    return passes


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.argv[1], type=tuple[Product, ...])
    sys.stdout.write(msgspec.json.encode(measure(asked)).decode() + "\n")
