"""A run that goes on from a checkpoint goes on as if it had never stopped: to the bit in the same layout, closely in another."""

import argparse
import io
import operator
import os
import pickle
import re
import shutil
from enum import Enum
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import assemble, make_batch, make_model, make_recipe, untimed
from ranks import RankFailed, run_ranks
from test_ranks import distance

from asyncrl.core.files.file_formats import UnknownFormat
from asyncrl.core.measures.metrics import combine
from asyncrl.learners.checkpointing import checkpoint_manifest, checkpoints
from asyncrl.learners.checkpointing.checkpoint_check import check_checkpoint
from asyncrl.learners.checkpointing.checkpoint_manifest import Manifest, StoredFile
from asyncrl.learners.megatron.state.checkpoint_reader import without_extra_state

BEFORE = [make_batch(version) for version in (5, 6, 7)]
AFTER = [make_batch(version) for version in (8, 9)]


def ranks_of(function, folder, *arguments, grid=(1, 1, 1), **learner):
    tensor, pipeline, data = grid
    # The rate changes with the version, so that a schedule resumed at another place gives other weights.
    options = {"min_lr_ratio": 0.1, "weight_decay": 0.1} | learner
    recipe = make_recipe(folder, tensor=tensor, pipeline=pipeline, data=data, **options)
    return run_ranks(function, recipe, folder, *arguments, **msgspec.structs.asdict(recipe.learner.layout))


def train_and_save(folder, target, **options):
    """The weights saved; readings of the steps after; the weights then."""
    saved, reports, shards = zip(*ranks_of(rank_side.train_and_save, folder, BEFORE, target, AFTER, **options), strict=True)
    return assemble(saved), readings_of(reports), assemble(shards)


def load_and_train(folder, source, again=None, **options):
    """Load the checkpoint and train on, as :func:`train_and_save` trains before it saves."""
    results = ranks_of(rank_side.load_and_train, folder, source, AFTER, again, **options)
    versions, loaded, reports, shards = zip(*results, strict=True)
    assert set(versions) == {8}
    return assemble(loaded), readings_of(reports), assemble(shards)


def readings_of(reports):
    """The readings of each step, without the time it took."""
    return [untimed(combine(r for rank in reports for r in rank[step].readings)) for step in range(len(reports[0]))]


def assert_identical(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    """Writes the checkpoint of each layout once: where it lies, and what :func:`train_and_save` returned."""

    @cache
    def written(grid, dtype="float32"):
        target = tmp_path_factory.mktemp("written") / "version-000008"
        return target, *train_and_save(folder, target, grid=grid, dtype=dtype)

    return written


@pytest.fixture(scope="module")
def sound(written):
    """A folder with one checkpoint, written by two ranks."""
    target, *_ = written((1, 1, 2))
    return target


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)], ids=["one", "tp2", "pp2", "dp2"])
def test_the_same_checkpoint_and_batches_give_the_same_bits(folder, written, grid, dtype):
    """And what is trained while the checkpoint is written does not enter it."""
    target, saved, expected, weights = written(grid, dtype)
    loaded, readings, resumed = load_and_train(folder, target, grid=grid, dtype=dtype)
    assert_identical(loaded, saved)
    assert readings == expected
    assert_identical(resumed, weights)
    assert distance(weights, saved) > 1e-3
    assert sorted(path.name for path in target.parent.iterdir()) == ["version-000008"]


@pytest.mark.parametrize(
    ("grid", "read"),
    [((1, 2, 1), (2, 1, 2)), ((1, 1, 1), (2, 2, 1)), ((2, 2, 1), (1, 1, 1)), ((1, 1, 2), (1, 1, 3))],
)
def test_another_layout_goes_on_with_the_same_losses_and_weights(folder, written, grid, read):
    target, saved, expected, weights = written(grid)
    assert_goes_on(load_and_train(folder, target, grid=read), saved, expected, weights)


