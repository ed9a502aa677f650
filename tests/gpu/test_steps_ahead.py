"""vLLM's own engine core as it runs on a GPU, where a step is scheduled before the one before has its result: publications fall
between two steps, and versions, held outputs and the time of steps are right."""

from collections import deque
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import Qwen3Config
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine import core as engine_core
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

from asyncrl.generators.vllm.engine_steps import EngineSteps
from asyncrl.generators.vllm.held_outputs import hold_outputs
from asyncrl.weights.vllm.publication_calls import load_publication

DECODING_S, PROMPT_TOKEN_S, LOADING_S = 1.0, 0.25, 1000.0
STEPS_AHEAD = 2
TOKENS = 24
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "vocab_size": 320,
    "intermediate_size": 96,
}


class Step(Future[ModelRunnerOutput]):
    """A step on its way, which is computed when its result is waited for: its token is the version of the weights then."""

    def __init__(self, device: "ScriptedExecutor", scheduled: SchedulerOutput) -> None:
        super().__init__()
        self.device, self.scheduled, self.begun_with = device, scheduled, device.version

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        device, tokens = self.device, self.scheduled.num_scheduled_tokens
        assert device.flying.popleft() is self, "steps end in the order in which they began"
        assert device.version == self.begun_with, "no weights change under a step"
        new = sum(tokens[each.req_id] for each in self.scheduled.scheduled_new_reqs)
        device.clock += DECODING_S + PROMPT_TOKEN_S * new
        device.prompt_tokens += new
        device.ended += 1
        names = list(tokens)
        logprobs = LogprobsLists(
            np.full((len(names), 1), device.version, np.int32),
            np.full((len(names), 1), -float(device.version), np.float32),
            np.ones(len(names), np.int32),
        )
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=[[device.version] for _ in names],
            logprobs=logprobs,
        )


class ScriptedExecutor(Executor):
    """Stands for a GPU's workers. Its weights are a number, which is the token that is sampled with them."""

    def _init_executor(self) -> None:
        self.version, self.clock, self.prompt_tokens, self.ended, self.most = 1, 0.0, 0, 0, 0
        self.flying: deque[Step] = deque()

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        return [{"layer": FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=torch.float32)}]

    def determine_available_memory(self) -> list[int]:
        return [1 << 24]

    def collective_rpc(self, method: Any, timeout: Any = None, args: tuple[Any, ...] = (), *_: Any, **__: Any) -> Any:
        if method == "load_publication":
            assert not self.flying, "the engine is paused"
            self.clock += LOADING_S
            self.version = int(args[0])
            return [self.version]
        return []

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["NHD"]]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        pass

    def execute_model(self, scheduler_output: SchedulerOutput, non_block: bool = False) -> Any:
        self.scheduled = scheduler_output
        done: Future[Any] = Future()
        done.set_result(ModelRunnerOutput(req_ids=[], req_id_to_index={}))
        return done

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        self.flying.append(Step(self, self.scheduled))
        self.most = max(self.most, len(self.flying))
        return self.flying[-1]

    def check_health(self) -> None:
        pass


