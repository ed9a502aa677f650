"""Finds out whether a function of the user's own is pure, and whether its result depends on how rows are packed."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import torch
from torch import Tensor

from asyncrl.core.plug_ins.plug_in_function import FunctionBroken, UserFunction
from asyncrl.learners.algorithm.segments import Segments
from asyncrl.learners.custom.made_rows import MadeRow

STATE = "no random numbers, clock, counters or other state"
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
"""Results that differ by no more than this differ by rounding: sums in another order."""

Given = TypeVar("Given", bound=msgspec.Struct)
Result = TypeVar("Result")


def alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two results are equal up to rounding."""
    return torch.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE)


def called_with_seed(call: Callable[[], Result], seed: int) -> Result:
    """Return what ``call`` returns after torch's generator was seeded; the generator's state is then restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return call()


def pure(function: UserFunction, call: Callable[[UserFunction, Given], Tensor], given: Given) -> Tensor:
    """Return the result for ``given``, after checking that it is the same again and that ``given`` is left as it was.

    Raises:
        FunctionBroken: the function raised an error, returned something else the second time, or changed its argument.
    """
    before = _copies(given)
    found = called_with_seed(lambda: call(function, given), 0)
    for name, tensor in _copies(given).items():
        if not torch.equal(tensor, before[name]):
            raise function.broken(f"changed {name} of its argument", "make a new tensor, e.g. with torch.where or .clone()")
    if not torch.equal(called_with_seed(lambda: call(function, given), 1), found):
        problem = "returned two results for the same argument"
        raise function.broken(problem, f"compute it from the argument and the options alone: {STATE}")
    return found


def _copies(given: msgspec.Struct) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, value in msgspec.structs.asdict(given).items():
        if isinstance(value, Segments):
            tensors[f"{name}.index"] = value.index.clone()
        elif isinstance(value, Tensor):
            tensors[name] = value.detach().clone()
    return tensors


def refuse_packing(
    function: UserFunction, what: str, compute: Callable[[Sequence[MadeRow]], Tensor], rows: Sequence[MadeRow]
) -> None:
    """Refuse a function of tokens whose result for a row depends on the other rows of the micro-batch, or on their order.

    Args:
        what: what the function computes of each token, e.g. ``loss``.
        compute: computes it for a micro-batch of some rows, end to end.

    Raises:
        FunctionBroken: the function raised an error, or a row's result differs.
    """
    expected = compute(rows).split([len(row.logp) for row in rows])
    backwards = list(range(len(rows)))[::-1]
    packings = [
        ("in another order", [backwards]),
        ("alone in a micro-batch", [[number] for number in backwards]),
        ("in two micro-batches", [backwards[:3], backwards[3:]]),
    ]
    for how, micro_batches in packings:
        for numbers in micro_batches:
            found = compute([rows[number] for number in numbers]).split([len(rows[number].logp) for number in numbers])
            for number, of_row in zip(numbers, found, strict=True):
                if not alike(of_row, expected[number]):
                    at = int((of_row - expected[number]).abs().argmax())
                    raise function.broken(
                        f"gives a token of row {number} the {what} {expected[number][at].item():g} beside the other rows and "
                        f"{of_row[at].item():g} {how}, so micro-batches and ranks would change the gradient",
                        "take sums, means and maxima over a row or turn, e.g. tokens.rows.means(values, "
                        "tokens.mask)[tokens.rows.index], and never over all tokens; what compares rows belongs into "
                        "algorithm.advantage",
                    )
    try:
        compute([])
    except FunctionBroken as error:
        problem = f"{error.problem}, for a micro-batch without rows, which ranks may get"
        raise function.broken(problem, "return a tensor of shape (0,) there") from error
