"""Makes text of models and environments harmless to show, on a terminal or in a page, and shows what it hides.

What always holds: the result has no control character but line feed and tab, no character that changes the direction of text, and
no lone half of a surrogate pair. So an episode can neither move the cursor nor colour the terminal nor turn a line around.
"""

from asyncrl.core.text import writable

_PICTURES = 0x2400
"""Unicode has a picture for each control character below 32, such as ``␛`` for escape."""

_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of the text after them."""

_SHOWN = {
    **{code: chr(_PICTURES + code) for code in range(32) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (*_DIRECTIONS, 0x2028, 0x2029)},
}
_ESCAPED = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), *_DIRECTIONS, 0x2028, 0x2029)}
"""Characters to be shown that a string in JSON may hold as they are."""


def visible(text: str) -> str:
    r"""Return ``text`` with control characters as pictures (``␛``) and with direction marks spelt out (``\u202e``)."""
    return writable(text.replace("\r\n", "\n")).translate(_SHOWN)


def visible_json(line: str) -> str:
    r"""Return a line of JSON in which what :func:`visible` would show is escaped (``\u009b``); its value is the same."""
    return line.translate(_ESCAPED)
