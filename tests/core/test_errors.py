"""Errors that travel between processes arrive as they are."""

import asyncio
import pickle
from pathlib import Path

import pytest

from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.journal.journal import JournalInUse
from asyncrl.buffers.journal.journal_files import JournalDamaged, JournalGone
from asyncrl.buffers.payload_store import PayloadGone, PayloadLost
from asyncrl.buffers.tasks.curriculum import CurriculumBroken
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, FailureKind, RecipeError, ScoringFailed, first_error
from asyncrl.rpc.wire import Failure

ERRORS = [
    ComponentFailed("it died"),
    RecipeError("learner.lr", "it is 0", "raise it"),
    DeadlineExceeded("the learner", "a batch", 1.5, "wait longer"),
    ScoringFailed(FailureKind.DATA, "it cannot be scored"),
    CurriculumBroken("module:Class", "it raised", "correct it"),
    DiskFull(Path("/disk"), 10, 5),
    JournalInUse(Path("/journal"), "17", 2.0),
    JournalDamaged(Path("/journal/1.log"), 12, "torn", "cut it"),
    JournalGone(Path("/journal"), "there is a checkpoint"),
    PayloadLost(Path("/segment"), 3, "it is gone"),
    PayloadGone(Path("/shard"), 2, 100),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickle_and_the_wire(error):
    error.add_note("a note, which stays at home")
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))
    assert vars(arrived) == {name: value for name, value in vars(error).items() if name != "__notes__"}
    told = Failure.of(error).error()
    assert str(told) == str(error)
    assert type(told) in (type(error), ComponentFailed)


def test_the_first_error_of_a_group_comes_alone_with_its_own_cause_or_with_the_others():
    lost = OSError("lost")
    first = ComponentFailed("it died")
    first.__cause__ = lost
    with pytest.raises(ComponentFailed) as raised, first_error():
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [first])])
    assert raised.value is first
    assert first.__cause__ is lost

    async def at_work() -> None:
        try:
            raise OSError("lost")
        except OSError:
            raise ComponentFailed("it died")  # noqa: B904 - as code that is not ours may

    async def grouped() -> None:
        with first_error():
            async with asyncio.TaskGroup() as group:
                group.create_task(at_work())

    with pytest.raises(ComponentFailed) as raised:
        asyncio.run(grouped())
    assert isinstance(raised.value.__cause__, OSError)
    several = ExceptionGroup("several", [ComponentFailed("it died, too"), OSError("another")])
    with pytest.raises(ComponentFailed) as raised, first_error():
        raise several
    assert raised.value.__cause__ is several
