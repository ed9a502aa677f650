"""Experts that engines chose, packed: what is unpacked is what was packed, also through an encoded episode."""

import msgspec
import numpy as np
import pytest
from learner_samples import make_episode

from asyncrl.core.episode import decode, encode
from asyncrl.core.episode_records import TrajectoryRecord
from asyncrl.core.routed_experts import RoutedExperts, joined


@pytest.mark.parametrize(
    ("experts", "layers", "per_token", "token_bytes"),
    [(2, 3, 1, 1), (4, 2, 2, 1), (16, 3, 3, 5), (128, 48, 8, 384), (256, 58, 8, 464), (384, 60, 8, 960)],
)
def test_what_is_unpacked_is_what_was_packed(experts, layers, per_token, token_bytes):
    chosen = np.random.default_rng(experts).integers(0, experts, (70, layers, per_token))
    packed = RoutedExperts.pack(chosen, experts)
    assert packed.token_bytes == token_bytes
    assert len(packed) == 70
    np.testing.assert_array_equal(packed.chosen(), chosen)
    whole = joined([RoutedExperts.pack(part, experts) for part in np.split(chosen, [1, 50])])
    np.testing.assert_array_equal(whole.packed, packed.packed)


def routed(episode, chosen, experts=4):
    (trajectory,) = episode.trajectories
    told = msgspec.structs.replace(trajectory, experts=RoutedExperts.pack(chosen, experts))
    return msgspec.structs.replace(episode, trajectories=(told,))


def test_an_episode_keeps_them_for_a_tenth_more_bytes():
    plain = make_episode(0, 0, 100, 200, (1, 2), 1.0)
    chosen = np.random.default_rng(0).integers(0, 4, (len(plain) - 1, 2, 2))
    episode = routed(plain, chosen)
    episode.check()
    encoded = encode(episode)
    assert len(encoded) < 1.2 * len(encode(plain))
    np.testing.assert_array_equal(decode(encoded).trajectories[0].experts.chosen(), chosen)


@pytest.mark.parametrize("tokens", [-2, 1])
def test_experts_of_too_few_or_too_many_tokens_are_refused(tokens):
    plain = make_episode(0, 0, 10, 20, (1, 2), 1.0)
    with pytest.raises(ValueError, match=f"the experts of {len(plain) + tokens} tokens are known"):
        routed(plain, np.zeros((len(plain) + tokens, 2, 2), int)).check()


def test_prompts_are_alike_only_if_their_tokens_went_to_the_same_experts():
    plain = make_episode(0, 0, 100, 20, (1,), 1.0)
    chosen = np.zeros((len(plain), 2, 2), int)
    other = chosen.copy()
    other[70] = 3

    def checksums(each):
        return TrajectoryRecord.of(routed(plain, each).trajectories[0], greedy=False).prompt_checksums

    same, differing = checksums(chosen), checksums(other)
    assert same == checksums(chosen.copy())
    assert same[0] == differing[0]
    assert same[1] != differing[1]
