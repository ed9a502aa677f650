"""Layouts beyond the plain grid: what they change in memory and schedule changes neither loss nor gradients."""

import layout_side
import numpy as np
import pytest
from learner_samples import assemble, make_batch, make_model, make_recipe
from ranks import run_ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def test_what_is_recomputed_is_not_kept_and_gives_the_same_bits(folder):
    def kept_for_backward(recompute):
        ((kept, shards),) = run_ranks(
            layout_side.kept_for_backward, make_recipe(folder, recompute=recompute), folder, *make_batch()
        )
        return kept, assemble([shards])

    everything, expected = kept_for_backward("none")
    for recompute, share in (("selective", 0.9), ("full", 0.5)):
        kept, weights = kept_for_backward(recompute)
        assert kept < share * everything
        for name, tensor in expected.items():
            np.testing.assert_array_equal(weights[name], tensor, err_msg=name)
