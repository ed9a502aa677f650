"""What was sampled in a turn, as its client sees it."""

from collections.abc import Sequence

import msgspec


class SampledText(msgspec.Struct, frozen=True):
    """A turn as the client sees it.

    Attributes:
        text: without the token that ended it, and without the stop string and what follows.
        logprobs: of each token.
        stopped: whether the turn ended by itself or at a stop string; if not, it reached a limit.
        stop_string: the stop string with which it ended; None if with none.
    """

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    stopped: bool
    stop_string: str | None
