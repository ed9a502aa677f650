"""FlexAttention over shared prefixes is compiled once, however prefixes and rows lie: on a GPU each compilation takes seconds."""

import random

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from asyncrl.learners.megatron.layers import prefix_attention
from asyncrl.learners.megatron.layers.packed_rows import PackedRows

LAYOUTS = 6


def layout(chance: random.Random) -> tuple[tuple[int, ...], tuple[range, ...], int]:
    """Lengths of all segments, the rows that continue each prefix, and the length of the preamble."""
    preamble = chance.choice([0, chance.randint(5, 40)])
    counts = [chance.randint(2, 5) for _ in range(chance.randint(1, 3))]
    prefixes = [range(sum(counts[:number]), sum(counts[: number + 1])) for number in range(len(counts))]
    lengths = [chance.randint(10, 90) for _ in counts] + [chance.randint(3, 120) for _ in range(sum(counts))]
    return (*([preamble] if preamble else []), *lengths), tuple(prefixes), preamble


def test_mask_and_kernel_are_compiled_once_for_all_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    chance = random.Random(0)
    layouts = [layout(chance) for _ in range(LAYOUTS)]

    def computed() -> list[torch.Tensor]:
        torch.manual_seed(0)
        outputs = []
        for lengths, prefixes, preamble in layouts:
            tokens, packed = sum(lengths), PackedRows.of(lengths, torch.device("cpu"), prefixes, preamble)
            query, key, value = (torch.randn(tokens, heads, 32) for heads in (4, 2, 2))
            outputs.append(prefix_attention.continue_prefixes(query, key, value, packed, None))
        return outputs

    expected = computed()
    counters = {name: CompileCounterWithBackend("aot_eager") for name in ("create_block_mask", "flex_attention")}
    for name, counter in counters.items():
        # On a GPU, the same is done by torch's own compiler, which takes longer.
        compiled = torch.compile(getattr(prefix_attention, name), dynamic=True, backend=counter)
        monkeypatch.setattr(prefix_attention, name, compiled)
    for output, plain in zip(computed(), expected, strict=True):
        torch.testing.assert_close(output, plain)
    assert {name: counter.frame_count for name, counter in counters.items()} == dict.fromkeys(counters, 1)
