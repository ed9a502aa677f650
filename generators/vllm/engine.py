"""One vLLM engine: samples tokens, and replaces its weights while requests run.

It returns tokens with their log-probabilities and policy versions. vLLM itself reports which policy sampled a token, in
the process that samples. What always holds:

* a request that begins after a publication was loaded never reads keys and values that other versions computed: cached prefixes
  are looked up by the version that computed them (vLLM's ``cache_salt``). Emptying vLLM's prefix cache instead is only
  possible when no request runs;
* a request that is running when its version is replaced keeps its keys and values, and the new version samples its later
  tokens on top of them, as is usual in asynchronous RL; its version spans say where the version changed;
* after loading a publication failed, the engine returns no tokens any more.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.deadline import deadline
from asyncrl.core.errors import AsyncRLError, ComponentFailed, ProcessDied, WeightMismatch, first_error
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.step_moments import StepMoments
from asyncrl.core.measures.time_split import GeneratorTime
from asyncrl.core.process.environment_variables import added_to_environment
from asyncrl.core.process.long_import import long_import
from asyncrl.core.publication import LOAD, PREPARE, Publication
from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.text import describe_error
from asyncrl.core.trajectory import Sampling, VersionSpan
from asyncrl.generators.completion import Completion, EngineUse, Sampler, ScoredRow
from asyncrl.generators.concurrency import EngineLoad
from asyncrl.generators.loop_share import LoopShare
from asyncrl.generators.vllm.cpu.engine_process import ENGINE_VARIABLES, EngineProcessServer
from asyncrl.generators.vllm.engine_arguments import EngineSettings, engine_arguments
from asyncrl.generators.vllm.engine_folder import EngineFolder
from asyncrl.generators.vllm.engine_load import REPORT_LOAD
from asyncrl.generators.vllm.engine_node import variables_towards_other_nodes
from asyncrl.generators.vllm.engine_ranks import EngineRanks
from asyncrl.generators.vllm.engine_routing import EngineRouting
from asyncrl.generators.vllm.held_outputs import HOLD_OUTPUTS
from asyncrl.generators.vllm.request_settings import adapter_request, sampling_params, scoring_params
from asyncrl.generators.vllm.text_stops import STOP_AT_TEXTS
from asyncrl.generators.vllm.turn_batches import TurnSettings
from asyncrl.generators.vllm.turn_requests import SampledTurn, TurnRequests, TurnUnanswered
from asyncrl.generators.vllm.version_slots import VersionSlots, version_in

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput

T = TypeVar("T")

OUTPUTS_AT_ONCE = "32"
"""Ended requests that vLLM's front end reads before it lets the event loop go on; its own default, 128, takes 10 ms."""

_WARM_UP_REQUESTS = 8
_WARM_UP_TOKENS = 16


