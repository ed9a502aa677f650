"""Finds the weights that vLLM makes of those that it loads, such as the absorbed projections of latent attention.

What always holds: an engine takes publications only if vLLM makes each of these anew whenever it has loaded new weights. Copies
into a model's parameters leave them as they were, so there is no load plan for a model that has any.
"""

import torch

from asyncrl.core.errors import WeightMismatch


def derived_weights(model: torch.nn.Module) -> set[str]:
    """Return the names of the parameters that were not there before vLLM had loaded weights, and are in no checkpoint.

    Raises:
        WeightMismatch: vLLM would not make one anew of new weights.
    """
    from vllm.model_executor.layers.attention import is_deferred_attention_layer
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS

    found, stale = set[str](), set[str]()
    for place, layer in model.named_modules():
        loadable, _ = get_layerwise_info(layer).restore_metadata
        there = {name for name, parameter in layer._parameters.items() if parameter is not None}
        made = {f"{place}.{name}".lstrip(".") for name in there - loadable.keys() - SKIP_TENSORS}
        renewed = is_deferred_attention_layer(layer) or isinstance(getattr(layer, "quant_method", None), QuantizeMethodBase)
        (found if renewed else stale).update(made)
    if stale:
        raise WeightMismatch(
            f"vLLM has made {', '.join(sorted(stale))} of the weights that it loaded, and would keep them with new ones; "
            f"publications cannot reach {type(model).__name__}"
        )
    return found


def kernels_keep_tensors(model: torch.nn.Module) -> bool:
    """Return whether a layer's attention kernel has tensors of its own, which it may have made of weights. Sinks, which are
    parameters of the model, are none."""
    own = set(model.parameters())
    kernels = (getattr(layer, "impl", None) for layer in model.modules())
    held = (each for kernel in kernels for each in getattr(kernel, "__dict__", {}).values())
    return any(isinstance(each, torch.Tensor) and each not in own for each in held)
