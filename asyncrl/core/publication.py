"""What the learner publishes: where the weights of one policy version lie, and what they must hash to.

Every learner rank writes the pieces it owns; no rank needs the whole model. A piece is a rectangle of one Hugging Face tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from asyncrl.core.ids import PolicyVersion

VLLM_BACKEND = "asyncrl_shm"
"""Name of the vLLM weight-transfer backend that loads publications."""
PREPARE, LOAD = "prepare_publication", "load_publication"
"""The methods of vLLM's engine process that make a publication ready and load it; see
:mod:`asyncrl.weights.vllm.engine_weights`."""

LEFT_FREE = 1 << 30
"""Bytes of an engine's GPU that a publication, taken beside the weights in use, must leave free."""

if TYPE_CHECKING:
    import torch


class Shard(msgspec.Struct, frozen=True):
    """A rectangle of one Hugging Face tensor, held by one rank.

    Attributes:
        name: Hugging Face name, e.g. ``model.layers.0.self_attn.q_proj.weight``.
        shape: shape of the whole tensor.
        start: index in the whole tensor of the rectangle's first element; its extent is ``tensor.shape``.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    tensor: torch.Tensor


class ShardRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of one shard lie: contiguous, row-major, at byte ``offset`` of ``Publication.files[file]``.

    ``dtype`` is a torch dtype's name, e.g. ``bfloat16``.
    """

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]
    extent: tuple[int, ...]
    dtype: str
    file: int
    offset: int


class WeightFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that holds shards of a publication.

    Attributes:
        path: where it lies on its node.
        node: Ray's id of that node; empty where only one host is concerned.
        size: how many of its bytes, from the first on, belong to the publication; the file may be longer.
    """

    path: str
    node: str
    size: int


class BroadcastAddress(msgspec.Struct, frozen=True, array_like=True):
    """Where a rank broadcasts its file to the GPUs of engines.

    Attributes:
        host, port: where it is asked to.
        secret: what whoever asks must show.
        seconds: the deadline of each step of it.
    """

    host: str
    port: int
    secret: bytes
    seconds: float

    def __repr__(self) -> str:
        """Show nothing of the secret."""
        return f"BroadcastAddress({self.host}:{self.port})"


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """One published policy version, or the part of it that one rank wrote.

    Attributes:
        files: the files that hold the bytes. Engines read a publication whose files all lie on their own node.
        copies: the same files on each further node of the engine that reads it.
        shards: which rectangles they hold; together they cover every tensor exactly once.
        fingerprints: the fingerprint of each shard, so that an engine's worker can prove those that it reads.
        fingerprint: their sum, modulo 2**64: a sum over all elements, whatever the shards. Every engine must acknowledge with
            the same number. If the optimizer changed the weights, it differs from the last version's.
        senders: who broadcasts each file, if engines are to get it so instead of reading it; else empty.
    """

    version: PolicyVersion
    files: tuple[WeightFile, ...]
    shards: tuple[ShardRecord, ...]
    fingerprints: tuple[int, ...]
    fingerprint: int
    senders: tuple[BroadcastAddress, ...] = ()
    copies: tuple[tuple[WeightFile, ...], ...] = ()

    def on_node(self, number: int) -> Publication:
        """Return the publication as the workers on a node of an engine read it; node 0 has ``files`` themselves."""
        return msgspec.structs.replace(self, files=(self.files, *self.copies)[number], copies=())
