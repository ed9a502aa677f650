"""Finds the program in what a model wrote: a block between fences of backticks or tildes, as Markdown has them.

What always holds: text outside of the blocks is never run, unless there is no block at all; then ``<answer>`` tags may say what
is. It takes time in proportion to the text, whatever that holds.
"""

import re
from typing import NamedTuple

from asyncrl.envs.stated_answer import behind_thoughts, in_tags

PYTHON = re.compile(r"\{?\s*\.?i?py(?:thon)?[\d.]*(?![\w-])", re.IGNORECASE)
SQL = re.compile(r"\{?\s*\.?\w*sql(?:ite\d?)?(?![\w-])", re.IGNORECASE)
"""The tags of a language's blocks."""
_TAG = re.compile(r"[\w.+#-]*")
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])?")
_MOST_DEEPER = 3
"""Columns by which the end of a block may be further from the left than its beginning."""


class _Fence(NamedTuple):
    """A run of backticks or tildes in a line, with what stands before and behind it."""

    before: str
    signs: str
    tag: str

    def begins_its_line(self) -> bool:
        """Whether nothing stands before it, but for the mark of a list."""
        return _ITEM.fullmatch(self.before.strip()) is not None

    def is_deeper_than(self, opening: "_Fence") -> bool:
        """Whether it begins its line so deep that Markdown takes it for text, as in the docstring of a function."""
        return self.begins_its_line() and self._indent() > opening._indent() + _MOST_DEEPER

    def _indent(self) -> int:
        line = self.before.expandtabs(4)
        return len(line) if self.begins_its_line() else len(line) - len(line.lstrip())


class _Block(NamedTuple):
    opening: _Fence
    lines: list[str]
    closed: bool

    def worth(self, language: re.Pattern[str]) -> tuple[bool, bool, bool]:
        """How likely it is the program, of which the last one counts: an output or a shell's commands are told by their tags."""
        return bool(language.match(self.opening.tag)), not self.opening.tag, self.closed

    def code(self) -> str:
        """The block's text, without the indentation that it has with its fence."""
        indent = len(self.opening.before) if self.opening.begins_its_line() else 0
        inside = all(not line[:indent].strip() for line in self.lines)
        text = "".join(line[indent:] if inside and line.strip() else line for line in self.lines)
        return text if self.closed else text.partition(self.opening.signs)[0]


def code_in(answer: str, language: re.Pattern[str] = PYTHON) -> str:
    """The last fenced block of a language in an answer, or of what is not said to be anything.

    A block that ends with the answer counts if no other of its kind does; one in the model's thoughts (until ``</think>``) does
    not. Without a block it is what stands in ``<answer>`` tags, or the whole answer.
    """
    answer = behind_thoughts(answer)
    blocks: list[_Block] = []
    opening, lines = None, list[str]()
    for line in answer.splitlines(keepends=True):
        fence = _fence(line)
        if fence is not None and opening is not None and fence.is_deeper_than(opening):
            fence = None
        if fence is not None and opening is not None and not fence.tag and fence.signs.startswith(opening.signs):
            if fence.before.strip():
                lines.append(fence.before)
            blocks.append(_Block(opening, lines, closed=True))
            opening, lines = None, []
        elif fence is not None and _opens(fence, opening, language):
            if opening is not None:
                blocks.append(_Block(opening, lines, closed=False))
            opening, lines = fence, []
        elif opening is not None:
            lines.append(line)
    if opening is not None:
        blocks.append(_Block(opening, lines, closed=False))
    filled = (each for each in reversed(blocks) if "".join(each.lines).strip())
    found = max(filled, key=lambda block: block.worth(language), default=None)
    return in_tags(answer) if found is None else found.code()


def _fence(line: str) -> _Fence | None:
    """The last three or more backticks in a line, or tildes at its beginning."""
    sign = "~" if line.lstrip().startswith("~~~") else "`"
    head, _, tag = line.rpartition(sign)
    before = head.rstrip(sign)
    signs = head[len(before) :] + sign
    return _Fence(before, signs, tag.strip()) if len(signs) >= 3 else None


def _opens(fence: _Fence, within: _Fence | None, language: re.Pattern[str]) -> bool:
    """Whether a fence begins a block; in a block, whose end was forgotten, only one with a tag in a line of its own does."""
    if within is not None and not (fence.tag and fence.signs.startswith(within.signs) and fence.begins_its_line()):
        return False
    if fence.signs.startswith("~~~~") and not fence.tag:  # it underlines a heading
        return False
    return language.match(fence.tag) is not None or not fence.tag or (fence.begins_its_line() and bool(_TAG.fullmatch(fence.tag)))
