"""Stand-ins in torch for TransformerEngine's C functions of attention over packed rows, which ranks may divide.

Of a divided row, a rank has two chunks, which are called its halves. ``bounds`` are where the rows begin and end.
"""

import sys
from typing import Any

import torch
from torch import Tensor


class Request:
    """A transfer, whose end may be waited for twice, as with NCCL: gloo would wait for another one."""

    def __init__(self, transfer: Any) -> None:
        self._waits = [transfer.wait]

    def wait(self) -> None:
        if self._waits:
            self._waits.pop()()


def transfers_waited_for_twice(transfers: Any) -> Any:
    """Return a function as TransformerEngine's ``flash_attn_p2p_communicate``, over gloo."""
    return lambda *arguments: [Request(each) for each in transfers(*arguments)]


def attention(self: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **options: Any) -> Tensor:
    """In place of ``DotProductAttention.forward``, which chooses among kernels and finds none for float32."""
    from transformer_engine.pytorch.attention.dot_product_attention.context_parallel import attn_forward_func_with_cp

    assert (options["qkv_format"], options["attn_mask_type"]) == ("thd", "padding_causal")
    bounds, longest = options["cu_seqlens_q"], options["max_seqlen_q"]
    assert max(bounds.diff().tolist()) == longest
    if self.cp_group is None:
        scale = query.size(-1) ** -0.5
        rows = zip(*(each.split(bounds.diff().tolist()) for each in (query, key, value)), strict=True)
        return torch.cat([_forward(*row, scale, causal=True)[0] for row in rows]).flatten(1)
    return attn_forward_func_with_cp(
        *(torch.is_grad_enabled(), query, key, value.contiguous(), bounds, bounds, longest, longest),
        *(options["cu_seqlens_q_padded"], options["cu_seqlens_kv_padded"], 0.0),
        *(self.cp_group, self.cp_global_ranks, self.cp_stream, self.cp_comm_type),
        qkv_format="thd",
        attn_mask_type="padding_causal",
        use_fused_attention=True,
    ).flatten(1)


def get_fused_attn_backend(*_: Any, **__: Any) -> Any:
    """What cuDNN has for packed causal rows of an H100."""
    return sys.modules["transformer_engine_torch"].NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen


# fmt: off
def fused_attn_fwd(
    longest, longest_keys, training, scale, dropout, zero, layout, of_bias, mask, of_softmax, window,
    bounds, of_keys, q, k, v, *rest,
):
    """The attention of each row, the logarithm of each query's sum [t, heads, 1], and a state of random numbers."""
    queries, keys = _checked(longest, bounds, q), _checked(longest_keys, of_keys, k)
    assert dropout == 0.0
    rows = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    outputs, sums = zip(*(_forward(*row, scale, _is_causal(mask)) for row in rows), strict=True)
    return [torch.cat(outputs), torch.cat(sums)[..., None], torch.zeros(2, dtype=torch.int64)]


def fused_attn_bwd(
    longest, longest_keys, scale, dropout, zero, layout, of_bias, mask, of_softmax, window, repeatable,
    bounds, of_keys, q, k, v, out, gradient, dtype, dqkv_dtype, kept, *rest,
):
    """The gradients of queries, keys and values, by the sums over all keys that queries see, here or on other ranks."""
    queries, keys = _checked(longest, bounds, q), _checked(longest_keys, of_keys, k)
    rows = zip(
        *(each.split(queries) for each in (gradient.reshape(q.shape), out.reshape(q.shape), kept[0], q)),
        *(each.split(keys) for each in (k, v)), strict=True,
    )
    gradients = zip(*(_backward(*row, scale, _is_causal(mask)) for row in rows), strict=True)
    return [*(torch.cat(each) for each in gradients), None, None]
# fmt: on


def thd_read_half_tensor(tensor, bounds, half):
    return tensor[_half(bounds, half)]


def thd_read_second_half_lse(sums, bounds, packed, length):
    assert packed
    second = sums[:, _half(bounds, 1)]
    assert second.size(1) == length
    return second


def thd_second_half_lse_correction(sums, of_step, bounds, packed):
    assert packed
    second = _half(bounds, 1)
    sums[:, second] = torch.logaddexp(sums[:, second], of_step)


def thd_out_correction(out, of_step, sums, sums_of_step, bounds, second_half, packed):
    """Add what a step gave, with its share of the sums; ``sums`` are [heads, t]."""
    assert packed
    places = _half(bounds, 1) if second_half else slice(None)
    share = (sums_of_step - sums[:, places]).exp().T[..., None]
    out[places] += (of_step.view(-1, *out.shape[1:]) * share).to(out.dtype)


def thd_grad_correction(gradient, of_step, bounds, first, second):
    for half, act in enumerate((first, second)):
        places = _half(bounds, half)
        given = of_step if "none" in (first, second) else of_step[places]
        if act == "add":
            gradient[places] += given
        elif act == "copy":
            gradient[places] = given


FUNCTIONS = (
    *(get_fused_attn_backend, fused_attn_fwd, fused_attn_bwd, thd_read_half_tensor, thd_read_second_half_lse),
    *(thd_second_half_lse_correction, thd_out_correction, thd_grad_correction),
)


def _checked(longest, bounds, tensor):
    """The rows' lengths."""
    lengths = bounds.diff().tolist()
    assert (max(lengths), sum(lengths)) == (longest, len(tensor))
    return lengths


def _is_causal(mask):
    kinds = sys.modules["transformer_engine_torch"].NVTE_Mask_Type
    assert mask in (kinds.NVTE_PADDING_CAUSAL_MASK, kinds.NVTE_PADDING_MASK)
    return mask == kinds.NVTE_PADDING_CAUSAL_MASK


def _half(bounds, half):
    """The places of the first or second half of each row."""
    pairs = zip(bounds.tolist(), bounds.diff().tolist(), strict=False)
    return torch.cat([torch.arange(length // 2) + start + half * (length // 2) for start, length in pairs])


def _scores(query, key, scale, causal):
    """[heads, queries, keys]"""
    key = key.repeat_interleave(query.size(1) // key.size(1), 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    return scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf")) if causal else scores


def _forward(query, key, value, scale, causal):
    scores = _scores(query, key, scale, causal)
    value = value.repeat_interleave(query.size(1) // value.size(1), 1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value.float()).to(query.dtype), scores.logsumexp(-1).T


def _backward(gradient, out, sums, query, key, value, scale, causal):
    groups, repeats = key.size(1), query.size(1) // key.size(1)
    gradient, weights = gradient.float(), (_scores(query, key, scale, causal) - sums[..., 0].T[..., None]).exp()
    of_weights = torch.einsum("qhd,khd->hqk", gradient, value.float().repeat_interleave(repeats, 1))
    of_scores = weights * (of_weights - (gradient * out.float()).sum(-1).T[..., None]) * scale
    of_query = torch.einsum("hqk,khd->qhd", of_scores, key.float().repeat_interleave(repeats, 1))
    of_key = torch.einsum("hqk,qhd->khd", of_scores, query.float())
    of_value = torch.einsum("hqk,qhd->khd", weights, gradient)
    of_key, of_value = (each.unflatten(1, (groups, repeats)).sum(2) for each in (of_key, of_value))
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)