class VllmEngine:
    """A vLLM engine and its processes; :meth:`start` creates them, and :meth:`close` ends them."""

    def __init__(
        self, llm: "AsyncLLMEngine", name: str, answer_s: float, adapters: AdapterSettings | None, folder: EngineFolder | None
    ) -> None:
        self._llm, self._adapters, self._folder = llm, adapters, folder
        self._slots = VersionSlots(1 if adapters is None else adapters.versions)
        self._loading = asyncio.Lock()
        self._failure: str | None = None
        self._row_numbers = count()
        self._ranks = EngineRanks(llm, name, answer_s)
        self._turns = TurnRequests(llm)
        self._params = lru_cache(1024)(partial(sampling_params, llm.input_processor))
        self._routing = EngineRouting.of(llm)
        self._share = LoopShare()
        self._load = EngineLoad(0, 0, 0.0)
        self._cpu_seconds_when_ready = 0.0
        self._reset_counters()

    def _reset_counters(self) -> None:
        self._tokens_by_version: Counter[PolicyVersion] = Counter()
        self._paused_seconds = self._last_pause_seconds = 0.0

    @classmethod
    async def start(
        cls, settings: EngineSettings, *, name: str, start_s: float, answer_s: float, server: EngineProcessServer | None = None
    ) -> "VllmEngine":
        """Start an engine and warm it up.

        Args:
            name: name of the engine's owner, for errors.
            start_s: deadline of the start, in seconds.
            answer_s: deadline of each answer of vLLM's processes, in seconds, such as that new weights are in use.
            server: where vLLM's process is forked from; without one it is started afresh.

        Raises:
            ComponentFailed: vLLM did not start it.
            DeadlineExceeded: after ``start_s``.
        """
        os.environ.setdefault("VLLM_V1_OUTPUT_PROC_CHUNK_SIZE", OUTPUTS_AT_ONCE)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"  # a fork would lack the plug-in, and copy our threads
        remedy = "see its log for what it was doing; raise deadlines.start if the model is large"
        async with deadline(start_s, waiter=name, owner="its vLLM engine to start", remedy=remedy):
            # Before anything of ours is on the stack: modules keep errors of their imports, with whatever the stack holds.
            await asyncio.to_thread(_import_vllm)
            folder = EngineFolder() if server is None else server.folder
            llm = await asyncio.to_thread(_build, settings, server, folder, name)
            engine = cls(llm, name, answer_s, settings.adapters, folder if server is None else None)
            if settings.published:
                await engine._await_publications(name)
            await engine._warm_up(settings.max_context)
        return engine

    async def _await_publications(self, name: str) -> None:
        """Have vLLM's workers get ready for publications."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        settings = {"engine": name, "ranks": self._ranks.count, "adapters": msgspec.to_builtins(self._adapters)}
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(settings))

    async def _warm_up(self, max_context: int) -> None:
        """Send the first requests. They take seconds to compile kernels, so they must not count in any measurement."""
        await self._ranks.ask(HOLD_OUTPUTS)
        await self._ranks.ask(STOP_AT_TEXTS)
        length = min(_WARM_UP_TOKENS, max_context // 2)
        with first_error():
            async with asyncio.TaskGroup() as group:
                for number in range(_WARM_UP_REQUESTS):
                    group.create_task(
                        self.generate(
                            range(1, 1 + length),
                            max_tokens=length,
                            sampling=Sampling(float(number % 2)),
                            stop_token_ids=(0,),
                        )
                    )
        self._reset_counters()
        self._cpu_seconds_when_ready = (await self.report_load()).cpu_seconds

    @property
    def version(self) -> PolicyVersion:
        """The newest policy version that the engine has, with which new episodes begin."""
        return self._slots.version(self._slots.newest)

    @property
    def llm(self) -> "AsyncLLMEngine":
        """vLLM's own engine, to compare with."""
        return self._llm

    @contextmanager
    def episode(self) -> Iterator[Sampler]:
        """Return the context of one episode; see :meth:`asyncrl.generators.completion.Samplers.episode`."""
        slot = self._slots.enter()
        try:
            with self._ranks.used() as rank:
                yield _EpisodeSampler(self, slot, rank)
        finally:
            self._slots.leave(slot)

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample one turn after ``token_ids`` with the newest version; see :class:`asyncrl.generators.completion.Sampler`."""
        params = self._params(max_tokens, sampling, stop_token_ids)
        with self._ranks.used() as rank:
            return await self.generate_in(self._slots.newest, rank, token_ids, params, known_experts)

    async def generate_in(
        self, slot: int, rank: int, token_ids: Sequence[int], params: "SamplingParams", known_experts: int
    ) -> Completion:
        """Sample one turn after ``token_ids``; see :class:`asyncrl.generators.completion.Sampler`.

        Args:
            slot: that of the version that samples.
            rank: the data-parallel rank that samples.
            params: how it samples.
        """
        settings = TurnSettings(params, self._adapter(slot), self._salt(slot))
        turn = await self._answered(self._turns.ask(token_ids, settings, rank, known_experts))
        await self._share.turn()  # reading the turn, and all that its episode does with it, takes a while
        experts = None
        if self._routing is not None:
            experts = self._routing.told(turn.experts, len(token_ids) + len(turn.token_ids) - 1 - known_experts)
        return self._completion(turn, slot, experts)

    def params(self, max_tokens: int, sampling: Sampling, stop_token_ids: tuple[int, ...]) -> "SamplingParams":
        """How turns are sampled, as vLLM takes it."""
        return self._params(max_tokens, sampling, stop_token_ids)

    async def _answered(self, asked: Awaitable[T]) -> T:
        """Wait for the answer to one request."""
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            answer = await asked
        except (EngineDeadError, EngineGenerateError, TurnUnanswered) as error:
            raise ProcessDied(f"the vLLM engine died while it generated ({error}); see its log") from error
        if self._failure is not None:
            raise ComponentFailed(f"the vLLM engine has unknown weights, because loading a publication failed: {self._failure}")
        return answer

    def _salt(self, slot: int) -> str:
        return str(self._slots.version(slot))

    def _adapter(self, slot: int) -> "LoRARequest | None":
        return None if self._adapters is None else adapter_request(slot)

    async def score(self, rows: Sequence[Sequence[int]]) -> list[ScoredRow]:
        """Compute the log-probability of every token of ``rows`` but the first of each, with the newest version.

        Requests go on beside it. Each row is computed whole, never from what the cache has of it.

        Raises:
            ComponentFailed: the engine died, or loading a publication failed.
        """
        return list(await asyncio.gather(*(self._score(row, self._slots.newest) for row in rows)))

    async def _score(self, row: Sequence[int], slot: int) -> ScoredRow:
        result = await self._answered(self._scored(row, slot))
        (span, *_) = result.outputs[0].weight_versions
        found = [token[row[place]].logprob for place, token in enumerate(result.prompt_logprobs or ()) if token]
        return ScoredRow(version_in(span.version, slot), np.array(found, np.float32))

    async def _scored(self, row: Sequence[int], slot: int) -> "RequestOutput":
        """Have vLLM's front end ask for the log-probabilities of ``row``, of which it makes more than of a turn."""
        from vllm.inputs.engine import tokens_input

        prompt = tokens_input(list(row), cache_salt=self._salt(slot))
        # Each request needs its own number: vLLM only adds a random number to a name, and dies if two are equal.
        name = f"row {next(self._row_numbers)}"
        answers = [each async for each in self._llm.generate(prompt, scoring_params(), name, lora_request=self._adapter(slot))]
        if not answers:
            raise ProcessDied("the vLLM engine ended a request without an answer; see its log")
        return answers[-1]

    def _completion(self, turn: SampledTurn, slot: int, experts: RoutedExperts | None) -> Completion:
        ends = (*(start for _, start in turn.labels[1:]), len(turn.token_ids))
        spans = _merged(
            [VersionSpan(start, end, version_in(label, slot)) for (label, start), end in zip(turn.labels, ends, strict=True)]
        )
        for span in spans:
            self._tokens_by_version[span.version] += span.end - span.start
        return Completion(
            token_ids=np.array(turn.token_ids, np.int32),
            logprobs=np.concatenate(turn.logprobs),
            spans=spans,
            finished_by_stop=turn.stopped,
            experts=experts,
        )

    async def load_publication(self, publication: Publication) -> int:
        """Load the weights of ``publication`` while requests run; see :class:`asyncrl.generators.completion.Engine`.

        Generation pauses only while prepared weights are exchanged, or, where they cannot be prepared, while they are
        loaded. Requests keep their place and their cache; none is aborted or prefilled again.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        async with self._loading:
            version, encoded = publication.version, msgspec.msgpack.encode(publication)
            slot = self._slots.place(version)
            await self._prepare(version, encoded)
            try:
                # One call, which vLLM's process runs between two steps. More calls would have to wait for us.
                label = self._slots.label_with(slot, version)
                loaded = await self._ranks.ask(LOAD, encoded, label, slot)
            except ProcessDied:
                raise
            except BaseException as error:
                self._failure = str(error) or type(error).__name__
                if not isinstance(error, Exception):
                    raise
                with suppress(EngineDeadError):
                    await self._llm.resume_generation()  # so that waiting requests end, and see the failure
                # vLLM reports every error in its process as a plain Exception with the message.
                raise WeightMismatch(f"version {version} could not be loaded: {error}") from error
            # The salt changes only now: a request sent during the loading may have read what older weights cached.
            self._slots.hold(slot, version)
            self._last_pause_seconds = max(pause_s for pause_s, *_ in loaded)
            self._paused_seconds += self._last_pause_seconds
        acknowledged = [fingerprint for _, *fingerprints in loaded for fingerprint in fingerprints]
        if len(set(acknowledged)) != 1:
            self._failure = f"the workers of one engine loaded different weights: fingerprints {acknowledged}"
            raise WeightMismatch(self._failure)
        return int(acknowledged[0])

    async def _prepare(self, version: PolicyVersion, publication: bytes) -> None:
        """Have the weights of a publication made ready. If that fails, the engine still has the weights it had."""
        try:
            await self._ranks.ask(PREPARE, publication)
        except ProcessDied:
            raise
        except Exception as error:
            problem = f"version {version} could not be made ready, and the engine keeps version {self.version}"
            raise WeightMismatch(f"{problem}: {error}") from error

    async def report_load(self) -> EngineLoad:
        """What the engine has to do now; see :class:`asyncrl.generators.completion.Engine`."""
        self._load = EngineLoad.total([EngineLoad(*each) for each in await self._ranks.ask(REPORT_LOAD)])
        return self._load

    def use(self) -> EngineUse:
        """Return the counters since the engine was ready."""
        return EngineUse(
            tokens_generated=self._tokens_by_version.total(),
            tokens_by_version=self._tokens_by_version.copy(),
            paused_seconds=self._paused_seconds,
            last_pause_seconds=self._last_pause_seconds,
            time=GeneratorTime(
                prefill=self._load.prefill_seconds,
                decode=self._load.decode_seconds,
                engine_cpu=max(0.0, self._load.cpu_seconds - self._cpu_seconds_when_ready),
                steps=StepMoments.of(self._load.moments),
            ),
        )

    async def close(self) -> None:
        """Stop vLLM's processes. Those that have not ended after a second are killed: they have nothing to save."""
        if self._llm.output_handler is not None:
            self._llm.output_handler.cancel()
        await asyncio.to_thread(self._llm.shutdown, 1.0)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.close)