def assert_goes_on(found, saved, expected, weights):
    loaded, readings, resumed = found
    assert_identical(loaded, saved)
    for step, expected_step in zip(readings, expected, strict=True):
        assert step == pytest.approx(expected_step, rel=1e-5, abs=1e-6)
    assert distance(resumed, weights) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_another_layout_loads_is_to_the_bit_what_was_saved(folder, written, tmp_path, dtype):
    """Weights, master weights and moments; by saving again at once."""
    second = tmp_path / "version-000008"
    first, *before = written((2, 1, 2), dtype)
    found = load_and_train(folder, first, again=second, grid=(1, 2, 1), dtype=dtype)
    if dtype == "float32":
        assert_goes_on(found, *before)
    (stored,) = run_ranks(rank_side.stored_tensors, make_recipe(folder), [first, second])
    assert_identical(*stored)
    for kind in ("param", "exp_avg", "exp_avg_sq"):
        tensors = [tensor for name, tensor in stored[0].items() if name.startswith(f"optimizer.state.{kind}.")]
        assert tensors
        assert all(np.abs(tensor).max() > 0 for tensor in tensors)


def test_weight_decay_is_the_recipes_not_the_checkpoints(folder, written):
    target, *_ = written((1, 1, 1))
    kept, decayed = (ranks_of(rank_side.load_and_train, folder, target, AFTER[:1], weight_decay=decay)[0] for decay in (0.0, 0.5))
    before, plain, smaller = assemble([kept[1]]), assemble([kept[3]]), assemble([decayed[3]])
    (rate,) = {reading.value for reading in kept[2][0].readings if reading.metric.name == "learner/lr"}
    for name, tensor in before.items():
        share = 0.5 if tensor.ndim > 1 else 0.0
        np.testing.assert_allclose(plain[name] - smaller[name], rate * share * tensor, atol=1e-6)


def test_the_learning_rate_is_the_recipes_not_the_checkpoints(folder, written):
    target, *_ = written((1, 1, 1))
    (_, before, _, after), *_ = ranks_of(rank_side.load_and_train, folder, target, AFTER[:1], lr=1e-9)
    after = assemble([after])
    for name, tensor in assemble([before]).items():
        np.testing.assert_allclose(after[name], tensor, atol=1e-7)


def test_version_0_can_be_saved_and_trained_from(folder, tmp_path):
    target, batches = tmp_path / "version-000000", AFTER[:1]
    ((_, expected, weights),) = ranks_of(rank_side.train_and_save, folder, [], target, batches)
    ((version, _, reports, resumed),) = ranks_of(rank_side.load_and_train, folder, target, batches)
    assert version == 0
    assert readings_of([reports]) == readings_of([expected])
    assert_identical(assemble([resumed]), assemble([weights]))


def test_random_streams_go_on(folder, tmp_path):
    for after, later, resumed in ranks_of(rank_side.random_numbers, folder, tmp_path / "version-000000", grid=(1, 2, 1)):
        assert resumed == after != later


def truncate(target):
    path = target / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])


def flip(target):
    path = target / "__1_0.distcp"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture
def copies(sound, tmp_path):
    """Makes damaged copies of the sound checkpoint, by name."""

    def make(name, damage):
        target = tmp_path / name
        shutil.copytree(sound, target)
        damage(target)
        return target

    return make


def test_damage_is_named_on_all_ranks_and_changes_nothing(folder, sound, copies):
    damages = {
        "truncated": (truncate, "__0_0.distcp has "),
        "flipped": (flip, "__1_0.distcp does not have the checksum"),
        "removed": (lambda target: (target / "__1_0.distcp").unlink(), "__1_0.distcp cannot be read (No such file"),
        "no-index": (lambda target: (target / ".metadata").unlink(), ".metadata cannot be read (No such file"),
        "no-manifest": (lambda target: (target / "checkpoint.json").unlink(), "checkpoint.json cannot be read (No such file"),
        "garbage": (lambda target: (target / "checkpoint.json").write_text('{"version": 8'), "checkpoint.json is not a manifest"),
        "absent": (shutil.rmtree, "checkpoint.json cannot be read (No such file"),
    }
    sources = [copies(name, damage) for name, (damage, _) in damages.items()]
    by_rank = ranks_of(rank_side.loads, folder, [*sources, sound], grid=(1, 1, 2))
    *failed, loaded = [list(outcomes) for outcomes in zip(*by_rank, strict=True)]
    start = assemble([outcome[2] for outcome in failed[0]])
    for source, (_, problem), outcomes in zip(sources, damages.values(), failed, strict=True):
        for kind, text, _ in outcomes:
            assert kind == "CheckpointDamaged"
            assert text.startswith(f"checkpoint {source} is damaged: {problem}")
            remedy = "put it back from a copy, or move the folder away, so that the checkpoint before it is used"
            assert text.endswith(f"{remedy}, or start a new run")
            with pytest.raises(checkpoint_manifest.CheckpointDamaged, match=re.escape(problem)):
                check_checkpoint(source)
        assert_identical(assemble([outcome[2] for outcome in outcomes]), start)
    assert [kind for kind, _, _ in loaded] == ["", ""]
    assert distance(assemble([outcome[2] for outcome in loaded]), start) > 1e-3


