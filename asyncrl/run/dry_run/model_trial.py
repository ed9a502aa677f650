"""Tries what learner and engines will make of a model's files: ``python -P -m asyncrl.run.dry_run.model_trial``, asked on
standard input.

Its configuration, tokenizer and chat template are read by the code that reads them in a run, and prompts are turned into tokens.
What always holds: no model is built. Unless vLLM is asked too, torch is not imported either, so that it takes a second or two.
"""

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.messages import Message, ToolCall, ToolSpec
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.tool_calls.formats import format_named, format_of
from asyncrl.run.dry_run.prompt_lengths import Found, PromptSet, count
from asyncrl.run.models.asked_process import answer_one
from asyncrl.run.models.dequantised import check_dequantisable, dequantised_folders, method_of
from asyncrl.run.models.embedded_tokens import check_embedded
from asyncrl.run.models.model_facts import Fact, chat_facts, token_fact, weight_facts
from asyncrl.run.models.model_weights import check_output

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from asyncrl.generators.chat_format import ChatFormat


THOUGHTS = ("<think>", "<seed:think>", "[THINK]")
"""Texts with which templates begin the thoughts of a model."""
TOOL_PARSER, REASONING_PARSER = "model.tool_parser", "model.reasoning_parser"


class TrialPrompt(msgspec.Struct, frozen=True):
    """A prompt as the environment gives it. Nothing in it has been checked: roles and schemas may be anything.

    Attributes:
        source: where its task comes from, e.g. ``tasks.train (generated)``.
        task: the id of its task.
        messages, tools: what the model is shown, as plain data.
    """

    source: str
    task: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    @classmethod
    def of(cls, source: str, task: str, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> "TrialPrompt":
        """Make the prompt of what an environment's ``reset`` returned."""
        return cls(source, task, *msgspec.to_builtins((list(messages), list(tools))))


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be tried.

    Attributes:
        path: the model's folder; empty for the tiny model, while it has not been made.
        model: the recipe's section.
        tiny: the environments that the tiny model will be made for, by member.
        seed: the run's seed.
        learner: the recipe's section ``learner``; None if the model is only played.
        prompts: prompts to be turned into tokens.
        sets: prompts whose tokens are to be counted.
        stop: the recipe's ``sampling.stop``.
        parsers: which of vLLM's parsers to try with the tokenizer, by their keys in the recipe.
        pools: pools of engines, by their place in the recipe, whose arguments vLLM is to check.
    """

    path: str
    model: ModelConfig
    tiny: dict[str, ClassEnvironmentConfig]
    seed: int
    learner: LearnerConfig | None
    prompts: list[TrialPrompt]
    sets: list[PromptSet] = []
    stop: tuple[str | int, ...] = ()
    parsers: dict[str, str] = {}
    pools: dict[str, GeneratorsConfig] = {}

    @property
    def asks_vllm(self) -> bool:
        """Whether vLLM has to be imported, which takes many seconds."""
        return bool(self.parsers or self.pools)


class TrialOutcome(msgspec.Struct, frozen=True):
    """What came of a trial.

    Attributes:
        refusal: place, problem and remedy, if there is one.
        remarks: sentences for the user.
        found: the prompts that are too long.
        facts: what the model's folder holds.
    """

    refusal: tuple[str, str, str] | None
    remarks: tuple[str, ...]
    found: tuple[Found, ...] = ()
    facts: tuple[Fact, ...] = ()


def outcome_of(request: TrialRequest) -> TrialOutcome:
    """Try everything that is asked for, up to the first refusal."""
    remarks: list[str] = []
    facts: list[Fact] = []
    try:
        chat = _looked_at(request, remarks, facts)
        found = _try(chat, request, remarks)
    except RecipeError as error:
        return TrialOutcome((error.place, error.problem, error.remedy), tuple(remarks))
    return TrialOutcome(None, tuple(remarks), tuple(found), tuple(facts))


def _looked_at(request: TrialRequest, remarks: list[str], facts: list[Fact]) -> "ChatFormat":
    """Check the files of the model, add what they hold to ``facts``, and return its chat format."""
    folder, source = Path(request.path), _configuration(request)
    if source is not None and request.learner is not None and (quantization := getattr(source, "quantization_config", None)):
        copy = f"the run trains and plays a dequantised copy, which transformers writes into {dequantised_folders()} first"
        remarks.append(f"model.path: its weights are quantised ({method_of(quantization)}): {copy}")
    chat = _chat_format(request)
    text_config = None if source is None else source.get_text_config()
    _check_stop(request.stop, getattr(text_config, "vocab_size", None) or len(chat.tokenizer))
    if source is not None and (vocabulary := getattr(source.get_text_config(), "vocab_size", None)) is not None:
        check_embedded(chat, vocabulary, folder)
        facts.append(token_fact(chat, vocabulary))
        with suppress(RecipeError):  # those of a model of the hub may not be here yet; all others have been checked
            facts += weight_facts(folder, tied=source.get_text_config().tie_word_embeddings)
    facts += chat_facts(chat, request.model)
    _refuse_parser_without_tokens(chat, request.model.tool_parser)
    return chat


def _refuse_parser_without_tokens(chat: "ChatFormat", parser: str) -> None:
    """Refuse a parser that fits the template, so that vLLM is not asked, and that would not find its tokens."""
    read = format_named(parser)
    if read is None or not read.by_tokens:
        return
    known = chat.tokenizer.get_vocab()
    for token in (read.begin, read.end):
        if token and token not in known:
            problem = f"vLLM's parser {parser!r} finds calls by the token {token!r}, which this model's tokenizer does not have"
            raise RecipeError(TOOL_PARSER, problem, "use the tokenizer that belongs to the template, or name another parser")


def _try(chat: "ChatFormat", request: TrialRequest, remarks: list[str]) -> list[Found]:
    """Try prompts, parsers and arguments of engines."""
    from asyncrl.generators.chat_template import DATE

    by_source: dict[str, list[TrialPrompt]] = {}
    for prompt in request.prompts:
        by_source.setdefault(prompt.source, []).append(prompt)
    for prompts in by_source.values():
        refusals = [found for prompt in prompts if (found := _refused(chat, prompt, request)) is not None]
        if len(refusals) == len(prompts):
            raise refusals[0]
        remarks += [f"{found.problem}; in a run, such tasks are tried again and then left out" for found in refusals[:1]]
    if any("strftime_now" in template for template in chat.templates.values()):
        problem = "the chat template asks for the date, and prompts must not change with the day"
        remarks.append(f"model.path: {problem}: in a run, it is always {DATE:%-d %B %Y}")
    remarks += _thoughts(chat, request.model)
    remarks += _other_calls(chat, request)
    if request.asks_vllm:
        _try_vllm(chat, request)
    return count(chat, request.sets, request.model.max_context)


def _configuration(request: TrialRequest) -> "PreTrainedConfig | None":
    """Read the model's configuration and check it; None if there is none yet, or transformers does not know such a model."""
    folder = Path(request.path)
    if request.learner is not None and request.path:
        from asyncrl.learners.supported_model import supported_config

        trained = supported_config(folder, request.learner, quantised=True)
        if getattr(trained, "quantization_config", None) is not None:
            check_dequantisable(trained)
        return trained
    if not request.path:
        return None
    from transformers import AutoConfig

    try:
        source: PreTrainedConfig = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError):
        return None  # vLLM knows further models, which may be played
    check_output(folder, tied=source.get_text_config().tie_word_embeddings)
    return source


