import msgspec
import pytest
import torch
from learner_samples import make_batch, packed_batch, row_of

from asyncrl.learners.batches.micro_batch import pack
from asyncrl.learners.batches.single_row import single_row

BATCH, EPISODES = make_batch()


@pytest.mark.parametrize("multiple", [1, 16])
def test_a_row_taken_out_is_the_row_packed_alone(multiple: int):
    whole = packed_batch()
    assert whole.prefixes, "the batch must have shared prefixes for this to show anything"
    for number, record in enumerate(BATCH.rows):
        alone = pack([record], [row_of(EPISODES, record)], [[1.0]], [1.0], batch=BATCH, multiple=multiple, families={})
        taken = msgspec.structs.asdict(single_row(whole, number, multiple))
        for name, value in msgspec.structs.asdict(alone).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(taken[name], value), name
            elif name in ("rows", "turns"):
                assert torch.equal(taken[name].index, value.index), name
                assert taken[name].count == value.count
            else:
                assert taken[name] == value, name


def test_what_was_prepared_for_a_row_comes_with_it():
    numbers = torch.arange(len(packed_batch().targets), dtype=torch.float32)
    whole = packed_batch(logp_proximal=numbers, advantages=-numbers, logp_teacher=2 * numbers, mean_weight=0.5)
    taken = [single_row(whole, number, 1) for number in range(whole.rows.count)]
    assert torch.cat([each.logp_proximal for each in taken]).equal(numbers)
    assert torch.cat([each.advantages for each in taken]).equal(-numbers)
    assert torch.cat([each.logp_teacher for each in taken]).equal(2 * numbers)
    assert {each.mean_weight for each in taken} == {0.5}
    assert sum((each.names for each in taken), ()) == whole.names
