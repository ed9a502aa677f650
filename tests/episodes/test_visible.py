import unicodedata

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.episodes.visible import visible, visible_json


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_that_steers_a_terminal_or_turns_a_line_is_left(text):
    shown = visible(text)
    shown.encode()
    assert all(unicodedata.category(each) not in ("Cc", "Cs") or each in "\n\t" for each in shown)
    assert all(
        unicodedata.bidirectional(each) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI") for each in shown
    )


@given(st.text())
def test_json_keeps_its_value(text):
    line = visible_json(msgspec.json.encode(text).decode())
    assert visible(line) == line
    assert msgspec.json.decode(line) == text


def test_what_is_hidden_is_shown():
    assert visible("a\x1b[31m\r\nb\t\x00 \u202ec \ud800 é世") == "a␛[31m\nb\t␀ \\u202ec \\ud800 é世"