class _EpisodeSampler:
    """Samples the turns of one episode with the version in a slot, in one rank."""

    def __init__(self, engine: VllmEngine, slot: int, rank: int) -> None:
        self._engine, self._slot, self._rank = engine, slot, rank

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        """Sample one turn of the episode."""
        params = self._engine.params(max_tokens, sampling, stop_token_ids)
        return await self._engine.generate_in(self._slot, self._rank, token_ids, params, known_experts)


def _merged(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Merge neighbours of one version: vLLM begins a new span also when the version in another slot changes."""
    merged: list[VersionSpan] = []
    for span in spans:
        start = merged.pop().start if merged and merged[-1].version == span.version else span.start
        merged.append(VersionSpan(start, span.end, span.version))
    return tuple(merged)


def _import_vllm() -> None:
    with added_to_environment(ENGINE_VARIABLES), long_import():
        from vllm import AsyncLLMEngine  # noqa: F401 - imports the engine


def _build(settings: EngineSettings, server: EngineProcessServer | None, folder: EngineFolder, name: str) -> "AsyncLLMEngine":
    node = settings.node
    apart = variables_towards_other_nodes(node.host) if node.count > 1 else {}
    with folder.used(), added_to_environment({**ENGINE_VARIABLES, **apart, "VLLM_RPC_BASE_PATH": folder.path}):
        from vllm import AsyncLLMEngine

        from asyncrl.generators.vllm.coordinator_process import tie_coordinators

        tie_coordinators()
        with server.used_by_vllm() if server is not None else nullcontext():
            try:
                return AsyncLLMEngine.from_engine_args(engine_arguments(settings))
            except (AsyncRLError, OSError):
                raise
            except Exception as error:  # of any class, and some cannot be sent to another process
                why = " ".join(describe_error(error).split())
                raise ComponentFailed(f"{name}: its vLLM engine did not start: {why}; see its log") from error
