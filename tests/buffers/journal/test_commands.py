"""Commands: what is decoded is what was encoded, and a replay is the same buffer to the byte, failures included."""

import random

import msgspec
import pytest
from crash_run import stream
from hypothesis import given
from hypothesis import strategies as st
from made_buffers import buffer_of, restored
from played_episodes import record
from test_crash import RECIPES, recipe

from asyncrl.buffers import commands
from asyncrl.buffers.commands import (
    Advance,
    Checkpointed,
    Commit,
    Expire,
    Fail,
    HandBack,
    IssueTickets,
    LeaveOut,
    Lost,
    Pace,
    Recovered,
    SetLimits,
    SetSteps,
    SetTooLong,
    Take,
    Trained,
    decode,
    encode,
    replay,
)
from asyncrl.buffers.limits import Limits
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.errors import AsyncRLError, FailureKind
from asyncrl.core.recipe.buffer import BufferConfig

FEW_FAILURES = recipe(max_staleness=3, max_failures=2)


def sample(group_id, index, version, chance):
    place = PayloadRef(0, "segment.rows", 1000 * (3 * group_id + index), 900, 7)
    reward = float(chance.randrange(3))
    return record(group_id=group_id, sample_index=index, length=20, sampled=((version, 9),), reward=reward, payload=place)


def some_command(chance, buffer, tickets):
    """One that may or may not make sense where the buffer stands."""
    version = max(0, buffer.version + chance.choice([0, 0, 0, 0, 1, -1, 2]))
    group = chance.choice(tickets).group_id if tickets and chance.random() < 0.9 else chance.randrange(200)
    worker = f"worker-{chance.randrange(3)}"
    samples = tuple(sample(group, index, buffer.version, chance) for index in range(chance.randrange(4)))
    kind = chance.choice(list(FailureKind))
    return chance.choice(
        [
            *[IssueTickets(worker, chance.randrange(1, 5), float(buffer.version))] * 3,
            *[Commit(samples, 1.5)] * 12,
            Fail(group, chance.randrange(3), kind, "it broke"),
            LeaveOut(group, "its prompt is too long"),
            SetTooLong(chance.choice([512, 1024]), {"only": [chance.randrange(97)]}),
            Lost(worker),
            HandBack(worker, "is out of reach"),
            SetLimits(Limits.of(BufferConfig(max_failures=chance.choice([2, 3]), max_attempts=chance.choice([1, 2])))),
            Expire(version),
            *[Take(version, 4)] * 3,
            *[Trained(version)] * 3,
            *[Advance(version)] * 3,
            Checkpointed(version),
            Recovered(tuple(one.payload for one in samples[:1])),
            SetSteps(200 + chance.randrange(3)),
            Pace(chance.randrange(4)),  # the largest is refused
        ]
    )


@given(seed=st.integers(0, 10**6), name=st.sampled_from([*RECIPES, "few failures"]), cut=st.integers(0, 249))
def test_a_replay_is_the_same_buffer_to_the_byte_whatever_failed(seed, name, cut):
    used = FEW_FAILURES if name == "few failures" else RECIPES[name]
    chance = random.Random(seed)
    live, tickets, records, snapshot = buffer_of(used, stream()), [], [], None
    for step in range(250):
        if step == cut:
            snapshot, records = live.snapshot(), []
        command = some_command(chance, live, tickets)
        records.append(encode(command))
        assert decode(records[-1]) == command
        try:
            answer = command.apply(live)
        except AsyncRLError:
            answer = []
        if isinstance(command, IssueTickets):
            tickets += answer
        live.drain_freed()
    replayed = restored(used, stream(), snapshot)
    replay(records, replayed)
    assert replayed.snapshot() == live.snapshot()
    assert replayed.drain_freed() == [], "what is freed was freed then"


def test_a_record_that_is_no_command_is_refused():
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode([77, 1]))


def test_a_command_of_a_finished_episode_is_small():
    one = sample(123_456, 2, 1000, random.Random(0))
    place = PayloadRef(0, "generator-12-123456-0123abcd-000123.rows", 1 << 25, 18_500, 1 << 31)
    assert len(encode(Commit((msgspec.structs.replace(one, payload=place),), 1e9))) < 200


def test_every_change_of_the_buffer_is_a_command():
    assert {command.__struct_config__.tag for command in commands.Command.__args__} == set(range(1, 17))
