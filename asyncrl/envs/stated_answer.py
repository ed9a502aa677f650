"""Finds what a model states as its answer, in a text that may also hold its thoughts and its reasons."""

import re

_END = re.compile(r"</think>(?![\"'])")
"""The end of thoughts; one that a quotation mark follows is a text in a program."""


def behind_thoughts(text: str) -> str:
    """Return what stands behind the last ``</think>`` of a text; the whole text if nothing does."""
    said = _END.split(text)[-1]
    return said if said.strip() else text


_TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_BEGUN = re.compile(r"<answer>((?:(?!</?answer>).)*)$", re.DOTALL | re.IGNORECASE)


def in_tags(text: str) -> str:
    """Return what stands between the last ``<answer>`` and ``</answer>`` of a text; the whole text if nothing does.

    Where the text has no ``</answer>``, at which a turn may be made to stop, it is what stands behind the last ``<answer>``.
    """
    tagged: list[str] = _TAGGED.findall(text) or _BEGUN.findall(text)
    return tagged[-1] if tagged else text


def stated_answer(text: str) -> str:
    """Return what stands behind the thoughts of a text (until ``</think>``) and in its tags, without space around it."""
    return in_tags(behind_thoughts(text)).strip()