# --- a checkpoint that somebody else has made or changed, with checksums to match


class Crafted:
    """Pickles as a call of ``function`` when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def saved_by_torch(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def sealing(craft):
    """``craft``, and then a manifest that says of all files what they are now."""

    def crafted(target):
        craft(target)
        manifest = Manifest.read(target)
        files = tuple(StoredFile.of(target / file.name) for file in manifest.files)
        (target / checkpoint_manifest.NAME).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=files)))

    return crafted


def in_place_of_an_object(target, data):
    """Have the index say that one of the checkpoint's objects is ``data``."""
    index = pickle.loads((target / ".metadata").read_bytes())
    (place,) = [place for place in index.storage_data if place.fqn.startswith("random/shard_0.0.0.0")]
    path = target / index.storage_data[place].relative_path
    index.storage_data[place].offset, index.storage_data[place].length = path.stat().st_size, len(data)
    path.write_bytes(path.read_bytes() + data)
    (target / ".metadata").write_bytes(pickle.dumps(index))


def crafted_ways(proof):
    """Ways to have ``proof`` made by whoever loads the checkpoint: what is done to it, and what the refusal says."""
    evil = Crafted(os.mkdir, str(proof))
    shadowed = saved_by_torch({"optimizer_0": argparse.Namespace(lr=1.0)})
    return {
        "index": (lambda target: (target / ".metadata").write_bytes(pickle.dumps(evil)), ".metadata", "posix.mkdir"),
        "old pickle": (lambda target: (target / ".metadata").write_bytes(pickle.dumps(evil, 0)), ".metadata", "posix.mkdir"),
        "attribute": (
            lambda target: (target / ".metadata").write_bytes(pickle.dumps(Crafted(operator.attrgetter, "mkdir"))),
            ".metadata",
            "operator.attrgetter",
        ),
        "common": (lambda target: (target / "common.pt").write_bytes(saved_by_torch(evil)), "common.pt", "posix.mkdir"),
        "common by a new pickle": (
            lambda target: (target / "common.pt").write_bytes(saved_by_torch(evil, pickle_protocol=4)),
            "common.pt",
            "posix.mkdir",
        ),
        "common by Megatron's list": (
            lambda target: (target / "common.pt").write_bytes(shadowed),
            "common.pt",
            "argparse.Namespace",
        ),
        "object": (lambda target: in_place_of_an_object(target, saved_by_torch([evil])), "__0_0.distcp", "posix.mkdir"),
    }


def test_what_a_checkpoint_names_is_not_run_and_told_on_all_ranks(folder, sound, copies, tmp_path):
    proof = tmp_path / "proof"
    ways = crafted_ways(proof)
    sources = [copies(name, sealing(craft)) for name, (craft, _, _) in ways.items()]
    by_rank = ranks_of(rank_side.loads, folder, [*sources, sound], grid=(1, 1, 2))
    assert not proof.exists()
    *refused, loaded = [list(outcomes) for outcomes in zip(*by_rank, strict=True)]
    start = assemble([outcome[2] for outcome in refused[0]])
    for source, (_, file, named), outcomes in zip(sources, ways.values(), refused, strict=True):
        for kind, text, _ in outcomes:
            assert kind == "UnknownClass", text
            assert text.startswith(f"{file} of checkpoint {source} names {named}, which asyncrl never writes into a checkpoint")
            assert "put the checkpoint back from a copy, or move its folder away" in text
            with pytest.raises(checkpoint_manifest.UnknownClass, match=re.escape(text)):
                check_checkpoint(source)
        assert_identical(assemble([outcome[2] for outcome in outcomes]), start)
    assert [kind for kind, _, _ in loaded] == ["", ""]
    check_checkpoint(sound)
    assert not proof.exists()


