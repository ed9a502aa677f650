"""What an engine says of the experts that it sent tokens to, checked, and packed as trajectories keep it.

What always holds: an engine that was started to say it says it of every token that it was asked about, or the answer is an error.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncrl.core.architectures.known import KNOWN
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.routed_experts import RoutedExperts

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine


class EngineRouting(NamedTuple):
    """The layers of an engine's model.

    Attributes:
        layers: int [n], the layers that have experts.
        experts: experts of such a layer.
    """

    layers: np.ndarray
    experts: int

    @classmethod
    def of(cls, llm: "AsyncLLMEngine") -> "EngineRouting | None":
        """Return that of an engine that says which experts it chose; None if it does not."""
        config = llm.vllm_config
        if not config.aux_output_config.enabled:
            return None
        source = config.model_config.hf_text_config
        mixture = KNOWN[source.architectures[0]].mixture(source)
        return cls(np.flatnonzero(mixture.layers), mixture.experts)

    def told(self, parts: Sequence[np.ndarray], tokens: int) -> RoutedExperts:
        """Return what vLLM said of ``tokens`` tokens, in ``parts`` [tokens, all layers, per_token].

        Raises:
            ComponentFailed: it is not what was asked for.
        """
        found = sum(map(len, parts))
        if found != tokens or not parts:
            raise ComponentFailed(
                f"the vLLM engine was asked for the experts of {tokens} tokens, and told those of {found}; the learner cannot "
                "replay its routing (learner.experts.replay)"
            )
        chosen = np.concatenate(parts)[:, self.layers]
        if int(chosen.max(initial=0)) >= self.experts:
            raise ComponentFailed(f"the vLLM engine told of expert {chosen.max()}, and a layer has {self.experts}")
        return RoutedExperts.pack(chosen, self.experts)
