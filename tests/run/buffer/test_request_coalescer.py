import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.errors import ComponentFailed
from asyncrl.run.buffer.request_coalescer import RequestCoalescer

STEPS = st.lists(st.sampled_from(["come", "come", "answer", "fail", "leave", "settle"]), max_size=40)


@settings(max_examples=100)
@given(steps=STEPS, calls_at_once=st.integers(1, 3), limit=st.none() | st.integers(1, 3))
def test_every_caller_gets_the_answer_to_its_own_item(steps: list[str], calls_at_once: int, limit: int | None) -> None:
    """Items come, calls are answered or fail, and callers leave, in any order."""

    async def run() -> None:
        calls: list[tuple[list[int], asyncio.Future[None]]] = []

        def pending() -> list[tuple[list[int], asyncio.Future[None]]]:
            return [call for call in calls if not call[1].done()]

        async def send(items: Sequence[int]) -> list[int]:
            assert len(pending()) < calls_at_once, "too many calls overlap"
            assert limit is None or len(items) <= limit
            answer = asyncio.get_running_loop().create_future()
            calls.append((list(items), answer))
            await answer
            return [10 * item for item in items]

        gathering = RequestCoalescer(send, calls=calls_at_once, limit=limit)
        callers: list[asyncio.Task[int]] = []
        left: set[int] = set()
        failed: set[int] = set()

        async def settle() -> None:
            for _ in range(16):
                await asyncio.sleep(0)

        for step in steps:
            if step == "come":
                callers.append(asyncio.create_task(gathering.send(len(callers))))
            elif step == "answer" and pending():
                pending()[0][1].set_result(None)
            elif step == "fail" and pending():
                items, answer = pending()[-1]
                answer.set_exception(ComponentFailed("scripted"))
                failed.update(items)
            elif step == "leave" and callers and not callers[-1].done():
                await asyncio.sleep(0)  # it has begun
                callers[-1].cancel()
                left.add(len(callers) - 1)
            else:
                await settle()
                answered = {item for items, answer in calls if answer.done() for item in items}
                assert {item for item, caller in enumerate(callers) if caller.done()} == answered | left
                assert len(pending()) == calls_at_once or answered | {i for items, _ in pending() for i in items} == {
                    *range(len(callers))
                }, "an item waits although one more call may be made"
        await settle()
        while pending():
            pending()[0][1].set_result(None)
            await settle()
        assert sorted(item for items, _ in calls for item in items) == list(range(len(callers))), "each is sent exactly once"
        for item, caller in enumerate(callers):
            if item in left:
                assert caller.cancelled()
            elif item in failed:
                with pytest.raises(ComponentFailed):
                    caller.result()
            else:
                assert caller.result() == 10 * item

    asyncio.run(run())


async def test_a_call_that_does_not_answer_each_item_fails_all_of_them() -> None:
    async def send(items: Sequence[int]) -> list[int]:
        return list(items[:-1])

    gathering = RequestCoalescer(send)
    answers = await asyncio.gather(*(gathering.send(item) for item in range(3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["2 answers came for 3 items"] * 3


async def test_items_whose_callers_have_gone_are_left_out_if_asked_for() -> None:
    first = asyncio.Event()
    sent: list[int] = []

    async def send(items: Sequence[int]) -> list[int]:
        sent.extend(items)
        await first.wait()
        return list(items)

    gathering = RequestCoalescer(send, limit=1, for_nobody=False)
    callers = [asyncio.create_task(gathering.send(item)) for item in range(4)]
    await asyncio.sleep(0)
    for gone in callers[1:3]:
        gone.cancel()
    first.set()
    assert [await callers[0], await callers[3]] == [0, 3]
    assert sent == [0, 3]
