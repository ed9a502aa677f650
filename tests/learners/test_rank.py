import pytest

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.rank import FileMeeting, RankSpec


@pytest.mark.parametrize(
    ("rank", "layout", "told"),
    [
        (4, ParallelLayout(tensor=2, data=2), "rank 4 is outside 0..3"),
        (0, ParallelLayout(data=3, expert=2), "does not divide a stage's 3 ranks: tensor 1, pipeline 1, data 3, expert 2"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(rank, layout, told):
    with pytest.raises(ValueError, match=told):
        RankSpec(rank=rank, meeting=FileMeeting(""), layout=layout)


def test_ranks_stand_in_megatrons_order():
    layout = ParallelLayout(tensor=2, context=2, data=2, pipeline=2)
    specs = [RankSpec(rank=rank, meeting=FileMeeting(""), layout=layout) for rank in range(layout.ranks)]
    places = [(spec.pipeline_rank, spec.data_rank, spec.context_rank, spec.tensor_rank) for spec in specs]
    assert places == sorted(places)
    assert len(set(places)) == 16
