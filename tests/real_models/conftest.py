"""What holds for tests with real tokenizers."""

import copy
from functools import cache

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase


@cache
def _read(folder: str) -> PreTrainedTokenizerBase:
    return _from_pretrained(folder)


_from_pretrained = AutoTokenizer.from_pretrained


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tokenizer is read once, which takes seconds: who loads it gets a copy, whose chat template is its own."""
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda folder: copy.copy(_read(str(folder))))
