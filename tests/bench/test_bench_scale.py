"""What limits a run follows from the costs of its parts, whichever they are on this machine."""

import msgspec
import pytest

from asyncrl.bench.scale import Assumptions, Costs, publication, simulate

CHEAP = Costs(buffer_us=0.1, buffer_journal_us=0.1, intake_us=0.1, trajectory_bytes=1000, store_bytes_s=1e15)
SMALL = Assumptions(slots=32, shortest_s=10.0, longest_s=60.0, weights_bytes=10**6, swap_s=0.1)


def test_nothing_limits_a_run_whose_parts_cost_nothing_but_its_engines():
    scale = simulate(8, CHEAP, SMALL)
    assert scale.trajectories_per_s == pytest.approx(scale.wanted_per_s, rel=0.15)
    assert scale.limit == "the engines"


@pytest.mark.parametrize(
    ("cost", "limit"),
    [
        ({"buffer_journal_us": 1e6}, "the buffer's process"),
        ({"store_bytes_s": 1e4}, "publications"),
        ({"trajectory_bytes": 10**11}, "one node's line"),
        ({"intake_us": 1e7}, "the learner's intake"),
    ],
)
def test_the_part_that_costs_most_is_named(cost, limit):
    cheap = simulate(8, CHEAP, SMALL)
    dear = simulate(8, msgspec.structs.replace(CHEAP, **cost), SMALL)
    assert dear.limit.startswith(limit)
    if limit in ("the buffer's process", "publications"):
        assert dear.trajectories_per_s < 0.8 * cheap.trajectories_per_s, "the simulation feels it"


def test_nodes_that_hand_pieces_on_make_a_publication_to_many_take_little_longer():
    one, two, many = (publication(engines, CHEAP, Assumptions()) for engines in (8, 16, 4096))
    line = Assumptions().weights_bytes / Assumptions().line_bytes_s
    assert one[0] == pytest.approx(line + 1.0, rel=0.01)
    assert two[0] == pytest.approx(2 * line + 1.0, rel=0.01), "two nodes share the learner's line"
    assert many[0] == pytest.approx(two[0], rel=0.05)
    assert many[1] == 10