class Engine:
    """vLLM's engine core without its sockets, and vLLM's own front end, which reads what the core puts out."""

    def __init__(self, folder: Path) -> None:
        Qwen3Config(**SIZES, architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
        arguments = EngineArgs(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=128
        )
        settings = arguments.create_engine_config()
        settings.scheduler_config.async_scheduling = True  # which vLLM switches off on CPUs
        self.core = object.__new__(EngineCoreProc)
        self.core.engines_running, self.core.input_queue, self.core.output_queue = False, SimpleQueue(), SimpleQueue()
        with mock.patch.object(engine_core, "enable_envs_cache"), mock.patch.object(engine_core, "freeze_gc_heap"):
            EngineCore.__init__(self.core, settings, ScriptedExecutor, log_stats=False)
        self.device: ScriptedExecutor = self.core.model_executor
        self.reader = OutputProcessor(None, log_stats=False)
        self.finished: dict[str, tuple[list[int], list[float], list[tuple[str, int, int]]]] = {}
        self.messages = 0

    def ask(self, name: str, prompt: int, tokens: int = TOKENS) -> None:
        final = RequestOutputKind.FINAL_ONLY
        params = SamplingParams(max_tokens=tokens, logprobs=0, flat_logprobs=True, detokenize=False, output_kind=final)
        request = EngineCoreRequest(name, list(range(1, prompt + 1)), None, params, None, 0.0, None, None, None)
        request.external_req_id = name
        self.reader.add_request(request, None)
        self.core.add_request(*self.core.preprocess_add_request(request))

    def publish(self, version: int) -> Future[list[float]]:
        return load_publication(self.core, str(version).encode(), str(version), 0)

    def turn(self) -> bool:
        """One turn of the core's loop, then what its front end does; False if there is nothing to do."""
        if not self.core.has_work():
            self.core._notify_idle_state_callbacks()
            if not self.core.has_work():
                return False
        outputs, _ = self.core.step_fn()
        for output in (outputs or {}).items():
            self.core.output_queue.put_nowait(output)
        for _ in range(self.core.output_queue.qsize()):
            self._read(self.core.output_queue.get()[1])
        return True

    def _read(self, message: EngineCoreOutputs) -> None:
        self.messages += 1
        read = self.reader.process_outputs(message.outputs, message.timestamp, None, weight_version=message.weight_version)
        for output in read.request_outputs:
            (turn,) = output.outputs
            spans = [(span.version, span.start, span.end) for span in turn.weight_versions or ()]
            self.finished[output.request_id] = (list(turn.token_ids), list(turn.logprobs.logprobs), spans)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine(tmp_path)
    made.core.set_weight_version("1")
    monkeypatch.setattr("asyncrl.generators.vllm.engine_steps.time.monotonic", lambda: made.device.clock)
    return made


def versions_of(spans: list[tuple[str, int, int]]) -> list[int]:
    """The version of each token, by what the engine says."""
    return [int(version) for version, start, end in spans for _ in range(start, end)]


@pytest.mark.parametrize("holding", [False, True])
@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_tokens_have_the_version_of_the_weights_that_sampled_them(engine: Engine, before: int, holding: bool) -> None:
    """Publications come after every number of turns, so also while one step or two are on their way."""
    if holding:
        hold_outputs(engine.core)
    for number in range(3):
        engine.ask(f"{number}", 8 + number, TOKENS + number)
    loads, paused_with = [], set()
    for version in (2, 3, 4):
        for _ in range(before):
            engine.turn()
        paused_with.add(len(engine.device.flying))
        loads.append(engine.publish(version))
        while not loads[-1].done():
            assert engine.turn()
    while engine.turn():
        pass
    assert [int(load.result()[1]) for load in loads] == [2, 3, 4]
    assert engine.device.most == STEPS_AHEAD
    assert max(paused_with) > 0, "steps were on their way"
    for number in range(3):
        tokens, logprobs, spans = engine.finished[f"{number}"]
        assert len(tokens) == TOKENS + number
        assert versions_of(spans) == tokens
        assert [-value for value in logprobs] == tokens
        assert set(tokens) == {1, 2, 3, 4}


def test_held_outputs_are_a_message_for_each_version(engine: Engine) -> None:
    hold_outputs(engine.core)
    engine.ask("a", 8)
    for _ in range(4):
        engine.turn()
    engine.publish(2)
    while engine.turn():
        pass
    assert versions_of(engine.finished["a"][2]) == engine.finished["a"][0]
    assert engine.messages == 2


def test_the_time_of_steps_is_without_pauses_and_divided_as_it_was_taken(engine: Engine) -> None:
    steps = EngineSteps.measuring(engine.core)
    engine.ask("a", 8)
    for _ in range(5):
        engine.turn()
    engine.publish(2)
    while engine.device.version == 1:
        engine.turn()
    engine.ask("b", 40)
    while engine.turn():
        pass
    device = engine.device
    assert device.prompt_tokens == 48
    assert steps.prefill_seconds + steps.decode_seconds == pytest.approx(device.clock - LOADING_S)
    assert device.clock - LOADING_S == pytest.approx(device.ended * DECODING_S + 48 * PROMPT_TOKEN_S)
    first = DECODING_S + 8 * PROMPT_TOKEN_S  # no step had only sampled before, so all of it counts as of the prompt
    assert steps.prefill_seconds == pytest.approx(first + 40 * PROMPT_TOKEN_S)
