import msgspec

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from learners import checkpoint_manifest
from learners.checkpoint_manifest import Manifest, ModelShape, Progress

SHAPE = ModelShape(
    layers=1,
    hidden=8,
    feed_forward=8,
    heads=1,
    key_value_heads=1,
    head_dim=8,
    vocabulary=16,
    tied_embeddings=True,
    qkv_bias=False,
    qk_norm=False,
    dtype="float32",
)


def test_a_manifest_from_before_layouts_had_a_name_of_their_own_is_read(tmp_path):
    written = {
        "progress": {"version": 8, "kl_coefficient": None},
        "shape": msgspec.to_builtins(SHAPE),
        "grid": {"tensor": 2, "pipeline": 1, "data": 2, "context": 1, "expert": 1, "expert_tensor": 1},
        "files": [],
    }
    (tmp_path / checkpoint_manifest.NAME).write_bytes(msgspec.json.encode(written))
    expected = Manifest(progress=Progress(PolicyVersion(8)), shape=SHAPE, layout=ParallelLayout(tensor=2, data=2), files=())
    assert Manifest.read(tmp_path) == expected
