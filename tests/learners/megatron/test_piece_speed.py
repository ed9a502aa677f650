"""Which way a piece is computed: by the faster one, whichever that is on this processor, and the same one everywhere."""

import pytest
import torch

from asyncrl.core.files.cache_folder import CACHE_VARIABLE
from learners.megatron.cpu import elementwise_speed, piece_speed
from learners.megatron.cpu.piece_speed import PieceSpeed, made_values, measure, ours_is_faster
from learners.megatron.layers import attention, elementwise
from learners.megatron.layers.packed_rows import PackedRows


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    decided = (elementwise_speed.ours_pays, attention.ours_pays)
    for each in decided:
        each.cache_clear()
    yield
    for each in decided:
        each.cache_clear()


@pytest.mark.parametrize(("ours", "torchs", "faster"), [(1.0, 2.0, True), (1.0, 0.99, True), (1.0, 0.9, False)])
def test_the_faster_way_is_taken_and_kept(monkeypatch, ours, torchs, faster):
    monkeypatch.setattr(piece_speed, "measure", lambda *_: PieceSpeed(ours, torchs))
    assert ours_is_faster("piece", print, print) is faster
    monkeypatch.setattr(piece_speed, "measure", lambda *_: PieceSpeed(torchs * 9, ours))
    assert ours_is_faster("piece", print, print) is faster, "what was measured first is kept"
    assert ours_is_faster("another", print, print) is False


def test_the_ways_are_measured_in_turn_and_the_shortest_time_of_each_counts(monkeypatch):
    now, order = [0.0], []
    seconds = {"ours": iter([9.0, 3.0, 2.0, *[5.0] * 9]), "torchs": iter([9.0, 4.0, 4.0, *[4.5] * 9])}

    def way(name):
        def run():
            order.append(name)
            now[0] += next(seconds[name])

        return run

    monkeypatch.setattr(piece_speed.time, "perf_counter", lambda: now[0])
    assert measure(way("ours"), way("torchs")) == PieceSpeed(2.0, 4.0)
    assert order == ["ours", "torchs"] * (1 + piece_speed.REPETITIONS)


def test_measuring_changes_neither_random_numbers_nor_gradients():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with torch.no_grad():
        for piece in ("norm", "gated SiLU", "rotation"):
            for dtype in (torch.float32, torch.bfloat16):
                assert elementwise_speed.ours_pays(piece, dtype) in (True, False)
        assert attention.ours_pays(2, 1, 32) in (True, False)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("slow", ["ours", "torch"])
def test_what_is_slow_is_left_out(monkeypatch, slow):
    """A way that takes far longer than the other is not taken, by the clock of this machine."""
    real = elementwise.norm_by_torch
    waiting = made_values(1500, 1500).detach()

    def tardy(way):
        return lambda *given: (waiting @ waiting, way(*given))[1]

    monkeypatch.setattr(elementwise, "norm_by_torch", tardy(real) if slow == "torch" else real)
    if slow == "ours":
        monkeypatch.setattr(elementwise_speed.cpu_elementwise, "rms_norm", tardy(elementwise_speed.cpu_elementwise.rms_norm))
    assert elementwise_speed.ours_pays("norm", torch.float32) is (slow == "torch")


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("lengths", [[7, 7, 7], [20, 3, 11, 4]])
def test_attention_is_the_same_by_either_way(monkeypatch, ours, lengths):
    monkeypatch.setattr(attention, "ours_pays", lambda *sizes: ours)
    torch.manual_seed(0)
    layer = attention_layer(heads=4, groups=2, dim=16)
    query, key, value = (torch.randn(sum(lengths), count, 16) for count in (4, 2, 2))
    packed = PackedRows.of(lengths, torch.device("cpu"))
    found = layer._attention(query, key, value, packed).view(-1, 4, 16)
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        for head in range(4):
            scores = query[rows, head].double() @ key[rows, head // 2].double().t() / 4
            weights = scores.masked_fill(~torch.ones(length, length).tril().bool(), -torch.inf).softmax(-1)
            torch.testing.assert_close(
                found[rows, head].double(), weights @ value[rows, head // 2].double(), rtol=1e-4, atol=1e-5
            )
        start += length


def attention_layer(heads, groups, dim):
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=heads * dim, num_attention_heads=heads, num_query_groups=groups, kv_channels=dim
    )
    return attention.PackedAttention(config)
