"""Adapters of several versions in one engine, applied by vLLM beside weights that never change.

vLLM has one buffer of matrices more than there are slots. A new version is written into the buffer that no slot names, while the
engine goes on sampling from the others; to use it, a slot is made to name this buffer, and the buffer it named before is the
free one from then on. What always holds: the adapters in a slot came from one publication, which brought exactly the two matrices
of each projection that the recipe names. A slot that nothing was put into adds zero.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from asyncrl.core.adapters import AdapterSettings, adapter_id
from asyncrl.core.errors import WeightMismatch

if TYPE_CHECKING:
    from vllm.lora.model_manager import LoRAModelManager

_ANY_ID = 1
"""vLLM wants a number for adapters on their way to a buffer, and does not look at it."""


class AdapterSlots:
    """The slots of one vLLM worker, which was started with LoRA. Construction fills all of them with zeros.

    Args:
        model: vLLM's model.
        settings: the run's adapters.
    """

    def __init__(self, model: torch.nn.Module, settings: AdapterSettings) -> None:
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper

        manager: Any = model.lora_manager
        self._manager: LoRAModelManager = manager
        self._helper = PEFTHelper(settings.rank, settings.alpha, list(settings.targets))
        for slot in range(settings.versions):
            # vLLM finds these registered and active for ever, so it never looks for their files.
            self._manager._registered_adapters[adapter_id(slot)] = LoRAModel(adapter_id(slot), settings.rank, {})
            self._manager.activate_adapter(adapter_id(slot))
        self._free = self._manager.lora_index_to_id.index(None)

    @torch.no_grad()
    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write adapters into the free buffer. May run in any thread.

        Args:
            tensors: both matrices of each projection, under PEFT's names.

        Raises:
            WeightMismatch: vLLM applies some of them nowhere.
        """
        from vllm.lora.lora_model import LoRAModel

        manager = self._manager
        # Copies, because vLLM multiplies by the scale in place.
        owned = {name: tensor.to(manager.device, copy=True) for name, tensor in tensors.items()}
        adapters = LoRAModel.from_lora_tensors(_ANY_ID, owned, self._helper, device=str(manager.device))
        manager._create_merged_loras_inplace(adapters)
        unreached = adapters.loras.keys() - manager.modules.keys()
        if unreached:
            raise WeightMismatch(
                f"the engine's model applies no adapters to {', '.join(sorted(unreached))}; leave them out of "
                "learner.lora.targets, or set learner.lora.publish to merged"
            )
        for name, module in manager.modules.items():
            matrices: Any = adapters.get_lora(name)
            if matrices is None:
                module.reset_lora(self._free)
            else:
                module.set_lora(self._free, matrices.lora_a, matrices.lora_b)

    def put_into_slot(self, slot: int) -> None:
        """Put what was written into ``slot``. Call it between two steps of the engine."""
        buffers, name = self._manager.lora_index_to_id, adapter_id(slot)
        before = buffers.index(name)
        buffers[self._free], buffers[before] = name, None
        self._free = before
