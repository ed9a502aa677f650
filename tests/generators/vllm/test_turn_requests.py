"""Requests for turns reach vLLM's engine process as if its front end had sent them, and answers are read as vLLM reads them."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, EngineCoreRequestType, FinishReason
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists

from asyncrl.generators.vllm.turn_batches import ADD_TURNS, TurnSettings, add_turns
from asyncrl.generators.vllm.turn_requests import SampledTurn, TurnRequests, TurnUnanswered

PARAMS = SamplingParams(
    max_tokens=99, logprobs=0, flat_logprobs=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY, stop_token_ids=[7]
)
PLAIN = TurnSettings(PARAMS, None, "0")
PARTS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 300), max_size=5)), min_size=1, max_size=6)
"""Parts of one request's output: the version that sampled it, and the tokens."""


def output(name: str, tokens: Sequence[int], finish: FinishReason | None = None) -> EngineCoreOutput:
    shape = len(tokens), 1
    ids = np.array(tokens, np.int32).reshape(shape)
    found = LogprobsLists(ids, -ids.astype(np.float32) / 7, np.ones(shape[0], np.int32)) if tokens else None
    return EngineCoreOutput(name, list(tokens), found, finish_reason=finish)


class Core:
    """An engine's processes as their front end sees them: keep what is sent, and run :func:`add_turns` as a process would."""

    client_index = 3
    core_engines = (b"rank 0", b"rank 1")

    def __init__(self) -> None:
        self.utility_results: dict[int, asyncio.Future[Any]] = {}
        self.messages: list[list[EngineCoreRequest]] = []
        self.receivers: list[bytes] = []
        self.broken: list[str] = []
        self.aborted: list[tuple[str, bytes]] = []
        self.resources = SimpleNamespace(engine_dead=False)

    def _send_input(self, kind: EngineCoreRequestType, call: Any, process: bytes) -> None:
        if self.resources.engine_dead:
            raise EngineDeadError
        if kind is EngineCoreRequestType.ABORT:
            self.aborted += [(name, process) for name in call]
            return
        self.receivers.append(process)
        if kind is EngineCoreRequestType.ADD:
            self.messages.append([call])
            return
        client, _, method, arguments = call
        assert (client, method) == (self.client_index, ADD_TURNS)
        self.messages.append([])
        assert not add_turns(self, *arguments).done()  # so vLLM sends no answer

    def preprocess_add_request(self, request: EngineCoreRequest) -> tuple[EngineCoreRequest, int]:
        if not request.prompt_token_ids:
            raise ValueError("no tokens")
        return request, request.current_wave

    def add_request(self, request: EngineCoreRequest, wave: int) -> None:
        assert wave < 0, "a rank whose peers sleep must wake them"
        self.messages[-1].append(request)

    def _handle_request_preproc_error(self, request: EngineCoreRequest) -> None:
        self.broken.append(request.request_id)


