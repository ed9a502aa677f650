"""What vLLM's front end makes of held outputs is what it makes of all of them; its own code reads both."""

from collections.abc import Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

from asyncrl.generators.vllm.held_outputs import hold_outputs

REQUESTS = 4
"""Requests of an engine, named "0" to "3"; the last one wants its tokens as they come."""
ACTIONS = st.lists(st.sampled_from(["wait", "sample", "finish", "cancel"]), min_size=REQUESTS, max_size=REQUESTS)
STEPS = st.lists(st.tuples(st.booleans(), ACTIONS), max_size=30)
"""For each step, whether a publication is loaded before it, and what happens to each request."""


def params(number: int) -> SamplingParams:
    kind = RequestOutputKind.DELTA if number == REQUESTS - 1 else RequestOutputKind.FINAL_ONLY
    return SamplingParams(max_tokens=1000, logprobs=0, flat_logprobs=True, detokenize=False, output_kind=kind)


def sampled(name: str, number: int, finish: bool, first: bool) -> EngineCoreOutput:
    logprobs = LogprobsLists(np.array([[number]], np.int32), np.array([[-number / 7]], np.float32), np.array([1], np.int32))
    return EngineCoreOutput(
        name,
        [number],
        logprobs,
        finish_reason=FinishReason.STOP if finish else None,
        prefill_stats=PrefillStats(num_cached_tokens=number) if first else None,
    )


class Engine:
    """An engine's process whose steps are given, and the messages that its front end gets."""

    def __init__(self) -> None:
        requests = {str(number): SimpleNamespace(sampling_params=params(number)) for number in range(REQUESTS)}
        self.scheduler = SimpleNamespace(requests=requests)
        self.output_queue: SimpleQueue[tuple[int, EngineCoreOutputs]] = SimpleQueue()
        self.step: Any = None
        self.step_fn = lambda: self.step

    def run(self, outputs: Sequence[EngineCoreOutput], version: str) -> None:
        self.step = ({0: EngineCoreOutputs(outputs=list(outputs), weight_version=version)}, True)
        for item in self.step_fn()[0].items():
            self.output_queue.put(item)

    def messages(self) -> list[EngineCoreOutputs]:
        return [self.output_queue.get()[1] for _ in range(self.output_queue.qsize())]


class FrontEnd:
    """vLLM's own reader of messages; ``told`` is what it told of each request."""

    def __init__(self) -> None:
        self.reader = OutputProcessor(None, log_stats=False)
        self.told: dict[str, list[tuple[Any, ...]]] = {}
        for number in range(REQUESTS):
            request = EngineCoreRequest(str(number), [1], None, params(number), None, 0.0, None, None, None)
            request.external_req_id = request.request_id
            self.reader.add_request(request, None)

    def read(self, messages: Sequence[EngineCoreOutputs]) -> None:
        for message in messages:
            read = self.reader.process_outputs(message.outputs, message.timestamp, None, weight_version=message.weight_version)
            for output in read.request_outputs:
                (turn,) = output.outputs
                spans = [(span.version, span.start, span.end) for span in turn.weight_versions or ()]
                told = (list(turn.token_ids), list(turn.logprobs.logprobs), spans, turn.finish_reason, output.num_cached_tokens)
                self.told.setdefault(output.request_id, []).append(told)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_requests_end_with_the_same_tokens_log_probabilities_and_versions(steps) -> None:
    plain, holding = Engine(), Engine()
    hold_outputs(holding)
    expected, found = FrontEnd(), FrontEnd()
    version = token = 0
    begun: set[str] = set()
    for published, actions in steps:
        version += published
        outputs = []
        for name, action in zip("0123", actions, strict=True):
            if name not in plain.scheduler.requests or action == "wait":
                continue
            if action != "cancel":
                token += 1
                outputs.append((name, token, action == "finish", name not in begun))
                begun.add(name)
            if action != "sample":
                for engine in (plain, holding):
                    del engine.scheduler.requests[name]
        for engine, front_end in ((plain, expected), (holding, found)):
            engine.run([sampled(*each) for each in outputs], str(version))
            front_end.read(engine.messages())
    assert found.told == expected.told


def test_a_request_that_wants_its_final_output_is_in_one_message() -> None:
    engine = Engine()
    hold_outputs(engine)
    for token in range(20):
        engine.run([sampled("0", token, token == 19, token == 0)], "default")
    (message,) = engine.messages()
    (output,) = message.outputs
    assert output.new_token_ids == list(range(20))
    assert [array.shape for array in output.new_logprobs[:3]] == [(20, 1), (20, 1), (20,)]


def test_what_is_more_than_sampled_tokens_is_sent_at_once_with_what_was_held() -> None:
    engine = Engine()
    hold_outputs(engine)
    engine.run([sampled("0", 1, False, True)], "default")
    assert engine.messages() == []
    scored = sampled("0", 2, False, False)
    scored.new_prompt_logprobs_tensors = LogprobsTensors(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1))
    engine.run([scored], "default")
    ((output,),) = (message.outputs for message in engine.messages())
    assert (output.new_token_ids, output.new_prompt_logprobs_tensors) == ([1, 2], scored.new_prompt_logprobs_tensors)


def test_cancelled_requests_are_forgotten() -> None:
    engine = Engine()
    hold_outputs(engine)
    for name in ("0", "1", "2"):
        engine.run([sampled(name, 1, False, True)], "default")
    del engine.scheduler.requests["0"], engine.scheduler.requests["1"], engine.scheduler.requests["3"]
    engine.run([sampled("2", 2, False, False)], "default")
    engine.run([sampled("2", 3, False, False)], "next")  # sends all that is held
    (message,) = engine.messages()
    assert [output.request_id for output in message.outputs] == ["2"]
