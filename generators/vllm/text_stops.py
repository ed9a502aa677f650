"""Ends turns, in vLLM's engine process, at texts that the recipe names (``sampling.stop``).

vLLM looks for texts in its front end, after the step that completed them, when further tokens may have been sampled; turns never
pass there. What always holds: a turn ends with the token that completes the first of the texts, whatever else that token holds;
and tokens and log-probabilities are those that a turn without such texts has up to there.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.episodes.writer import Decode, decoder

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.request import Request

STOP_AT_TEXTS = "stop_at_texts"
"""The name under which vLLM's engine process has :func:`stop_at_texts` as a method."""
STOP_TEXTS = "stop_texts"
"""The name under which a request's texts are among vLLM's extra arguments of sampling."""
_BEFORE = 8
"""Tokens that are decoded before those that a text may consist of: the first ones may read otherwise than within a turn."""
_UNREADABLE = "\ufffd"
"""What bytes become that are no whole character."""


def stop_at_texts(core: "EngineCoreProc") -> None:
    """Have this engine end turns at texts from its next step on. Meant for one call, before the first request."""
    from vllm.v1.core.sched import scheduler
    from vllm.v1.request import RequestStatus

    stops, check_stop = TextStops(core.vllm_config.model_config.tokenizer), scheduler.check_stop

    def checking(request: "Request", max_model_len: int) -> bool:
        params = request.sampling_params
        texts = params.extra_args.get(STOP_TEXTS) if params is not None and params.extra_args else None
        if texts and stops.complete(request.output_token_ids, tuple(texts)):
            request.status = RequestStatus.FINISHED_STOPPED
            return True
        return bool(check_stop(request, max_model_len))

    scheduler.check_stop = checking


class TextStops:
    """Finds texts at the end of what has been sampled.

    Args:
        folder: the folder of the model's tokenizer, which is loaded when it is needed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._may_end: Callable[[tuple[str, ...]], frozenset[int]] = lru_cache(self._candidates)

    def complete(self, token_ids: Sequence[int], texts: tuple[str, ...]) -> bool:
        """Whether the last of ``token_ids`` completes one of ``texts``, none of which the tokens before it hold."""
        if token_ids[-1] not in self._may_end(texts):
            return False
        most = max(len(text.encode()) for text in texts)  # of the tokens of a text: each has a byte of it at least
        tail = self._decode(list(token_ids[-most - _BEFORE :]))
        return any(text in tail for text in texts)

    @cached_property
    def _decode(self) -> Decode:
        return decoder(self._folder)

    @cached_property
    def _pieces(self) -> list[str]:
        """What each token reads as by itself."""
        from transformers import AutoTokenizer  # takes seconds; few recipes name texts

        entries = len(AutoTokenizer.from_pretrained(self._folder))
        return [self._decode([token_id]) for token_id in range(entries)]

    def _candidates(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Return the tokens that may complete one of ``texts``: those that hold its last character, or a part of one."""
        last = {text[-1] for text in texts}
        # Some tokenizers drop a blank where a token stands by itself.
        every = any(character.isspace() for character in last)
        return frozenset(
            token_id for token_id, piece in enumerate(self._pieces) if every or _UNREADABLE in piece or not last.isdisjoint(piece)
        )
