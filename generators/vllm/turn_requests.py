"""Asks vLLM's engine process for turns, and reads its answers, beside vLLM's own front end.

vLLM's front end makes a dozen objects for each request, most of them for what turns have no use for: text, streams, several
samples, statistics. That takes a third of its process's time. What always holds: each request gets one answer or one error;
requests that are made in one pass of the event loop are sent in one message, unless they are long; what others ask vLLM for is
left to vLLM.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from asyncrl.generators.vllm.turn_batches import ADD_TURNS, TurnRequest, TurnSettings, encode_turns, vllm_request

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine
    from vllm.v1.engine import EngineCoreOutput

_CALL = 0
"""The number of all calls of :data:`ADD_TURNS`. Only one that fails is answered."""
_LONG = 4096
"""A request with this many tokens or more is sent alone: then vLLM hashes its tokens beside the engine's steps, not between."""


class TurnUnanswered(Exception):
    """vLLM refused a request, or ended it without an answer."""


class SampledTurn(msgspec.Struct):
    """What vLLM sampled for one request, as it came.

    Attributes:
        logprobs: float32 [T], in parts.
        labels: vLLM's labels of its weights, each with the first token that was sampled with them.
        stopped: whether the last token is one at which sampling stops.
        experts: [tokens, layers, per_token], the experts that tokens went to, in parts; none unless the engine was asked.
    """

    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[np.ndarray] = msgspec.field(default_factory=list)
    labels: list[tuple[str, int]] = msgspec.field(default_factory=list)
    stopped: bool = False
    experts: list[np.ndarray] = msgspec.field(default_factory=list)

    def add(self, output: "EngineCoreOutput", label: str) -> None:
        """Add what came next."""
        if output.routed_experts is not None:
            self.experts.append(output.routed_experts)
        if not output.new_token_ids:
            return
        if not self.labels or self.labels[-1][0] != label:
            self.labels.append((label, len(self.token_ids)))
        self.token_ids += output.new_token_ids
        self.logprobs.append(output.new_logprobs.logprobs[:, 0])  # that of the sampled token comes first


class TurnRequests:
    """The requests for turns to one engine. Made within the event loop in which vLLM's front end runs, and used there."""

    def __init__(self, llm: "AsyncLLMEngine") -> None:
        self._core = llm.engine_core
        self._loop = asyncio.get_running_loop()
        self._numbers = count()
        self._turns: dict[str, tuple[SampledTurn, asyncio.Future[SampledTurn]]] = {}
        self._unsent: defaultdict[int, list[TurnRequest]] = defaultdict(list)
        others = llm.output_processor
        others.process_outputs = partial(self._read, others.process_outputs)
        others.propagate_error = partial(self._lost, others.propagate_error)
        self._refused: asyncio.Future[Any] = self._loop.create_future()
        self._refused.add_done_callback(self._on_refused)
        self._core.utility_results[_CALL] = self._refused
        llm._run_output_handler()

    async def ask(self, token_ids: Sequence[int], settings: TurnSettings, rank: int = 0, known_experts: int = 0) -> SampledTurn:
        """Have one turn sampled in ``rank`` after ``token_ids``; nobody needs the experts of the first ``known_experts``.

        Raises:
            EngineDeadError: the engine died.
            TurnUnanswered: vLLM refused the request, or ended it without an answer.
        """
        name = f"turn {next(self._numbers)}"
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent[rank].append(TurnRequest(name, list(token_ids), settings, known_experts))
        answer: asyncio.Future[SampledTurn] = self._loop.create_future()
        self._turns[name] = SampledTurn(), answer
        try:
            return await answer
        except asyncio.CancelledError:
            self._abort(name, rank)  # it has been sent: that was due before anybody could be cancelled
            raise
        finally:
            self._turns.pop(name, None)

    def _send(self) -> None:
        from vllm.v1.engine import EngineCoreRequestType

        unsent, self._unsent = self._unsent, defaultdict(list)
        core = self._core
        for rank, requests in unsent.items():
            process = core.core_engines[rank]
            try:
                for request in requests:
                    if len(request.token_ids) >= _LONG:
                        core._send_input(EngineCoreRequestType.ADD, vllm_request(request, core.client_index), process)
                if short := [request for request in requests if len(request.token_ids) < _LONG]:
                    call = (core.client_index, _CALL, ADD_TURNS, (encode_turns(short), core.client_index))
                    core._send_input(EngineCoreRequestType.UTILITY, call, process)
            except Exception as error:  # noqa: BLE001 - passed to those who wait
                self._fail([request.name for request in requests], error)

    def _abort(self, name: str, rank: int) -> None:
        from vllm.v1.engine import EngineCoreRequestType

        if not self._core.resources.engine_dead:
            self._core._send_input(EngineCoreRequestType.ABORT, [name], self._core.core_engines[rank])

    def _read(self, others: Any, outputs: "Sequence[EngineCoreOutput]", *arguments: Any, weight_version: str) -> Any:
        """Take the outputs of turns, and let vLLM process the others."""
        left = [output for output in outputs if not self._take(output, weight_version)]
        return others(left, *arguments, weight_version=weight_version)

    def _take(self, output: "EngineCoreOutput", label: str) -> bool:
        """Take an output if it is one of a turn."""
        from vllm.v1.engine import FinishReason

        waiting = self._turns.get(output.request_id)
        if waiting is None:
            return False
        turn, answer = waiting
        turn.add(output, label)
        if output.finish_reason is not None and not answer.done():
            turn.stopped = output.finish_reason is FinishReason.STOP
            if output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                answer.set_result(turn)
            else:
                answer.set_exception(TurnUnanswered(f"vLLM ended a request without an answer ({output.finish_reason})"))
        return True

    def _lost(self, others: Any, error: Exception) -> None:
        """End all requests, because the engine died."""
        self._fail(list(self._turns), error)
        others(error)

    def _on_refused(self, refused: "asyncio.Future[Any]") -> None:
        if not refused.cancelled() and (error := refused.exception()) is not None:
            self._fail(list(self._turns), TurnUnanswered(f"vLLM refused requests: {error}"))

    def _fail(self, names: Iterable[str], error: Exception) -> None:
        for _, answer in [self._turns[name] for name in names if name in self._turns]:
            if not answer.done():
                answer.set_exception(error)
