"""What the routers of a rank are told of a micro-batch, and what they tell of it: the experts that engines chose, and their own.

What always holds: each token of a micro-batch, in each layer with experts, is one router's on one rank, so what all ranks count
adds up to exact values of the whole batch; a layer that is computed again for the backward pass chooses the same experts again,
and counts nothing again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import Tensor

from asyncrl.learners.batches.expert_use import ExpertUse
from asyncrl.learners.batches.micro_batch import MicroBatch

TopK = Callable[..., tuple[Tensor, Tensor]]


class TokenRouting:
    """The routing of this rank's tokens of one micro-batch.

    Args:
        chosen: int64 [layers with experts, t, per_token], the experts that engines chose; -1 where none did. None if routers
            choose.
        own: bool [t], the tokens that are no padding.
        ages: int64 [t], the staleness of the token that is sampled after each token and is in the loss; -1 where none is.
        use: counts what routers do; None if nobody wants to know.

    Attributes:
        padding: bool [1, t], the tokens that are padding.
        auxiliary: factor of the auxiliary loss of each layer, which is that of this micro-batch; 0 if there is none.
    """

    def __init__(self, chosen: Tensor | None, own: Tensor, ages: Tensor, use: ExpertUse | None, auxiliary: float = 0.0) -> None:
        self._chosen, self._own, self._ages, self._use = chosen, own, ages, use
        self.padding, self.auxiliary = ~own.unsqueeze(0), auxiliary
        self._seen: set[int] = set()

    @classmethod
    def of(cls, batch: MicroBatch, places: Tensor, use: ExpertUse | None, *, replayed: bool, auxiliary: float) -> "TokenRouting":
        """Return the routing of tokens of a micro-batch.

        Args:
            places: int64 [t], the place of each token in the micro-batch; -1 for padding.
            replayed: whether routers take the experts that engines chose.
            auxiliary: factor of the auxiliary loss of the whole batch, for each of its tokens.
        """
        known = places.clamp(min=0)
        own = (places >= 0) & (places < batch.computed_tokens)
        ages = torch.full_like(batch.token_ids, -1)
        ages[batch.positions] = torch.where(batch.mask, batch.staleness, -1).to(ages.dtype)
        chosen = None
        if replayed and batch.experts is not None:
            chosen = batch.experts[:, known].long().masked_fill_(~own[None, :, None], -1)
        return cls(chosen, own, ages[known].masked_fill(~own, -1), use, auxiliary * batch.computed_tokens)

    def take(self, layer: int, found: Tensor) -> Tensor:
        """Return the experts that tokens go to, int64 [t, per_token].

        Args:
            layer: the layer's place among those with experts.
            found: those that the router would choose.
        """
        taken = found
        if self._chosen is not None:
            chosen = self._chosen[layer]
            taken = torch.where(chosen >= 0, chosen, found)
        if self._use is not None and layer not in self._seen:
            self._seen.add(layer)
            self._use.count(layer, taken, self._own)
            if self._chosen is not None:
                self._use.compare(self._chosen[layer], found, self._ages)
        return taken


class Choice:
    """Chooses the experts of one router: stands where Megatron's router has its own ``RouterReplay``, which keeps the experts of
    all micro-batches in flight in lists of the whole process.

    Attributes:
        layer: the layer's place among those with experts.
        routing: of the micro-batch that the router is about to see.
    """

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self.routing: TokenRouting | None = None

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: TopK | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the scores of the experts that tokens go to, and their numbers, both [t, topk]; the name is Megatron's."""
        assert default_compute_topk is not None
        if num_groups is None or group_topk is None:
            own_scores, found = default_compute_topk(scores, topk)
        else:
            own_scores, found = _from_best_groups(scores, topk, num_groups, group_topk)
        if self.routing is None:
            return own_scores, found
        taken = self.routing.take(self.layer, found)
        return (own_scores, found) if taken is found else (scores.gather(1, taken), taken)


def _from_best_groups(scores: Tensor, topk: int, groups: int, chosen: int) -> tuple[Tensor, Tensor]:
    """Choose from those ``chosen`` of ``groups`` groups of experts whose two best scores add up to most (DeepSeek-AI 2024,
    arXiv:2412.19437). Megatron adds up ``topk // chosen`` scores of a group, which is two in DeepSeek's own models."""
    of_groups = scores.unflatten(1, (groups, -1))
    best = of_groups.topk(2, dim=2).values.sum(2).topk(chosen, dim=1).indices
    out = torch.ones_like(of_groups[:, :, 0], dtype=torch.bool).scatter(1, best, value=False)
    values, found = of_groups.masked_fill(out.unsqueeze(2), -torch.inf).flatten(1).topk(topk, dim=1)
    return values, found


def choose_for(layers: Iterator[torch.nn.Module], with_experts: Sequence[bool]) -> None:
    """Have the routers of ``layers`` take what the micro-batch says that each layer is given (``packed_seq_params.routing``).

    Args:
        with_experts: for each layer of the whole model, whether it has experts.
    """
    for layer in layers:
        if isinstance(layer, TransformerLayer) and isinstance(layer.mlp, MoELayer):
            router = layer.mlp.router
            router.router_replay = Choice(sum(with_experts[: layer.layer_number - 1]))
            # The auxiliary loss has its factor from the micro-batch, and loads are counted here: Megatron's own counting fails
            # where it is told of padding.
            router.calculate_per_token_loss = router.enable_expert_bias = False
            # A layer that is computed again is given the same rows again, whichever micro-batches have passed meanwhile.
            layer.register_forward_pre_hook(_tell, with_kwargs=True)


def _tell(layer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    routing: TokenRouting = options["packed_seq_params"].routing
    layer.mlp.router.router_replay.routing = routing
    if not routing.auxiliary:
        return arguments, options
    layer.config.moe_aux_loss_coeff = routing.auxiliary
    return arguments, options | {"padding_mask": routing.padding}


@torch.no_grad()
def balance(layers: Iterator[torch.nn.Module], loads: Tensor, rate: float) -> None:
    """Change the bias by which each router of ``layers`` chooses: up by ``rate`` for experts with less than an even load, down
    for those with more (Wang et al. 2024, arXiv:2408.15664).

    Args:
        loads: [layers with experts, experts], how often each expert was chosen, on all ranks.
    """
    for router in layers:
        if isinstance(router, TopKRouter):
            load = loads[router.router_replay.layer]
            router.expert_bias += rate * torch.sign(load.mean() - load).to(router.expert_bias.dtype)
