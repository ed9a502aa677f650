"""Gradients of weights that matrix products add to what is accumulated already."""

import layout_side
import pytest
from test_layouts import assert_same_gradients_by

CASES = {
    "one-rank": ("qwen3", {}),
    "tp2-pp2-full": ("qwen3", {"tensor": 2, "pipeline": 2, "recompute": "full"}),
    "untied-tp2-dp2": ("qwen2", {"tensor": 2, "data": 2}),
    # All rows in one micro-batch: some experts have no token.
    "experts-ep2": ("qwen3_moe", {"data": 2, "expert": 2, "micro_batch_tokens": 1000}),
}


@pytest.mark.parametrize(("architecture", "layout"), CASES.values(), ids=CASES)
def test_gradients_added_in_products_are_those_that_are_added_afterwards(architecture, layout, tmp_path):
    """Those of the output layer are added in its products with any layers; see ``test_ranks.py``."""
    assert_same_gradients_by(layout_side.gradients_in_products, tmp_path, architecture, least=4, **layout)
