"""SplitMix64 against its authors' own sequence, for integers and arrays."""

import numpy as np

from asyncrl.core.splitmix import STEP, WHOLE, mixed

PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
"""The first numbers of seed 1234567, as the reference implementation prints them."""


def test_the_sequence_is_the_published_one():
    assert [mixed(1234567 + n * STEP & WHOLE) for n in range(1, 6)] == PUBLISHED


def test_an_array_gets_the_same_bits():
    numbers = mixed(np.arange(1, 6, dtype=np.uint64) * STEP + 1234567)
    assert numbers.tolist() == PUBLISHED
