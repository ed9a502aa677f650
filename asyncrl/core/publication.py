"""What the learner publishes: where the weights of one policy version lie, and what they must hash to."""

import msgspec

from asyncrl.core.ids import PolicyVersion


class TensorRecord(msgspec.Struct, frozen=True, array_like=True):
    """One Hugging Face tensor inside the published bytes. ``offset`` is in bytes; ``dtype`` is a torch name such as ``float32``."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """One published policy version.

    Attributes:
        version: the policy version these weights are.
        path: the file that holds the bytes of every tensor (for ``shm``, a file in the memory file system).
        tensors: the layout of ``path``.
        fingerprint: of all tensors together; independent of how they were sharded. Every engine must acknowledge with the same
            number, and two versions in a row must differ.
    """

    version: PolicyVersion
    path: str
    tensors: tuple[TensorRecord, ...]
    fingerprint: int
