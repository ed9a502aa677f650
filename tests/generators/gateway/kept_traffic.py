"""Plays kept traffic again through the gateway's protocols and matching, with the tokens that were sampled the first time."""

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncrl.core.trajectory import Sampling, Trajectory, Turn, VersionSpan
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion
from asyncrl.generators.gateway.episode import GatewayEpisode, GatewayLimits, GatewayTurn
from asyncrl.generators.gateway.matching import Step
from asyncrl.generators.gateway.problems import Problem
from asyncrl.generators.gateway.protocol import Protocol
from asyncrl.generators.gateway.protocols import Answer, Protocols
from asyncrl.generators.gateway.traffic import Exchange, Traffic


class OtherPrompt(Exception):
    """A request has another prompt than any turn that was kept."""


class KeptTurns:
    """Samples what was sampled the first time after the same tokens. A turn is whole when it is let go."""

    def __init__(self, trajectories: Sequence[Trajectory], traffic: Traffic) -> None:
        self._left = [(each, turn) for each in trajectories for turn in each.turns]
        self._kept = {number for step, number in traffic.steps if step is Step.FINISHED} - traffic.taken_back
        self.sampling: dict[int, asyncio.Event] = {}
        self.other: OtherPrompt | None = None

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        from asyncrl.generators.gateway.serving import CURRENT

        turn = CURRENT.get()
        assert isinstance(turn, GatewayTurn)
        assert turn.number is not None
        completion = self._taken(token_ids) if turn.number in self._kept else _unkept(stop_token_ids)
        self.sampling[turn.number] = let_go = asyncio.Event()
        await let_go.wait()
        return completion

    def _taken(self, prompt: Sequence[int]) -> Completion:
        for place, (trajectory, turn) in enumerate(self._left):
            if trajectory.token_ids[: turn.start].tolist() == list(prompt):
                del self._left[place]
                return _completion(trajectory, turn)
        self.other = OtherPrompt(list(prompt))
        raise self.other


def _completion(trajectory: Trajectory, turn: Turn) -> Completion:
    cut = (
        (max(each.start, turn.start) - turn.start, min(each.end, turn.end) - turn.start, each)
        for each in trajectory.version_spans
    )
    spans = tuple(VersionSpan(start, end, each.version) for start, end, each in cut if start < end)
    part = slice(turn.start, turn.end)
    return Completion(trajectory.token_ids[part], trajectory.logprobs[part], spans, finished_by_stop=True)


def _unkept(stop_token_ids: tuple[int, ...]) -> Completion:
    """A turn that was taken back: of its tokens nothing is known, and nothing comes of them."""
    ids = np.array(stop_token_ids[:1], np.int32)
    return Completion(ids, np.zeros(1, np.float32), (VersionSpan(0, 1, 0),), finished_by_stop=True)


async def played_again(
    protocols: Protocols, chat: ChatFormat, limits: GatewayLimits, traffic: Traffic, kept: Sequence[Trajectory]
) -> tuple[Trajectory, ...]:
    """Take the same steps with the requests of kept traffic; returns the trajectories that they make."""
    turns = KeptTurns(kept, traffic)
    episode = GatewayEpisode(limits, turns, chat)
    asked = {each.turn: each for each in traffic.exchanges if each.turn is not None}
    answering: dict[int, asyncio.Task[Answer]] = {}
    for step, number in traffic.steps:
        match step:
            case Step.BEGAN:
                answering[number] = asyncio.create_task(_answer(protocols, episode, asked[number]))
                await _until_begun(episode, answering[number], turns, number)
            case Step.FINISHED:
                if number not in turns.sampling:
                    raise OtherPrompt(number) from answering[number].exception()
                turns.sampling[number].set()
                await answering[number]
            case Step.GIVEN_UP:
                answering[number].cancel()
                await asyncio.wait({answering[number]})
            case Step.TAKEN_BACK:
                turn = answering[number].result().turn
                assert turn is not None
                assert episode.streams.take_back(turn)
    assert episode.streams.steps == list(traffic.steps)
    return episode.trajectories()


async def _answer(protocols: Protocols, episode: GatewayEpisode, exchange: Exchange) -> Answer:
    protocol = Protocol(exchange.path.removeprefix("POST v1/"))
    body = msgspec.json.decode(exchange.asked)
    return await protocols.answer(GatewayTurn(episode, protocol, str(body.get("model") or "")), body)


async def _until_begun(episode: GatewayEpisode, answering: "asyncio.Task[Answer]", turns: KeptTurns, number: int) -> None:
    """Wait until a request has its place and is sampled, or was refused."""
    while number not in turns.sampling and not answering.done():  # noqa: ASYNC110 - nothing tells when it is sampled
        await asyncio.sleep(0.001)
    if turns.other is not None:  # which the protocols have told as a failure of the gateway
        raise turns.other
    assert (Step.BEGAN, number) in episode.streams.steps
    if answering.done() and not isinstance(answering.exception(), Problem):
        answering.result()


def as_trained(trajectories: Sequence[Trajectory]) -> list[bytes]:
    """All of each trajectory that training sees, as bytes: what is left out are the seconds that it took."""
    return [
        msgspec.msgpack.encode(
            (
                *(array.tobytes() for array in (each.token_ids, each.logprobs, each.loss_mask)),
                each.version_spans,
                [(turn.start, turn.end) for turn in each.turns],
                *(each.part, each.role, each.parent, each.shared, each.why),
            )
        )
        for each in trajectories
    ]
