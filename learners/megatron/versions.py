"""The versions of megatron-core that the learner runs with, and what differs between them. Needs no torch.

All other code suits each of them:

* Saving and loading changed in 0.19, but not what they are made of, which :mod:`.state.checkpoint_writer` and
  :mod:`.state.checkpoint_reader` use: checkpoints are the same.
* 0.19 gives feed-forward blocks process groups and names when it makes them; :class:`.layers.layer_spec.GatedMLP` needs none.
* 0.19 wants one more process group for the interleaved schedule: :func:`.pipeline.communication`.
* 0.19 logs warnings that nobody who runs asyncrl can act on: :func:`silence`.
"""

import logging

VERSIONS = {"0.16.1": "Python 3.11", "0.19.2": "Python 3.12 and later"}
"""The versions, and the Python that each is installed with. Each reads the checkpoints of the other."""
_SAID = {
    "megatron.core.models.gpt.gpt_model": "GPTModel IS DEPRECATED",
    "megatron.core.distributed.distributed_data_parallel": "DistributedDataParallel: full_param_layout not provided",
}
"""What those warnings begin with, by logger."""


class _WithoutBeginning(logging.Filter):
    """Leaves out records that begin with a text."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self._beginning = beginning

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(self._beginning)


def silence() -> None:
    """Leave out the warnings about what asyncrl itself does. Call it once in a process."""
    for name, beginning in _SAID.items():
        logging.getLogger(name).addFilter(_WithoutBeginning(beginning))
