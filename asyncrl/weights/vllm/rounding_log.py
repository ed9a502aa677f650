"""Explains a warning of vLLM that a run would log for every tensor of every version.

Publications have the learner's precision. If the engines have a lower one (``generators.dtype``), vLLM rounds each tensor when it
loads it, which is what the recipe asks for, and warns of each.
"""

import logging

_ATTEMPTED = "Attempted to load weight %s with dtype %s into parameter with dtype %s"
_LOGGER = "vllm.model_executor.models.utils"
_ROUNDED = {"torch.float32": {"torch.bfloat16", "torch.float16"}}
"""From which precision to which others weights are rounded as a recipe asks for it."""


class _FirstOnly(logging.Filter):
    """Passes on the first warning that weights are rounded, in other words, and none after it."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg != _ATTEMPTED or not isinstance(record.args, tuple) or len(record.args) != 3:
            return True
        _, given, kept = map(str, record.args)
        if kept not in _ROUNDED.get(given, ()):
            return True
        if self._passed:
            return False
        self._passed = True
        record.msg = "weights of %s are rounded to the engine's %s, as generators.dtype says; this is logged once"
        record.args = (given, kept)
        return True


def explain_rounding() -> None:
    """Have vLLM log once in this process that it rounds weights to the engine's precision. Safe to call again."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(each, _FirstOnly) for each in logger.filters):
        logger.addFilter(_FirstOnly())
