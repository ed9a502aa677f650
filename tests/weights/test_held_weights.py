"""Ranks that hold the same weights share out what they publish, and publish together what one alone would."""

import math
from collections import Counter

import msgspec
import pytest
import rank_side
from learner_samples import make_batch, make_model, make_recipe
from ranks import run_ranks

from asyncrl.core.architectures.architecture import Architecture
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.held_weights import held_weights
from asyncrl.learners.rank import RankPlace
from asyncrl.weights.publication_merge import merge

DENSE = Architecture(
    hidden_size=8,
    heads=4,
    key_value_heads=2,
    head_size=4,
    intermediate_size=16,
    vocabulary=60,
    tied=False,
    biases=False,
    head_norms=True,
    with_experts=(False,) * 8,
)
MIXED = msgspec.structs.replace(DENSE, tied=True, with_experts=(True,) * 8, experts=4, expert_size=16)


@pytest.mark.parametrize("architecture", [DENSE, MIXED], ids=["dense", "experts"])
@pytest.mark.parametrize(
    "layout",
    [
        ParallelLayout(data=2),
        ParallelLayout(data=4),
        ParallelLayout(context=2, data=2),
        ParallelLayout(tensor=2, data=2),
        ParallelLayout(pipeline=2, data=2),
        ParallelLayout(data=4, expert=2),
        ParallelLayout(tensor=2, data=2, expert=2, expert_tensor=1),
    ],
    ids=str,
)
def test_replicas_publish_equal_parts_up_to_a_layer(architecture, layout):
    published, units = Counter(), Counter()
    for rank in range(layout.ranks):
        place = RankPlace(rank=rank, layout=layout)
        for held, tensor in ((held, held.rectangle.name) for held in held_weights(architecture, place) if held.published):
            group = (place.pipeline_rank, place.tensor_rank)
            published[group, place.replica] += math.prod(held.rectangle.extent)
            units[group, tensor.split(".")[2] if ".layers." in tensor else tensor] += math.prod(held.rectangle.extent)
    for stage in range(layout.pipeline):
        for tensor_rank in range(layout.tensor):
            group = (stage, tensor_rank)
            shares = [published[group, replica] for replica in range(layout.data * layout.context)]
            assert min(shares) > 0
            assert max(shares) - min(shares) <= max(size for (of, _), size in units.items() if of == group)


def test_a_layer_is_published_by_one_of_its_replicas():
    layers = [
        {
            held.rectangle.name.split(".")[2]
            for held in held_weights(DENSE, RankPlace(rank=rank, layout=ParallelLayout(data=2)))
            if held.published and ".layers." in held.rectangle.name
        }
        for rank in (0, 1)
    ]
    assert not layers[0] & layers[1]
    assert len(layers[0] | layers[1]) == 8


def test_a_rank_that_is_alone_publishes_all_that_it_holds():
    assert all(held.published for held in held_weights(DENSE, RankPlace(rank=0)))


def test_what_two_replicas_write_together_has_the_fingerprint_of_what_one_rank_writes(tmp_path):
    """Of the weights after a training step, which the two save, and one loads."""
    folder, saved, batch = make_model(tmp_path / "model"), tmp_path / "saved", make_batch()
    both = run_ranks(rank_side.written, make_recipe(folder, data=2), folder, tmp_path, batch, saved, data=2)
    alone, before = (run_ranks(rank_side.written, make_recipe(of), of, tmp_path)[0] for of in (saved, folder))
    assert all(part.shards for part in both)
    together = merge(both)
    assert together.fingerprint == alone.fingerprint != before.fingerprint
    assert by_name(together) == by_name(alone)


def by_name(publication):
    return {shard.name: number for shard, number in zip(publication.shards, publication.fingerprints, strict=True)}
