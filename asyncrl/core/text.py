"""Makes text that can be written anywhere."""

TOLD_CHARACTERS = 4_000
"""How many characters of an error's text are kept: some hold a whole page, and they go to logs, journal and summary."""


def writable(text: str) -> str:
    r"""``text`` with each lone half of a surrogate pair spelt out (``\udcff``): UTF-8 has no bytes for it.

    Models write such halves in JSON, and operating systems put them into file names that are not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """The text of what the user's code raised."""
    try:
        return str(error)
    except BaseException as worse:  # noqa: BLE001 - the text is the user's code, too
        return f"(no text: its __str__ raised {type(worse).__name__})"


def told(error: BaseException) -> str:
    """The name and text of what the user's code raised; a very long text loses its middle."""
    text = text_of(error)
    if (lost := len(text) - TOLD_CHARACTERS) > 0:
        half = TOLD_CHARACTERS // 2
        text = f"{text[:half]} [{lost:,} characters cut] {text[-half:]}"
    return f"{type(error).__name__}: {text}"
