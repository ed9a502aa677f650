"""Takes one row out of a micro-batch, with all that was prepared for it, so that it can be trained alone.

What always holds: the row has the tokens, advantages, shares and log-probabilities that it has in the micro-batch, so the
gradients of all rows, each taken alone, add up to the gradient of the micro-batch, up to rounding.
"""

from itertools import accumulate

import msgspec
import torch
from torch import Tensor

from asyncrl.learners.algorithm.segments import Segments
from asyncrl.learners.batches.micro_batch import MicroBatch


def single_row(batch: MicroBatch, row: int, multiple: int) -> MicroBatch:
    """Return row number ``row`` of a micro-batch as one of its own, in which a shared prefix is laid down for it alone.

    Args:
        multiple: what the number of tokens must be divisible by, as in :func:`.micro_batch.pack`.
    """
    starts = [0, *accumulate(batch.lengths)]
    leading = int(batch.preamble > 0)
    own = leading + len(batch.prefixes) + row
    segments = [own]
    for number, continuing in enumerate(batch.prefixes):
        if row in continuing:
            segments = [*range(leading), leading + number, own]
    tokens = torch.cat([batch.token_ids[starts[each] : starts[each + 1]] for each in segments])
    before = len(tokens) - batch.lengths[own]
    padding = -len(tokens) % multiple
    experts = batch.experts
    if experts is not None:
        stretches = [experts[:, starts[each] : starts[each + 1]] for each in segments]
        experts = torch.cat([*stretches, experts.new_full((len(experts), padding, experts.shape[2]), -1)], dim=1)
    chosen = batch.rows.index == row
    _, turns = batch.turns.index[chosen].unique_consecutive(return_inverse=True)
    picked = {
        name: value[chosen]
        for name, value in msgspec.structs.asdict(batch).items()
        if isinstance(value, Tensor) and name not in ("token_ids", "positions", "experts")
    }
    return msgspec.structs.replace(
        batch,
        **picked,
        token_ids=torch.cat([tokens, tokens.new_zeros(padding)]),
        lengths=(len(tokens), padding) if padding else (len(tokens),),
        prefixes=(),
        preamble=0,
        positions=batch.positions[chosen] - starts[own] + before,
        rows=Segments(torch.zeros_like(batch.rows.index[chosen]), 1),
        turns=Segments(turns, int(turns.max()) + 1 if len(turns) else 0),
        names=batch.names[row : row + 1],
        experts=experts,
    )
