"""Texts at which turns end: found with the token that completes them, however tokens cut them."""

from functools import cache
from pathlib import Path

import pytest
from chat_tokenizers import make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from asyncrl.generators.vllm.text_stops import TextStops


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer().save_pretrained(path)
    return path


def first_end(stops: TextStops, token_ids: list[int], texts: tuple[str, ...]) -> int | None:
    return next((end for end in range(1, len(token_ids) + 1) if stops.complete(token_ids[:end], texts)), None)


@cache
def loaded(folder: Path) -> tuple[TextStops, PreTrainedTokenizerBase]:
    return TextStops(str(folder)), AutoTokenizer.from_pretrained(folder)


def check(folder: Path, said: str, texts: tuple[str, ...]) -> None:
    stops, tokenizer = loaded(folder)
    token_ids = tokenizer.encode(said, add_special_tokens=False)
    shown = [tokenizer.decode(token_ids[:end], skip_special_tokens=False) for end in range(1, len(token_ids) + 1)]
    expected = next((end for end, text in enumerate(shown, 1) if any(each in text for each in texts)), None)
    assert first_end(stops, token_ids, texts) == expected


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ("it is <answer>3</answer> and more", ("</answer>",)),
        ("one\n\ntwo", ("\n\n", "two")),
        ("x" * 300 + "STOP", ("STOP",)),
        ("你好。再见", ("。",)),
        ("ends with 😀 or not", ("😀", "not")),
        ("a call <tool_call> of its own", ("<tool_call>", "call of")),
        ("nothing", ("never",)),
        ("a b  c", ("  ",)),
    ],
)
def test_a_turn_ends_with_the_token_that_completes_a_text(folder: Path, said: str, texts: tuple[str, ...]) -> None:
    check(folder, said, texts)


LETTERS = "ab <>é😀\n"


@given(said=st.text(LETTERS, max_size=40), texts=st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=3))
def test_it_is_found_where_the_whole_turn_first_holds_it(folder: Path, said: str, texts: list[str]) -> None:
    check(folder, said, tuple(texts))
