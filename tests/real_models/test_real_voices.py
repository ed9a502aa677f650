"""Demonstrations told with tokenizers and templates that others have made: the rows are those of episodes that say the same."""

import pytest
from real_tokenizers import template_of, tokenizer_of
from test_real_thinking import play

from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.core.task import Task
from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.lessons.demonstrations import demonstrate
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.run.tiny.made_for_tokenizer import CannotTell, ChatVoice

TASK = Task(id="1+2", prompt="1+2", data={"answer": 3})  # type: ignore[arg-type]


def chat_format(family: str, template: str, **values: bool) -> ChatFormat:
    named = template_of(template) if template else None
    return ChatFormat.load(str(tokenizer_of(family)), ModelConfig(path=family, chat_template=named, chat_template_kwargs=values))


@pytest.mark.parametrize(
    ("chat", "parser", "reasoning"),
    [
        (("qwen3", "", {"enable_thinking": False}), "hermes", None),
        (("qwen3", "", {"enable_thinking": True}), "hermes", "qwen3"),
        (("llama3_1", "llama3_1", {}), "llama3_json", None),
    ],
    ids=["Qwen3", "Qwen3, thinking", "Llama 3.1"],
)
def test_a_row_is_that_of_an_episode_in_which_the_policy_says_it(chat, parser: str, reasoning: str | None) -> None:
    family, template, values = chat
    format = chat_format(family, template, **values)
    shown = demonstrate(lambda task: Calculator(), [(TASK, CalculatorLessons().ideal(TASK))])
    (row,) = ChatVoice(format, thinks=reasoning is not None).rows(shown)
    turns: list[list[int]] = [[]]
    for token_id, spoken in zip(row.token_ids, row.spoken, strict=True):
        if spoken:
            turns[-1].append(token_id)
        elif turns[-1]:
            turns.append([])
    episode, played = play(format, parser, reasoning, *map(format.turn_text, turns))
    assert episode.reward == 1.0
    assert played.token_ids.tolist() == list(row.token_ids)
    assert played.loss_mask.tolist() == list(row.spoken)
    assert ("I call calculator." in format.decode(row.token_ids)) == (reasoning is not None)


def test_a_template_that_writes_turns_in_another_way_than_it_asks_for_them_is_refused() -> None:
    format = chat_format("qwen3", "", enable_thinking=False)
    shown = demonstrate(lambda task: Calculator(), [(TASK, CalculatorLessons().ideal(TASK))])
    with pytest.raises(CannotTell, match=r"leave out model\.reasoning_parser"):
        ChatVoice(format, thinks=True).rows(shown)
