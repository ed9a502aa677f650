"""Text that can be written anywhere."""


def writable(text: str) -> str:
    r"""``text`` with each half of a surrogate pair spelt out (``\udcff``): it is no character, and UTF-8 has no bytes for it.

    Models write them in JSON, and operating systems put them into names of files that are no UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()