class FrontEnd:
    """The requests to an engine beside a real reader of vLLM's; made within an event loop."""

    def __init__(self) -> None:
        self.core, self.reader = Core(), OutputProcessor(None, log_stats=False)
        llm = SimpleNamespace(engine_core=self.core, output_processor=self.reader, _run_output_handler=lambda: None)
        self.requests = TurnRequests(llm)

    async def ask(self, number: int, settings: TurnSettings = PLAIN) -> "list[asyncio.Task[SampledTurn]]":
        """Ask for several turns in one pass of the loop, and wait until they are sent."""
        tasks = [asyncio.create_task(self.requests.ask([1, 2 + each], settings)) for each in range(number)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return tasks

    def read(self, outputs: Sequence[EngineCoreOutput], label: str = "0") -> list[Any]:
        return list(self.reader.process_outputs(outputs, 0.0, None, weight_version=label).request_outputs)


@settings(max_examples=100, deadline=None)
@given(PARTS, st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
def test_a_turn_is_read_as_vllm_reads_it(parts, finish) -> None:
    async def read() -> tuple[SampledTurn, Any]:
        front_end = FrontEnd()
        (task,) = await front_end.ask(1)
        (request,) = front_end.core.messages[0]
        own = EngineCoreRequest("vllm's", [1], None, PARAMS, None, 0.0, None, None, None, external_req_id="vllm's")
        front_end.reader.add_request(own, None)
        parts[-1][1].append(7)
        told = []
        for place, (version, tokens) in enumerate(parts):
            last = finish if place == len(parts) - 1 else None
            told += front_end.read([output(name, tokens, last) for name in (request.request_id, "vllm's")], str(version))
        return await task, told[-1].outputs[0]

    turn, expected = asyncio.run(read())
    assert turn.token_ids == list(expected.token_ids)
    assert np.concatenate(turn.logprobs).tolist() == list(expected.logprobs.logprobs)
    assert turn.labels == [(span.version, span.start) for span in expected.weight_versions]
    assert turn.stopped == (expected.finish_reason == "stop")


async def test_requests_of_one_pass_are_sent_together_as_vllm_would_send_them() -> None:
    front_end = FrontEnd()
    other = TurnSettings(PARAMS, LoRARequest("slot 1", 2, "published"), "5")
    tasks = [*await front_end.ask(2), *await front_end.ask(1, other)]
    assert [len(message) for message in front_end.core.messages] == [2, 1]
    first, second, third = (request for message in front_end.core.messages for request in message)
    assert [request.prompt_token_ids for request in (first, second, third)] == [[1, 2], [1, 3], [1, 2]]
    assert first.sampling_params == PARAMS
    assert first.sampling_params is second.sampling_params, "what they share is sent once"
    assert [request.cache_salt for request in (first, third)] == ["0", "5"]
    assert (first.lora_request, third.lora_request.lora_int_id) == (None, 2)
    assert {request.client_index for request in (first, second, third)} == {Core.client_index}
    front_end.read([output(request.request_id, [9], FinishReason.STOP) for request in (third, first, second)])
    assert [(await task).token_ids for task in tasks] == [[9], [9], [9]]


async def test_each_rank_gets_its_own_requests_in_one_message() -> None:
    front_end = FrontEnd()
    tasks = [asyncio.create_task(front_end.requests.ask([number], PLAIN, rank=number % 2)) for number in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sent = [[request.prompt_token_ids for request in message] for message in front_end.core.messages]
    assert dict(zip(front_end.core.receivers, sent, strict=True)) == {b"rank 0": [[0], [2]], b"rank 1": [[1], [3]]}
    for task in tasks:
        task.cancel()


async def test_a_long_request_is_sent_as_vllm_s_front_end_sends_it() -> None:
    front_end = FrontEnd()
    tasks = [asyncio.create_task(front_end.requests.ask(range(length), PLAIN)) for length in (3, 5000, 4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (long,), short = front_end.core.messages
    assert [len(request.prompt_token_ids) for request in (long, *short)] == [5000, 3, 4]
    for request in short:
        request.request_id, request.prompt_token_ids, request.arrival_time = (
            long.request_id,
            long.prompt_token_ids,
            long.arrival_time,
        )
        assert request == long
    for task in tasks:
        task.cancel()


async def test_a_cancelled_request_is_aborted_and_its_answer_is_ignored() -> None:
    front_end = FrontEnd()
    cancelled, other = await front_end.ask(2)
    at_once = asyncio.create_task(front_end.requests.ask([1], PLAIN, rank=1))
    await asyncio.sleep(0)  # it has asked, and nothing is sent before this pass is over
    for task in (at_once, cancelled):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    sent = [request.request_id for message in front_end.core.messages for request in message]
    assert front_end.core.aborted == [(sent[2], b"rank 1"), (sent[0], b"rank 0")]
    front_end.read([output(name, [9], FinishReason.STOP) for name in sent])
    assert (await other).token_ids == [9]


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
async def test_a_request_that_vllm_gives_up_has_no_answer(reason: FinishReason) -> None:
    front_end = FrontEnd()
    given_up, other = await front_end.ask(2)
    names = [request.request_id for request in front_end.core.messages[0]]
    front_end.read([output(names[0], [9], reason), output(names[1], [9], FinishReason.STOP)])
    with pytest.raises(TurnUnanswered, match=str(reason)):
        await given_up
    assert (await other).token_ids == [9]


async def test_a_request_that_the_engine_cannot_take_leaves_the_others() -> None:
    front_end = FrontEnd()
    tasks = [asyncio.create_task(front_end.requests.ask(tokens, PLAIN)) for tokens in ([], [1])]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [request.prompt_token_ids for request in front_end.core.messages[0]] == [[1]]
    assert len(front_end.core.broken) == 1
    for task in tasks:
        task.cancel()


async def test_all_requests_end_with_the_engine() -> None:
    front_end = FrontEnd()
    waiting = await front_end.ask(2)
    front_end.reader.propagate_error(EngineDeadError())
    front_end.core.resources.engine_dead = True
    for task in (*waiting, *await front_end.ask(1)):
        with pytest.raises(EngineDeadError):
            await task


async def test_all_requests_end_if_the_engine_refuses_a_message() -> None:
    front_end = FrontEnd()
    waiting = await front_end.ask(2)
    front_end.core.utility_results[0].set_exception(Exception("no such method"))
    for task in waiting:
        with pytest.raises(TurnUnanswered, match="no such method"):
            await task