def _thoughts(chat: "ChatFormat", model: ModelConfig) -> Iterator[str]:
    """Remark that the model may think, and that nothing tells its thoughts from its answers."""
    from asyncrl.generators.template_choice import variables_of

    known = [mark for mark in THOUGHTS if any(mark in template for template in chat.templates.values())]
    if model.reasoning_parser is not None or not known or f"{known[0][0]}/{known[0][1:]}" in chat.decode(chat.turn_start()):
        return
    off = " or switch thinking off (model.chat_template_kwargs={enable_thinking: false})"
    read = set[str]().union(*map(variables_of, chat.templates.values()))
    yield (
        f"model.reasoning_parser: the chat template knows {known[0]}, and no reasoning parser is set, so that thoughts are part "
        "of what tool parser, environment and reward read; name the one of this model, such as qwen3 or deepseek_r1, if it thinks"
        f"{',' + off if 'enable_thinking' in read else ''}"
    )


def _other_calls(chat: "ChatFormat", request: TrialRequest) -> Iterator[str]:
    """Remark that the template teaches calls of another format than the parser reads."""
    found = format_of("\n".join(chat.templates.values()))
    parser = request.model.tool_parser
    if found is None or parser in found[0].parsers or not any(prompt.tools for prompt in request.prompts):
        return
    taught, seen = found
    yield (
        f"{TOOL_PARSER}: {parser} reads other calls than those of {taught.parser}, which the template seems to teach ({seen}): "
        "calls that it does not read are malformed or final answers; leave the key auto unless this model was taught others"
    )