def test_the_crafted_checkpoints_would_have_run_something(sound, copies, tmp_path):
    """Checks the attack itself: a loader that does not look at the names would have run it."""
    proof = tmp_path / "proof"
    for name in ("index", "old pickle"):
        pickle.loads((copies(f"shown {name}", crafted_ways(proof)[name][0]) / ".metadata").read_bytes())
        proof.rmdir()
    torch.load(io.BytesIO(saved_by_torch([Crafted(os.mkdir, str(proof))])), weights_only=False)
    proof.rmdir()


def elsewhere(target):
    index = pickle.loads((target / ".metadata").read_bytes())
    for info in index.storage_data.values():
        info.relative_path = "../elsewhere"
    (target / ".metadata").write_bytes(pickle.dumps(index))


class EarlierPickler(pickle.Pickler):
    """Pickles members of enumerations as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, value):
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def by_an_earlier_python(target):
    index = pickle.loads((target / ".metadata").read_bytes())
    with (target / ".metadata").open("wb") as file:
        EarlierPickler(file, 4).dump(index)
    assert b"getattr" in (target / ".metadata").read_bytes()


def test_a_checkpoint_that_an_earlier_python_wrote_is_loaded(folder, sound, copies):
    source = copies("earlier", sealing(by_an_earlier_python))
    check_checkpoint(source)
    (((earlier, _, weights), (of_now, _, same)),) = ranks_of(rank_side.loads, folder, [source, sound])
    assert (earlier, of_now) == ("", "")
    assert_identical(assemble([weights]), assemble([same]))


def test_what_is_no_index_and_no_state_is_told(folder, copies):
    attribute = Crafted(getattr, torch.Size, "mro")
    ways = {
        "an attribute": (
            lambda target: (target / ".metadata").write_bytes(pickle.dumps(attribute)),
            ".metadata is not an index of a checkpoint ('mro' is no member of an enumeration)",
        ),
        "points elsewhere": (elsewhere, ".metadata points to ../elsewhere, which is not one of the checkpoint's files"),
        "no pickle": (lambda target: (target / ".metadata").write_bytes(b"!"), ".metadata is not an index of a checkpoint"),
        "a number": (
            lambda target: (target / ".metadata").write_bytes(pickle.dumps(1)),
            ".metadata is not an index of a checkpoint",
        ),
        "no archive": (lambda target: (target / "common.pt").write_bytes(b"!"), "common.pt is not what torch saves"),
        "a list": (lambda target: (target / "common.pt").write_bytes(saved_by_torch([1])), "common.pt holds a list, not a"),
    }
    sources = [copies(name, sealing(craft)) for name, (craft, _) in ways.items()]
    (outcomes,) = ranks_of(rank_side.loads, folder, sources)
    for source, (_, told), (kind, text, _) in zip(sources, ways.values(), outcomes, strict=True):
        assert kind == "CheckpointDamaged"
        assert text.startswith(f"checkpoint {source} is damaged: {told}")
        if "holds a list" not in told and "no member" not in told:  # what a name stands for is known where torch is
            with pytest.raises(checkpoint_manifest.CheckpointDamaged, match=re.escape(told)):
                check_checkpoint(source)


def test_a_checkpoint_of_another_version_than_its_name_says_is_refused(folder, copies):
    source = copies("version-000012", lambda target: None)
    (((kind, text, _),),) = ranks_of(rank_side.loads, folder, [source])
    assert kind == "CheckpointDamaged"
    assert "its name says version 12, but the files in it are of version 8 and belong in version-000008" in text


def test_nothing_that_a_layer_would_unpickle_comes_from_a_checkpoint():
    state = {"layers.0.fc1.weight": 1, "layers.0.fc1._extra_state": b"a pickle", "experts.0._extra_state3": b"another"}
    assert without_extra_state(state) == {"layers.0.fc1.weight": 1}


def test_another_model_is_refused(folder, sound, tmp_path):
    other = make_model(tmp_path / "other", num_hidden_layers=2, intermediate_size=64)
    (((kind, text, _),),) = ranks_of(rank_side.loads, other, [sound])
    assert kind == "CheckpointMismatch"
    assert "layers 4 (this run: 2), feed_forward 48 (this run: 64); resume with the model" in text
    (((kind, text, _),),) = ranks_of(rank_side.loads, folder, [sound], dtype="bfloat16")
    assert (kind, "dtype float32 (this run: bfloat16)" in text) == ("CheckpointMismatch", True)


@pytest.mark.parametrize("limited", [0, 1])
def test_a_disk_that_refuses_is_named_on_all_ranks_and_training_goes_on(folder, tmp_path, limited):
    target = tmp_path / "checkpoints" / "version-000000"
    outcomes = ranks_of(rank_side.save_within, folder, BEFORE[:1], target, 20_000, limited, grid=(1, 2, 1))
    for kind, text, left in outcomes:
        assert kind == "CheckpointNotWritten"
        assert text.startswith(f"{target} could not be written: ")
        assert text.endswith("see to the disk, or write elsewhere (run_dir)")
        assert not left
    checkpoint_manifest.Manifest.read(target)


def test_a_writer_that_is_killed_leaves_no_checkpoint_and_the_next_save_cleans_up(folder, sound, tmp_path):
    shutil.copytree(sound, tmp_path / sound.name)
    with pytest.raises(RankFailed, match="exit code -9"):
        ranks_of(rank_side.die_saving, folder, tmp_path / "version-000009")
    assert checkpoints.partial_of(tmp_path / "version-000009").is_dir()
    assert checkpoints.newest(tmp_path) == (8, tmp_path / sound.name)
    ranks_of(rank_side.load_and_train, folder, tmp_path / sound.name, [], tmp_path / "version-000010")
    assert sorted(path.name for path in tmp_path.iterdir()) == [sound.name, "version-000010"]


def test_a_checkpoint_that_is_there_is_not_overwritten(folder, tmp_path):
    target = tmp_path / "version-000000"
    target.mkdir()
    (target / "precious").touch()
    with pytest.raises(RankFailed, match=f"CheckpointNotWritten: {target} exists"):
        ranks_of(rank_side.train_and_save, folder, [], target, AFTER)
    assert [path.name for path in target.iterdir()] == ["precious"]


def test_errors_survive_the_way_between_processes(tmp_path):
    unknown = checkpoint_manifest.UnknownClass(tmp_path, "common.pt", "posix.system")
    for error in (checkpoint_manifest.CheckpointDamaged(tmp_path, "torn"), unknown):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize("writer", ["9e1bf04", "megatron-0.19.2"])
def test_a_checkpoint_that_another_version_wrote_is_loaded(writer):
    """The first is of revision 9e1bf04 with megatron-core 0.16.1; both are of a model of one layer. ``weights.npz`` holds the
    weights that the learner had then, and ``trained.npz`` those that it had after :data:`AFTER`."""
    written = Path(__file__).resolve().parents[2] / "data" / writer / "checkpoint"
    source = written / "version-000008"
    check_checkpoint(source)
    ((version, loaded, _, trained),) = ranks_of(rank_side.load_and_train, written, source, AFTER, dtype="float32")
    assert version == 8
    with np.load(written / "weights.npz") as weights:
        assert_identical(assemble([loaded]), dict(weights))
    if (written / "trained.npz").exists():
        with np.load(written / "trained.npz") as weights:
            assert distance(assemble([trained]), dict(weights)) < 1e-5


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    (tmp_path / checkpoint_manifest.NAME).write_text('{"format": 9, "something": "else"}')
    told = r"checkpoint.json has format 9, and this version of asyncrl reads format 1; resume it with the asyncrl that wrote it"
    with pytest.raises(UnknownFormat, match=told):
        check_checkpoint(tmp_path)
