"""The tiny model's tokenizer and template: nothing is lost, digits stay apart, turns only append, vLLM can read the calls."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.lessons.demonstrations import Demonstration, demonstrate
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.learners.tiny.conversations import encode, messages, pad, render
from asyncrl.learners.tiny.tokenizer import END_OF_TURN, TAG_TOKENS, fit_tokenizer

LESSONS = CalculatorLessons()
TASKS = Calculator.make_tasks("train", 120, 0)
TOOLS = [tool.spec.as_template_input() for tool in Calculator.tools.values()]


@pytest.fixture(scope="module")
def demonstrations() -> list[Demonstration]:
    return demonstrate(
        lambda task: Calculator(), [(task, show(task)) for task in TASKS for show in (LESSONS.ideal, LESSONS.mistaken)]
    )


@pytest.fixture(scope="module")
def three_calls() -> Demonstration:
    return demonstrate(lambda task: Calculator(), [(TASKS[2], LESSONS.ideal(TASKS[2]))])[0]


@pytest.fixture(scope="module")
def tokenizer(demonstrations: list[Demonstration], tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """Saved and loaded again, as engines do."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    fit_tokenizer(render(demonstrations), 1024).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_fitting_is_deterministic(demonstrations: list[Demonstration]):
    first, second = (fit_tokenizer(render(demonstrations), 1024) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_conversations_are_short_and_come_back_as_they_were(
    demonstrations: list[Demonstration], tokenizer: PreTrainedTokenizerFast
):
    for text in render(demonstrations):
        token_ids = tokenizer.encode(text)
        assert tokenizer.decode(token_ids) == text
        assert len(token_ids) < len(text) / 5


@given(text=st.text())
def test_any_text_comes_back_as_it_was(tokenizer: PreTrainedTokenizerFast, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_digit_is_a_token_of_its_own(tokenizer: PreTrainedTokenizerFast):
    for token_id in range(len(tokenizer)):
        token = tokenizer.decode([token_id])
        assert len(token) == 1 or not any(character.isdigit() for character in token)
    assert tokenizer.tokenize("12*4-19") == list("12*4-19")


@given(st.sampled_from(["Ada", "Ada Loo", "Bo"]), st.text(max_size=3), st.text(max_size=3))
def test_pieces_are_tokenized_the_same_everywhere(named: PreTrainedTokenizerFast, name: str, before: str, after: str):
    tokens = named.tokenize(name)
    text = named.tokenize(f"{before},{name},{after}")
    assert any(text[start : start + len(tokens)] == tokens for start in range(len(text)))


@pytest.fixture(scope="module")
def named() -> PreTrainedTokenizerFast:
    return fit_tokenizer(["who is Ada, Ada Loo, and Bo? who is Bo, who is Ada Loo"] * 3, 64, [r"[A-Z][a-z]+(?: [A-Z][a-z]+)*"])


def test_the_first_word_of_a_turn_does_not_melt_into_its_header():
    """In a run the prompt is tokenized without what the model says next."""
    start = "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"
    chatty = fit_tokenizer([f"{start}hello there<|im_end|>"] * 5, 64)
    assert chatty.encode(f"{start}hello there") == chatty.encode(start) + chatty.encode("hello there")


def test_tags_survive_decoding_without_special_tokens(tokenizer: PreTrainedTokenizerFast):
    text = "".join(TAG_TOKENS)
    token_ids = tokenizer.encode(text)
    assert len(token_ids) == len(TAG_TOKENS)
    assert tokenizer.decode([*token_ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_more_messages_only_append(demonstrations: list[Demonstration], tokenizer: PreTrainedTokenizerFast):
    system = {"role": "system", "content": "Be brief."}
    for demonstration in demonstrations[:12]:
        conversation = [system, *messages(demonstration)]
        rendered = ""
        for end in range(1, len(conversation) + 1):
            longer = tokenizer.apply_chat_template(conversation[:end], tools=TOOLS, tokenize=False)
            assert longer.startswith(rendered)
            rendered = longer
            if end < len(conversation) and conversation[end]["role"] == "assistant":
                opened = tokenizer.apply_chat_template(
                    conversation[:end], tools=TOOLS, tokenize=False, add_generation_prompt=True
                )
                assert tokenizer.apply_chat_template(conversation[: end + 1], tools=TOOLS, tokenize=False).startswith(opened)
        assert rendered.count(END_OF_TURN) == len(conversation)


def test_a_row_grown_turn_by_turn_is_the_rendered_one(three_calls: Demonstration, tokenizer: PreTrainedTokenizerFast):
    """What a generator builds out of prompt, sampled turns and deltas equals what the warm-up trained on, token by token."""
    chat = ChatFormat(tokenizer)
    (row,) = encode([three_calls], tokenizer)
    spoken = [token for token, said in zip(row.token_ids, row.spoken, strict=True) if said]
    turns = [[]]
    for token in spoken:
        turns[-1].append(token)
        if token == chat.end_of_turn:
            turns.append([])
    assert turns.pop() == []
    assert len(turns) == len(three_calls.turns) + 1

    grown = asyncio.run(chat.prompt(three_calls.opening, three_calls.tools))
    for turn, (_, results) in zip(turns, three_calls.turns, strict=False):
        grown += turn + asyncio.run(chat.delta(results))
    assert tuple(grown + turns[-1]) == row.token_ids


def test_vllm_reads_what_the_demonstrations_say(three_calls: Demonstration, tokenizer: PreTrainedTokenizerFast):
    chat = ChatFormat(tokenizer)
    reader = ToolCallReader(tokenizer, "hermes")
    (row,) = encode([three_calls], tokenizer)
    spoken = [token for token, said in zip(row.token_ids, row.spoken, strict=True) if said]
    *calls, answer, rest = chat.decode(spoken).split(END_OF_TURN)
    actions = [reader.read(text) for text in calls]
    assert [action.calls for action in actions] == [calls for calls, _ in three_calls.turns]
    assert (reader.read(answer).content, reader.read(answer).calls, rest) == (three_calls.answer, (), "")


def test_padding_is_never_spoken(demonstrations: list[Demonstration], tokenizer: PreTrainedTokenizerFast):
    rows = encode(demonstrations[:9], tokenizer)
    padded = pad(rows)
    assert padded.token_ids.shape == padded.spoken.shape == (9, max(len(row.token_ids) for row in rows))
    for index, row in enumerate(rows):
        assert tuple(padded.token_ids[index, : len(row.token_ids)].tolist()) == row.token_ids
        assert padded.spoken[index].sum() == sum(row.spoken)
