import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.task import Task
from asyncrl.core.ticket import Ticket
from asyncrl.generators.leases import Lease, Leases

MAX_RUNNING, GROUP_SIZE = 5, 2


@settings(max_examples=150)
@given(data=st.data())
def test_room_and_holdings_follow_what_is_played_settled_and_given_up(data: st.DataObject) -> None:
    """Work is a task that waits; the model beside it is the set of (lease, sample) that play and that are unsettled."""

    async def run() -> None:
        made_room, now, playing_s, held_back_s = 0, 0.0, 0.0, 0.0
        limit, limited = MAX_RUNNING, 0

        def room_made() -> None:
            nonlocal made_room
            made_room += 1

        leases = Leases(MAX_RUNNING, GROUP_SIZE, room_made, lambda: now)
        accepted: list[Lease] = []
        newest: dict[GroupId, Lease] = {}
        playing: set[tuple[int, int]] = set()
        unsettled: set[tuple[int, int]] = set()

        def begin(lease: Lease, index: int) -> "asyncio.Task[None]":
            return asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]

        def drop(lease: Lease) -> None:
            at = accepted.index(lease)
            playing.difference_update({each for each in playing if each[0] == at})
            if newest.get(lease.ticket.group_id) is lease:
                del newest[lease.ticket.group_id]

        for _ in range(data.draw(st.integers(0, 25))):
            live = sorted(each for each in unsettled if newest.get(accepted[each[0]].ticket.group_id) is accepted[each[0]])
            step = data.draw(st.sampled_from(["accept", "play", "settle", "give up", "limit"]))
            if step == "accept":
                group_id = GroupId(data.draw(st.integers(0, 3)))
                samples = tuple(sorted(data.draw(st.sets(st.integers(0, 7), min_size=1, max_size=4))))
                if group_id in newest:
                    drop(newest[group_id])
                leases.accept(Ticket(group_id, Task(id=TaskId("t"), prompt="p", data={}), samples, 0, PolicyVersion(0)), begin)
                lease = leases.held()[group_id]
                newest[group_id] = lease
                accepted.append(lease)
                playing |= {(len(accepted) - 1, index) for index in samples}
                unsettled |= {(len(accepted) - 1, index) for index in samples}
            elif step == "play" and live:
                at, index = data.draw(st.sampled_from(live))
                leases.played(accepted[at], index)
                playing.discard((at, index))
            elif step == "settle" and live:
                at, index = data.draw(st.sampled_from(live))
                leases.played(accepted[at], index)
                leases.settled(accepted[at], index)
                playing.discard((at, index))
                unsettled.discard((at, index))
                if not any(each[0] == at for each in unsettled):
                    del newest[accepted[at].ticket.group_id]
            elif step == "give up" and accepted:
                lease = data.draw(st.sampled_from(accepted))
                if newest.get(lease.ticket.group_id) is lease:
                    drop(lease)
                leases.give_up(lease)
            elif step == "limit":
                limit, limited = data.draw(st.integers(1, MAX_RUNNING)), limited + 1
                leases.limit(limit)
            for _ in range(3):
                await asyncio.sleep(0)  # what was cancelled ends
            seconds = data.draw(st.integers(0, 3))
            now += seconds
            playing_s += seconds * len(playing)
            held_back_s += seconds * (limit - len(playing) >= GROUP_SIZE)
            assert (leases.episode_seconds, leases.held_back_seconds) == (playing_s, held_back_s)
            assert leases.room == limit - len(playing)
            assert leases.held() == newest
            assert all(leases.holds(lease) == (newest.get(lease.ticket.group_id) is lease) for lease in accepted)
            assert made_room == sum(len(lease.ticket.samples) for lease in accepted) - len(playing) + limited
        for lease in accepted:
            for work in lease.work.values():
                assert work.cancelled() or newest.get(lease.ticket.group_id) is lease or not lease.unsettled
                work.cancel()

    asyncio.run(run())
