"""Checkpoints that are whole, made without a learner."""

import io
import pickle
from pathlib import Path

import msgspec
import torch
from torch.distributed.checkpoint import Metadata

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.checkpointing import checkpoint_manifest
from asyncrl.learners.checkpointing.checkpoint_manifest import CheckpointShape, Manifest, Progress, StoredFile

SHAPE = CheckpointShape(
    layers=1,
    hidden=8,
    feed_forward=8,
    heads=1,
    key_value_heads=1,
    head_dim=8,
    vocabulary=8,
    tied_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
    dtype="float32",
)


def make_checkpoint(path: Path, version: PolicyVersion) -> None:
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"weights" * 1000)
    (path / ".metadata").write_bytes(pickle.dumps(Metadata({}, storage_data={})))
    (path / "common.pt").write_bytes(saved_by_torch({"step": version}))
    seal(path, version)


def saved_by_torch(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def seal(checkpoint, version):
    """Write the manifest of what lies in a checkpoint now."""
    files = tuple(StoredFile.of(file) for file in sorted(checkpoint.iterdir()) if file.name != checkpoint_manifest.NAME)
    manifest = Manifest(progress=Progress(version), shape=SHAPE, layout=ParallelLayout(), files=files)
    (checkpoint / checkpoint_manifest.NAME).write_bytes(msgspec.json.encode(manifest))
