"""The data type that is measured to be faster, with the model's own products."""

import logging

import msgspec
import pytest

from asyncrl.core.files.cache_folder import CACHE_VARIABLE
from asyncrl.learners import type_speed
from asyncrl.learners.type_speed import Product, TypeSpeed, measure
from asyncrl.run.models.model_shape import TINY_SHAPE
from asyncrl.run.recipe import automatic
from asyncrl.run.recipe.automatic import bfloat16_share, products_of

MIXTURE = msgspec.structs.replace(
    TINY_SHAPE, num_hidden_layers=3, mlp_only_layers=(1,), num_experts=8, num_experts_per_tok=2, moe_intermediate_size=48
)
UNTIED = msgspec.structs.replace(TINY_SHAPE, tie_word_embeddings=False)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    return tmp_path / "speeds"


@pytest.mark.parametrize("shape", [TINY_SHAPE, UNTIED, MIXTURE], ids=["tied", "untied", "mixture"])
def test_the_products_are_those_of_the_model_s_matrices(shape):
    """As its tensors are listed; the embedding is looked up, routers are left out, and a token reaches its own experts."""
    multiplied = sum(each.inputs * each.outputs * each.times for each in products_of(shape))
    matrices = [
        t
        for t in shape.architecture.tensors()
        if len(t.shape) == 2 and not t.name.endswith(("gate.weight", "embed_tokens.weight"))
    ]
    expected = sum(t.shape[0] * t.shape[1] for t in matrices)
    if shape.tie_word_embeddings:
        expected += shape.vocab_size * shape.hidden_size
    assert multiplied == expected
    reached = sum(each.inputs * each.outputs * each.times * each.share for each in products_of(shape))
    routers = shape.hidden_size * shape.mixture.experts * sum(shape.mixture.layers)
    embedding = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    assert reached == shape.active_parameters - routers - embedding


def test_it_is_measured_once_in_a_process_of_its_own(cache, monkeypatch):
    share = bfloat16_share(TINY_SHAPE)
    assert share is not None
    assert 0.01 < share < 100
    (kept,) = [path for path in cache.iterdir() if path.name.startswith("data-type")]
    found = msgspec.json.decode(kept.read_bytes(), type=TypeSpeed)
    assert found.bfloat16 / found.float32 == share
    monkeypatch.setattr(automatic, "MODULE", "gone")
    assert bfloat16_share(TINY_SHAPE) == share


def test_each_type_has_the_shortest_time_of_each_product(monkeypatch):
    """Of a clock by which bfloat16 takes half as long, and all but one turn twice as long."""
    now, turn = [0.0], [0]

    def way(product, tokens, dtype, *, backward):
        def run():
            turn[0] += 1
            slow = 1 if turn[0] == 5 else 2
            now[0] += slow * tokens * (3 if backward else 1) * (1e-3 if "bfloat16" in str(dtype) else 2e-3)

        return run

    monkeypatch.setattr(type_speed, "_way", way)
    monkeypatch.setattr(type_speed.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(type_speed, "SECONDS", 1e-9)
    found = measure([Product(64, 64, times=3.0)])
    # One warm-up of the four ways, then one turn, whose first way is the quick one.
    assert found.float32 == pytest.approx(3 * (1 * 2e-3 + 2 * 3 * 2e-3))
    assert found.bfloat16 == pytest.approx(3 * (2 * 1e-3 + 2 * 3 * 1e-3))


def test_wide_products_are_measured_in_parts_that_make_up_the_whole():
    wide = Product(3000, 150_000, times=2.0)
    part = type_speed._part(wide)
    assert max(part.inputs, part.outputs) <= type_speed.WIDEST
    assert part.inputs * part.outputs * part.times == pytest.approx(wide.inputs * wide.outputs * wide.times)
    assert type_speed._part(Product(64, 64)) == Product(64, 64)


@pytest.mark.parametrize("module", ["learners.gone", "this"])
def test_where_it_cannot_be_measured_nothing_is_made_up(cache, monkeypatch, caplog, module):
    monkeypatch.setattr(automatic, "MODULE", module)
    with caplog.at_level(logging.WARNING):
        assert bfloat16_share(TINY_SHAPE) is None
    assert "measuring which data type is faster failed" in caplog.text
    assert "name generators.dtype and learner.dtype" in caplog.text
    assert not cache.exists()
