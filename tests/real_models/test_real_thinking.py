"""Qwen3's own tokenizer and template, thinking and not: what an episode keeps, what is called, and what the reward reads."""

import asyncio
from collections.abc import Sequence

import pytest
from fake_engine import FakeEngine
from real_tokenizers import template_of, tokenizer_of

from asyncrl.core.episode import Episode
from asyncrl.core.ids import GroupId, TaskId
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.task import Task
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.completion import Completion
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_calls.reasoning import Reasoning

TASK = Task(id=TaskId("1+2"), prompt="1+2", data={"answer": 3})
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+2"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "9*9"}}\n</tool_call>'


class Ending(FakeEngine):
    """Ends its turns with one of the model's ends; by default with the template's own."""

    def __init__(self, chat: ChatFormat, turns: Sequence[str], end: int | None) -> None:
        left = list(turns)
        super().__init__(lambda row: left.pop(0))
        self.chat, self.end = chat, end

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop_token_ids: tuple[int, ...],
        known_experts: int = 0,
    ) -> Completion:
        end = stop_token_ids[0] if self.end is None else self.end
        assert end in stop_token_ids
        return await super().generate(token_ids, max_tokens=max_tokens, sampling=sampling, stop_token_ids=(end,))


def play(chat: ChatFormat, parser: str, reasoning: str | None, *turns: str, end: int | None = None) -> tuple[Episode, Trajectory]:
    """Play an episode of the calculator in which the policy says these turns."""
    reader = ToolCallReader(chat.tokenizer, parser, None if reasoning is None else Reasoning(chat, reasoning))
    tools = EpisodeTools(Ending(chat, turns, end), chat, reader, lambda task: Calculator())
    model = ModelConfig(path="m", max_context=2048)
    recipe = Recipe(name="r", steps=1, model=model, environment=ClassEnvironmentConfig(name="calculator"))
    episode = asyncio.run(run_episode(TASK, EpisodeName(GroupId(0), 0, 0), EpisodeLimits.of(recipe), tools))
    episode.check()
    (played,) = episode.trajectories
    return episode, played


def qwen3(*, thinking: bool) -> ChatFormat:
    return ChatFormat.load(
        str(tokenizer_of("qwen3")), ModelConfig(path="Qwen3", chat_template_kwargs={"enable_thinking": thinking})
    )


@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1"])
def test_thoughts_are_kept_and_trained_and_neither_called_nor_rewarded(reasoning: str) -> None:
    chat = qwen3(thinking=True)
    first = f"<think>\nI could {WRONG}, but no.\n</think>\n\n{CALL}"
    last = "<think>\nIs it 4?\n</think>\n\n3"
    episode, played = play(chat, "hermes", reasoning, first, last)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.ENVIRONMENT_DONE)
    assert [len(turn.calls) for turn in played.turns] == [1, 0]
    row = played.token_ids.tolist()
    said = [chat.decode(row[turn.start : turn.end]) for turn in played.turns]
    assert said == [f"{first}<|im_end|>", f"{last}<|im_end|>"]
    assert all(played.loss_mask[turn.start : turn.end].all() for turn in played.turns)
    assert play(chat, "hermes", reasoning, "<think>\n3\n</think>\n\n4")[0].reward == 0.0
    assert play(chat, "hermes", reasoning, "<think>\nIs it 3")[0].reward == 0.0, "thoughts that do not end say nothing"


@pytest.mark.parametrize("reasoning", [None, "qwen3", "deepseek_r1"])
def test_where_thinking_is_off_each_turn_begins_after_an_empty_thought(reasoning: str | None) -> None:
    chat = qwen3(thinking=False)
    episode, played = play(chat, "hermes", reasoning, CALL, "3")
    assert episode.reward == 1.0
    row = played.token_ids.tolist()
    for turn in played.turns:
        assert chat.decode(row[: turn.start]).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert chat.decode(row[played.turns[0].end : played.turns[1].start]).count("<think>") == 1


def test_llama_goes_on_alike_after_the_end_of_a_message_and_of_a_turn() -> None:
    """``<|eom_id|>`` ends a message that calls a tool of its own, ``<|eot_id|>`` a turn; what follows is the same."""
    folder = str(tokenizer_of("llama3_1"))
    chat = ChatFormat.load(folder, ModelConfig(path="Llama-3.1", chat_template=template_of("llama3_1")))
    ends = {name: chat.tokenizer.convert_tokens_to_ids(name) for name in ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")}
    chat = ChatFormat(chat.tokenizer, ModelConfig(path="m", chat_template=template_of("llama3_1")), [*ends.values()])
    assert {*ends.values()} <= {*chat.ends_of_turn}
    call = '{"name": "calculator", "parameters": {"expression": "1+2"}}'
    rows = {name: (end, *play(chat, "llama3_json", None, call, "3", end=end)) for name, end in ends.items()}
    (_, first, usual), *others = rows.values()
    assert first.reward == 1.0
    for end, episode, other in others:
        assert episode.reward == 1.0
        assert [turn.end for turn in other.turns] == [turn.end for turn in usual.turns]
        differs = other.token_ids != usual.token_ids
        assert differs.nonzero()[0].tolist() == [turn.end - 1 for turn in usual.turns]
        assert set(other.token_ids[differs].tolist()) == {end}
        assert all(other.loss_mask[turn.end - 1] for turn in other.turns), "the end that was sampled is trained"
