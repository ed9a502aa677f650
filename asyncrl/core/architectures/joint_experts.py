"""Experts whose tensors a folder has in one tensor for all experts of a layer, as gpt-oss does.

What always holds: wherever a folder is read or written, each expert's tensors are apart, as ``BLOCK.experts.NUMBER.NAME``; the
folder's own are ``BLOCK.experts.NAME``, and have the experts along their first dimension. A matrix has a row for each of its
inputs; of the columns of ``gate_up_proj``, the even ones are the gate's.
"""

import re
from typing import NamedTuple

_NAME = r"(?:gate_up|down)_proj(?:_bias)?"
_JOINT = re.compile(rf"(.+\.experts)\.({_NAME})")
_APART = re.compile(rf"(.+\.experts)\.(\d+)\.({_NAME})")


class Stored(NamedTuple):
    """Where a folder has a tensor: the name there and, if it is one expert's, its place along the first dimension."""

    name: str
    expert: int | None


def stored_in(name: str) -> Stored:
    """Return where a folder has the tensor ``name``."""
    found = _APART.fullmatch(name)
    return Stored(f"{found[1]}.{found[3]}", int(found[2])) if found else Stored(name, None)


def names_in(stored: str, experts: int) -> list[str]:
    """Return what the tensors are called that a folder has as ``stored``: that of each of so many experts, or the one itself."""
    found = _JOINT.fullmatch(stored)
    return [f"{found[1]}.{expert}.{found[2]}" for expert in range(experts)] if found else [stored]
