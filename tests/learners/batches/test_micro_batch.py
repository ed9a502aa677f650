import msgspec
import numpy as np
import pytest
import torch
from learner_samples import make_batch, needed, row_of

from asyncrl.core.trajectory import Sampling as Sampled
from asyncrl.learners.batches.micro_batch import check_sampling, pack, trajectory_of
from asyncrl.learners.batches.teacher_log_probabilities import with_teachers

TEMPERATURE = 0.8


def packed(multiple=1, take=12, **changes):
    batch, episodes = make_batch()
    records = list(batch.rows[:take])
    own = [episodes[record.name[:2]] for record in records]
    if changes:
        own[0] = msgspec.structs.replace(own[0], **changes)
    for episode in own:
        check_sampling(episode, TEMPERATURE, uses_behaviour=True)
    payload = [trajectory_of(record, episode) for record, episode in zip(records, own, strict=True)]
    # One for the whole row, or one a turn, in turn.
    advantages = [[float(number)] if number % 2 else [float(number), number + 0.5] for number in range(take)]
    shares = [1.0 + number for number in range(take)]
    return (
        records,
        payload,
        pack(records, payload, advantages, shares, batch=batch, multiple=multiple, families={}),
    )


def test_every_sampled_token_is_predicted_from_the_token_before_it():
    records, rows, batch = packed()
    expected = []
    start = 0
    for number, row in enumerate(rows):
        versions = row.versions()
        expected += [
            (
                *(start + place - 1, row.token_ids[place], row.logprobs[place], 5 - versions[place], number, turn, 1 + number),
                number + turn / 2 if number % 2 == 0 else number,
            )
            for turn, (begin, end) in enumerate((one.start, one.end) for one in row.turns)
            for place in range(begin, end)
        ]
        start += needed(row)
    row, turn = batch.rows.index, batch.turns.index
    columns = (batch.positions, batch.targets, batch.logp_behaviour, batch.staleness, row, turn - 2 * row)
    columns += (batch.share, batch.advantages)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [tuple(map(float, token)) for token in expected]
    assert torch.equal(batch.mask, batch.staleness <= 1)
    assert batch.mask.sum() == sum(record.loss_tokens for record in records)
    assert batch.lengths == tuple(map(needed, rows))
    assert batch.token_ids.tolist() == [token for row in rows for token in row.token_ids[: needed(row)].tolist()]
    assert (batch.rows.count, batch.turns.count, batch.max_staleness, batch.largest_staleness) == (12, 24, 1, 1)
    assert not batch.singled_out.any()


def test_each_token_comes_with_the_teachers_log_probability_and_rows_without_are_refused():
    records, rows, batch = packed(take=3)
    assert batch.logp_teacher is None
    taught = [msgspec.structs.replace(row, teacher_logprobs=row.logprobs[row.loss_mask] - 1) for row in rows]
    batch = with_teachers(batch, records, taught)
    assert torch.equal(batch.logp_teacher, batch.logp_behaviour - 1)
    with pytest.raises(ValueError, match=r"sample 1 .*: no teacher was asked about it"):
        with_teachers(batch, records, [taught[0], rows[1], taught[2]])


def test_padding_is_a_row_of_its_own():
    _, _, plain = packed(take=3)
    total = sum(plain.lengths)
    _, _, padded = packed(take=3, multiple=total - 1)
    assert padded.lengths == (*plain.lengths, total - 2)
    assert torch.equal(padded.token_ids[:total], plain.token_ids)
    assert torch.equal(padded.positions, plain.positions)


def test_no_rows_give_padding_alone():
    _, _, batch = packed(take=0, multiple=2)
    assert batch.lengths == (2,)
    assert len(batch.positions) == len(batch.targets) == len(batch.mask) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample_index": 9}, "got the payload of sample 9"),
        ({"trajectories": ()}, "the payload has 0 trajectories"),
        ({"sampling": Sampled(temperature=1.0, top_p=1.0, top_k=0)}, "temperature 1, top-p 1, top-k 0"),
        ({"sampling": Sampled(temperature=0.8, top_p=0.9, top_k=0)}, "top-p 0.9"),
        ({"sampling": Sampled(temperature=0.8, min_p=0.2)}, "min-p 0.2"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        packed(**changes)


def test_a_payload_of_other_lengths_versions_or_numbers_is_refused():
    batch, episodes = make_batch()
    record = batch.rows[0]
    row = row_of(episodes, record)

    def attempt(record=record, row=row, batch=batch, advantages=(0.0,)):
        pack([record], [row], [advantages], [1.0], batch=batch, multiple=1, families={})

    attempt()
    with pytest.raises(ValueError, match="its record says 99"):
        attempt(record=msgspec.structs.replace(record, length=99))
    with pytest.raises(ValueError, match="denominator would be wrong"):
        attempt(record=msgspec.structs.replace(record, loss_tokens=record.loss_tokens + 1))
    with pytest.raises(ValueError, match="newer than version 4"):
        attempt(batch=msgspec.structs.replace(batch, version=4))
    with pytest.raises(ValueError, match="not finite"):
        attempt(row=msgspec.structs.replace(row, logprobs=np.full_like(row.logprobs, np.nan)))
    with pytest.raises(ValueError, match="not finite"):
        attempt(row=msgspec.structs.replace(row, logprobs=np.where(row.loss_mask, -np.inf, 0).astype(np.float32)))
    with pytest.raises(ValueError, match="3 advantages for its 2 turns"):
        attempt(advantages=(0.0, 1.0, 2.0))
    attempt(record=msgspec.structs.replace(record, turn_rewards=()))
    with pytest.raises(ValueError, match="its record says"):
        attempt(record=msgspec.structs.replace(record, turn_rewards=(0.0, 1.0)))
