import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.learner import LearnerConfig


def test_ranks_are_the_product_of_what_divides_the_model_and_the_batch():
    layout = ParallelLayout(tensor=2, pipeline=3, data=4, context=5, expert=2, expert_tensor=2, virtual_pipeline=7)
    assert layout.ranks == 2 * 3 * 4 * 5
    assert layout.stage_ranks == 2 * 4 * 5


@given(st.fixed_dictionaries({name: st.integers(1, 4) for name in ParallelLayout.__struct_fields__}))
def test_a_recipe_says_every_dimension(sizes):
    keys = {name if name == "virtual_pipeline" else f"{name}_parallel": size for name, size in sizes.items()}
    assert msgspec.structs.asdict(LearnerConfig(**keys).layout) == sizes


def test_as_text_it_names_what_divides():
    assert str(ParallelLayout(data=2)) == "tensor 1, pipeline 1, data 2"
    layout = ParallelLayout(tensor=2, pipeline=2, expert_tensor=2, virtual_pipeline=3)
    assert str(layout) == "tensor 2, pipeline 2, data 1, expert tensor 2, virtual pipeline 3"
