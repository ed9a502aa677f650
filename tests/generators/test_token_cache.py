import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.generators.token_cache import TokenCache


@given(lengths=st.lists(st.integers(0, 1_200), max_size=40))
def test_what_was_kept_last_is_remembered_as_far_as_it_fits(lengths: list[int]) -> None:
    limit = 4_000
    remembered = TokenCache(limit)
    for number, length in enumerate(lengths):
        remembered.keep(b"%d" % number, [number] * length)
    fitting = [number for number, length in enumerate(lengths) if 4 * length <= limit - 310]
    kept = [number for number in range(len(lengths)) if remembered.get(b"%d" % number) is not None]
    assert kept == fitting[len(fitting) - len(kept) :]
    assert bool(kept) == bool(fitting)
    assert sum(4 * lengths[number] for number in kept) <= limit
    assert all(remembered.get(b"%d" % number) == [number] * lengths[number] for number in kept)


def test_what_is_asked_for_stays() -> None:
    remembered = TokenCache(2_000)
    remembered.keep(b"asked for", [1, 2])
    for number in range(20):
        remembered.keep(b"%d" % number, [number])
        assert remembered.get(b"asked for") == [1, 2]
    assert remembered.get(b"0") is None


def test_the_bound_holds_in_memory() -> None:
    limit = 2**20
    remembered = TokenCache(limit)
    tracemalloc.start()
    for number in range(60):
        remembered.keep(b"%d" % number + bytes(2**16), list(range(1000, 26_000)))
    for number in range(25_000):
        remembered.keep(b"short %d" % number, [1000, number])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1.5 * limit