def _check_stop(stop: Sequence[str | int], entries: int) -> None:
    """Refuse tokens to stop at that the model does not have.

    Raises:
        RecipeError: there is one.
    """
    for each in stop:
        if isinstance(each, int) and each >= entries:
            problem = f"there is no token {each}: the model has {entries:,}, from 0 on"
            raise RecipeError("sampling.stop", problem, "name the id of a token of this model, or its text")


def _chat_format(request: TrialRequest) -> "ChatFormat":
    from asyncrl.generators.chat_format import ChatFormat
    from asyncrl.generators.chat_template import TemplateUnsuitable

    try:
        if request.path:
            return ChatFormat.load(request.path, request.model)
        from asyncrl.learners.tiny.tokenizer_alone import tiny_tokenizer

        return ChatFormat(tiny_tokenizer(request.tiny, request.seed), request.model)
    except TemplateUnsuitable as error:
        raise error.refusal("model.path") from error


def _refused(chat: "ChatFormat", prompt: TrialPrompt, request: TrialRequest) -> RecipeError | None:
    """Say why an episode that begins with ``prompt`` cannot be played; None if it can."""
    from asyncrl.generators.chat_template import TemplateUnsuitable

    what = f"the prompt of task {prompt.task} of {prompt.source}"
    if not prompt.messages:
        return RecipeError("environment", f"{what} has no messages", "have reset return an observation with at least one")
    messages = [_message(each) for each in prompt.messages]
    tools = [ToolSpec(**each) for each in prompt.tools]
    try:
        asyncio.run(chat.prompt(messages, tools))
    except Exception as error:  # noqa: BLE001 - a template may raise anything, also what its author wrote for a user
        roles = ", ".join(dict.fromkeys(str(message.role) for message in messages))
        why = error.problem if isinstance(error, TemplateUnsuitable) else str(error) or type(error).__name__
        problem = f"the model's chat template cannot render {what}: {why}"
        with_tools = f" and {len(tools)} tools" if tools else ""
        return RecipeError("model.path", problem, f"use a template that takes the roles {roles}{with_tools}, or other prompts")
    return None


def _message(plain: dict[str, Any]) -> Message:
    return Message(**plain | {"tool_calls": msgspec.convert(plain.get("tool_calls", ()), tuple[ToolCall, ...])})


def _try_vllm(chat: "ChatFormat", request: TrialRequest) -> None:
    from asyncrl.generators.tool_calls.reader import ToolCallReader
    from asyncrl.generators.tool_calls.reasoning import Reasoning
    from asyncrl.generators.vllm.engine_arguments import EngineSettings, try_engine_arguments
    from asyncrl.generators.vllm.engine_node import EngineNode

    refused = "name the parser that reads what this model writes (docs/reference/episodes.md)"
    for key, name in request.parsers.items():
        try:
            ToolCallReader(chat.tokenizer, name) if key == TOOL_PARSER else Reasoning(chat, name)
        except Exception as error:
            raise RecipeError(key, f"vLLM's parser {name!r} does not take this model's tokenizer: {error}", refused) from error
    for place, pool in request.pools.items():
        tells_experts = request.learner is not None and request.learner.experts.replay and pool.role != "evaluation"
        node = EngineNode(count=pool.engine_nodes, host="localhost", port=1)  # nobody meets there
        settings = EngineSettings(
            pool, request.path, request.model.max_context, request.seed, tells_experts=tells_experts, node=node
        )
        try_engine_arguments(settings, place)


def asked(data: bytes) -> TrialRequest:
    """Read a request. Texts may hold what UTF-8 cannot, so they are written with escapes."""
    return msgspec.convert(json.loads(data), TrialRequest)


def written(request: TrialRequest) -> bytes:
    """Write a request as :func:`asked` reads it."""
    return json.dumps(msgspec.to_builtins(request)).encode()


def main() -> None:
    """Answer one request. With the argument ``light``, vLLM will not be asked."""
    sys.path.append("")  # as python -m would have it first: the user's modules are found, and hide none of ours
    answer_one(lambda request: msgspec.json.encode(outcome_of(asked(request))))


if __name__ == "__main__":
    main()
