"""Which way a piece is computed: by the faster one, whichever that is on this processor, and the same one everywhere."""

import pytest
import torch

from asyncrl.core.architectures.architecture import LatentSizes
from asyncrl.core.files.cache_folder import CACHE_VARIABLE
from asyncrl.learners.megatron.cpu import kernels, piece_speed
from asyncrl.learners.megatron.cpu.piece_speed import PieceSpeed, made_values, measure, ours_is_faster
from asyncrl.learners.megatron.layers.attention import PackedAttention
from asyncrl.learners.megatron.layers.packed_rows import PackedRows
from asyncrl.learners.megatron.transformer import PolicyTransformerConfig


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


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
        for dtype in (torch.float32, torch.bfloat16):
            chosen = kernels.kernels_of_cpu(configuration(heads=2, groups=1, dim=32, dtype=dtype))
            assert all(kernel in ways for kernel, *ways in zip(chosen, kernels.OURS, kernels.TORCHS, strict=True))
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("slow", ["ours", "torch"])
def test_what_is_slow_is_left_out(monkeypatch, slow):
    """A way that takes far longer than the other is not taken, by the clock of this machine."""
    waiting = made_values(1500, 1500).detach()

    def tardy(way):
        return lambda *given: (waiting @ waiting, way(*given))[1]

    name, fast = ("OURS", kernels.TORCHS) if slow == "ours" else ("TORCHS", kernels.OURS)
    ways = getattr(kernels, name)
    monkeypatch.setattr(kernels, name, ways._replace(rms_norm=tardy(ways.rms_norm)))
    assert kernels.kernels_of_cpu(configuration(heads=2, groups=1, dim=32)).rms_norm is fast.rms_norm


def test_latent_attention_is_measured_in_the_sizes_that_it_is_computed_in(monkeypatch):
    measured = []
    monkeypatch.setattr(kernels, "ours_is_faster", lambda name, *ways: measured.append(name))
    sizes = LatentSizes(query_rank=24, key_value_rank=16, plain=12, rotated=8, value=16)
    options = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 8}
    kernels.kernels_of_cpu(PolicyTransformerConfig(**options, latent=sizes))
    assert "attention of 4 heads, 4 key heads, 20 channels" in measured


@pytest.mark.parametrize("way", [kernels.OURS, kernels.TORCHS], ids=["ours", "torch"])
@pytest.mark.parametrize("lengths", [[7, 7, 7], [20, 3, 11, 4]])
def test_attention_is_the_same_by_either_way(way, lengths):
    torch.manual_seed(0)
    layer = PackedAttention(configuration(heads=4, groups=2, dim=16))
    layer.kernels = way
    query, key, value = (torch.randn(sum(lengths), count, 16) for count in (4, 2, 2))
    packed = PackedRows.of(lengths, torch.device("cpu"))
    packed.rotation = torch.ones(sum(lengths), 1, 8), torch.zeros(sum(lengths), 1, 8)
    found = layer(query, key, value, packed_seq_params=packed).view(-1, 4, 16)
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


def configuration(heads, groups, dim, dtype=torch.float32):

    return PolicyTransformerConfig(
        num_layers=1,
        hidden_size=heads * dim,
        num_attention_heads=heads,
        num_query_groups=groups,
        kv_channels=dim,
        params_dtype=dtype,
    )
