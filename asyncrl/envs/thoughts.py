"""Tells what a model thought from what it said, where both stand in one text (``model.reasoning_parser`` is not set)."""

import re

_END = re.compile(r"</think>(?![\"'])")
"""The end of thoughts; one that a quotation mark follows is a text in a program."""


def behind_thoughts(text: str) -> str:
    """Return what stands behind the last ``</think>`` of a text; the whole text if nothing does."""
    said = _END.split(text)[-1]
    return said if said.strip() else text
