"""Attention by our own machine code on a CPU, against the plain formula in float64."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.learners.megatron.cpu import row_threads
from asyncrl.learners.megatron.cpu.attention import attention_on_cpu
from asyncrl.learners.megatron.layers.packed_rows import segment_table

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


def compute(layout, heads, groups, dim):
    """Output and gradients of ours, and of the plain formula in float64."""
    lengths = layout[0]
    random = torch.Generator().manual_seed(0)
    ours, doubles = [], []
    for count in (heads, groups, groups):
        values = 2 * torch.randn(sum(lengths), count, dim, generator=random)
        ours.append(values.clone().requires_grad_())
        doubles.append(values.double().requires_grad_())
    slope = torch.randn(sum(lengths), heads, dim, generator=random)
    found, expected = attention_on_cpu(*ours, segment_table(*layout)), plain(*doubles, seen_keys(*layout))
    found.backward(slope)
    expected.backward(slope.double())
    return [found.detach(), *(each.grad for each in ours)], [expected.detach(), *(each.grad for each in doubles)]


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
def test_any_number_of_heads_and_threads(monkeypatch, threads):
    monkeypatch.setattr(row_threads, "_LEAST_NUMBERS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert_close([compute(LAYOUT, *shape) for shape in SHAPES])


def test_what_a_thread_raises_is_raised_when_all_have_ended(monkeypatch):
    monkeypatch.setattr(row_threads, "_LEAST_NUMBERS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    ended = []

    def compute(number, _begin, _end):
        if number == 1:
            raise MemoryError
        ended.append(number)

    with pytest.raises(MemoryError):
        row_threads.in_threads(3, 3, compute)
    assert sorted(ended) == [0, 2]


def test_what_does_not_go_together_is_refused():
    query, key = torch.randn(4, 2, 16), torch.randn(4, 1, 16)
    table = segment_table([4], (), 0)
    for operands, segments, said in [
        ((query.bfloat16(), key, key), table, "float32"),
        ((query, key, key[:3]), table, "go together"),
        ((query, key, key), segment_table([5], (), 0), "5 tokens"),
    ]:
        with pytest.raises(ValueError, match=said):
            attention_on_cpu(*operands, segments)


@pytest.mark.parametrize("spoilt", range(3))
def test_what_is_not_a_number_stays_so(spoilt):
    """A run must notice that its weights are no longer numbers."""
    operands = [torch.randn(24, 2, 16) for _ in range(3)]
    operands[spoilt][5, 1, 3] = torch.nan
    output = attention_on_cpu(*operands, segment_table([24], (), 0))
    assert output[5, 1, 3].isnan()
    assert output[:, 0].isfinite().all()


def test_scores_of_any_size():
    """Weights are relative to the largest score, so none overflows."""
    query, key, value = (torch.randn(20, 1, 16, dtype=torch.float64) for _ in range(3))
    query *= 1e4
    found = attention_on_cpu(query.float(), key.float(), value.float(), segment_table([20], (), 0))
    torch.testing.assert_close(found.double(), plain(query, key, value, seen_keys([20], (), 0)), rtol=1e-2, atol=1e-2)
