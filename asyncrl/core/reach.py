"""Describes the places where the product depends on what another project keeps to itself.

A room that replaces, reads or calls such things lists them in its ``patches.py``; ``docs/reference/internals.md`` shows all
lists. What always holds, and a test sees to it: each place in the code is in a list, each entry is still in the code, and each
entry names a
test that fails when the other project changes what it depends on.
"""

from typing import Literal

import msgspec


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What one or several files depend on together.

    Attributes:
        files: the files, below the root of the repository.
        names: what they replace, read or call, with the module that has it. What an object's class cannot be read off the code
            begins with a point. The name of a module or class stands for what is imported from it, but not for what is replaced.
        why: what it is for, and why nothing public does.
        device: where it happens.
        test: a test that fails when the other project changes this, as pytest names it.
        needless: what the other project would have to offer for it to go.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    why: str
    device: Literal["any", "CPU", "GPU"] = "any"
    test: str
    needless: str
