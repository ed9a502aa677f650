"""Attention by our own machine code on a CPU, against the plain formula in float64."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks

from learners.megatron import cpu_compat, row_threads

LENGTHS = st.integers(1, 40)


@st.composite
def packed_segments(draw):
    """Lengths, prefixes and preamble, as a micro-batch has them."""
    sizes = draw(st.lists(st.integers(2, 5), max_size=3))
    ends = [0, *accumulate(sizes)]
    prefixes = tuple(range(start, end) for start, end in pairwise(ends))
    preamble = draw(st.integers(0, 40)) if len(prefixes) > 1 else 0
    rows = [draw(LENGTHS) for _ in range(ends[-1] + draw(st.integers(0 if sizes else 1, 4)))]
    return [*([preamble] if preamble else []), *(draw(LENGTHS) for _ in prefixes), *rows], prefixes, preamble


def seen_keys(lengths, prefixes, preamble):
    """bool [t, t]: which keys each query sees."""
    starts = [0, *accumulate(lengths)]
    first = int(preamble > 0)
    continued = {first + prefix: [0] if preamble else [] for prefix in range(len(prefixes))}
    for prefix, rows in enumerate(prefixes):
        for row in rows:
            continued[first + len(prefixes) + row] = [*([0] if preamble else []), first + prefix]
    seen = torch.zeros(starts[-1], starts[-1], dtype=torch.bool)
    for segment, length in enumerate(lengths):
        own = slice(starts[segment], starts[segment] + length)
        seen[own, own] = torch.ones(length, length).tril().bool()
        for earlier in continued.get(segment, []):
            seen[own, starts[earlier] : starts[earlier] + lengths[earlier]] = True
    return seen


def plain(query, key, value, seen):
    repeats = query.size(1) // key.size(1)
    keys, values = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, keys) * query.size(-1) ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values)


def compute(layout, heads, groups, dim, threads=1):
    """Output and gradients of ours, and of the plain formula in float64."""
    cpu_compat.install()
    from learners.megatron.cpu_attention import attention_on_cpu
    from learners.megatron.packed_rows import PackedRows

    lengths, prefixes, preamble = layout
    packed = PackedRows.of(lengths, torch.device("cpu"), prefixes, preamble)
    random = torch.Generator().manual_seed(0)
    ours, doubles = [], []
    for count in (heads, groups, groups):
        values = 2 * torch.randn(sum(lengths), count, dim, generator=random)
        ours.append(values.clone().requires_grad_())
        doubles.append(values.double().requires_grad_())
    slope = torch.randn(sum(lengths), heads, dim, generator=random)
    torch.set_num_threads(threads)
    found, expected = attention_on_cpu(*ours, packed, None), plain(*doubles, seen_keys(*layout))
    found.backward(slope)
    expected.backward(slope.double())
    return [found.detach(), *(each.grad for each in ours)], [expected.detach(), *(each.grad for each in doubles)]


def on_a_rank(_, layout, shapes, threads):
    row_threads._LEAST_NUMBERS = 1
    return [[[each.numpy() for each in side] for side in compute(layout, *shape, threads)] for shape in shapes]


def assert_close(pairs):
    for found, expected in pairs:
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=5e-5)


@given(packed_segments())
@settings(deadline=None, max_examples=60)
def test_equals_the_plain_formula(layout):
    assert_close([compute(layout, 4, 2, 16)])


SHAPES = [(1, 1, 16), (6, 2, 16), (7, 1, 32), (16, 1, 16), (34, 2, 16), (4, 4, 64), (4, 2, 8), (2, 1, 128)]
"""Heads, key heads and channels: one, three, seven, 16 and 17 heads to a key; channels that must be padded, and many."""
LAYOUT = ([20, 3, 18, 1, 40, 7, 16, 33, 2], (range(2), range(2, 4)), 20)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_heads_and_threads(threads):
    (pairs,) = run_ranks(on_a_rank, LAYOUT, SHAPES, threads)
    assert_close(pairs)


@pytest.mark.parametrize("spoilt", range(3))
def test_what_is_not_a_number_stays_so(spoilt):
    """A run must notice that its weights are no longer numbers."""
    cpu_compat.install()
    from learners.megatron.cpu_attention import attention_on_cpu
    from learners.megatron.packed_rows import PackedRows

    operands = [torch.randn(24, 2, 16) for _ in range(3)]
    operands[spoilt][5, 1, 3] = torch.nan
    output = attention_on_cpu(*operands, PackedRows.of([24], torch.device("cpu")), None)
    assert output[5, 1, 3].isnan()
    assert output[:, 0].isfinite().all()


def test_scores_of_any_size():
    """Weights are relative to the largest score, so none overflows."""
    cpu_compat.install()
    from learners.megatron.cpu_attention import attention_on_cpu
    from learners.megatron.packed_rows import PackedRows

    query, key, value = (torch.randn(20, 1, 16, dtype=torch.float64) for _ in range(3))
    query *= 1e4
    found = attention_on_cpu(query.float(), key.float(), value.float(), PackedRows.of([20], torch.device("cpu")), None)
    torch.testing.assert_close(found.double(), plain(query, key, value, seen_keys([20], (), 0)), rtol=1e-2, atol=1e-2)
