"""The manifest of a checkpoint: version, model, layout, and the checkpoint's files with sizes and checksums.

What always holds: the manifest is the last file of a checkpoint to be written, and a checkpoint that passes
:meth:`Manifest.check` is, to the bit, what was written. Nothing here needs torch.
"""

import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.file_formats import check_json_format
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.learners.checkpointing import checkpoints

NAME = "checkpoint.json"
FORMAT = 1
"""The format of checkpoints: of the manifest, and of what Megatron writes beside it."""
_READ_BYTES = 4 * 2**20


class CheckpointNotWritten(AsyncRLError):
    """A checkpoint could not be written. No folder has its name, and training can continue."""


class CheckpointDamaged(AsyncRLError):
    """A checkpoint's files are not those that were written."""

    def __init__(self, folder: Path, problem: str) -> None:
        self.folder, self.problem = folder, problem
        super().__init__(
            f"checkpoint {folder} is damaged: {problem}; put it back from a copy, or move the folder away, so that the "
            "checkpoint before it is used, or start a new run"
        )


class UnknownClass(AsyncRLError):
    """A checkpoint's file names a class or a function that is not among those that belong there.

    Args:
        folder: the checkpoint.
        file: the file, or the object in a file, that names it.
        name: the class or function, with its module.
    """

    def __init__(self, folder: Path, file: str, name: str) -> None:
        self.folder, self.file, self.name = folder, file, name
        super().__init__(
            f"{file} of checkpoint {folder} names {name}, which asyncrl never writes into a checkpoint and which could run "
            "foreign code; nothing was loaded. If you do not know who wrote the checkpoint, trust nothing in the run folder; "
            "otherwise put the checkpoint back from a copy, or move its folder away, so that the one before it is used"
        )


class CheckpointMismatch(AsyncRLError):
    """A checkpoint was written by a different model than the one it is to be loaded into."""


class CheckpointShape(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that two models must have in common so that one can load the other's checkpoint: sizes, options that
    add parameters, data type.

    Attributes:
        adapters: description of the adapters that are trained instead of the policy's weights.
        frozen_weights: a checksum, the sum of the bits of the policy's weights, if they are not trained; 0 if they are.
        reference_weights: the same sum of the weights of a reference policy that the recipe names; 0 if it names none.
        first_weights: the same sum of the weights that the run began with, if they are the reference policy. 0 goes with any:
            they are none, or an earlier version of asyncrl wrote the checkpoint.
    """

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool
    experts: int = 0
    expert_feed_forward: int = 0
    expert_layers: tuple[int, ...] = ()
    dtype: str
    critic: bool = False
    adapters: str = "none"
    frozen_weights: int = 0
    reference_weights: int = 0
    first_weights: int = 0


class StoredFile(msgspec.Struct, frozen=True):
    """A file of the checkpoint: name, size in bytes and CRC-32."""

    name: str
    size: int
    checksum: int

    @classmethod
    def of(cls, path: Path) -> "StoredFile":
        """Make the record of a file as it is on disk now.

        Raises:
            OSError: if the file cannot be read.
        """
        size = checksum = 0
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                size += len(block)
                checksum = zlib.crc32(block, checksum)
        return cls(path.name, size, checksum)


class Progress(msgspec.Struct, frozen=True):
    """The state of the learner that changes during the run, apart from the tensors.

    Attributes:
        version: policy version of the weights.
        kl_coefficient: coefficient of the divergence from the reference; None where the recipe has none.
    """

    version: PolicyVersion
    kl_coefficient: float | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that must be known before a checkpoint is loaded.

    Attributes:
        layout: layout of the ranks that wrote the checkpoint.
        format: the checkpoint's format; those of earlier versions do not say it, and have format 1.
    """

    progress: Progress
    shape: CheckpointShape
    layout: ParallelLayout
    files: tuple[StoredFile, ...]
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read the manifest of the checkpoint in ``folder``.

        Raises:
            CheckpointDamaged: if there is no manifest, or it cannot be decoded.
            UnknownFormat: if the checkpoint has another format.
        """
        try:
            content = (folder / NAME).read_bytes()
            check_json_format(content, folder / NAME, FORMAT)
            return msgspec.json.decode(content, type=cls)
        except OSError as error:
            raise CheckpointDamaged(folder, f"{NAME} cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointDamaged(folder, f"{NAME} is not a manifest ({error})") from error

    def require_name(self, folder: Path) -> None:
        """Check that the folder's name, if it is a checkpoint's name, has the version of the manifest.

        Raises:
            CheckpointDamaged: naming both versions, if they differ.
        """
        named, version = checkpoints.version_of(folder), self.progress.version
        if named is not None and named != version:
            problem = f"its name says version {named}, but the files in it are of version {version}"
            raise CheckpointDamaged(folder, f"{problem} and belong in {checkpoints.path_of(folder.parent, version).name}")

    def check(self, folder: Path, files: Iterable[StoredFile]) -> None:
        """Read ``files``, which are some or all of the manifest's, and compare them with what was written.

        Raises:
            CheckpointDamaged: naming the first file that is missing or different.
        """
        for expected in files:
            try:
                found = StoredFile.of(folder / expected.name)
            except OSError as error:
                raise CheckpointDamaged(folder, f"{expected.name} cannot be read ({error.strerror})") from error
            if found.size != expected.size:
                raise CheckpointDamaged(folder, f"{expected.name} has {found.size} bytes, but {expected.size} were written")
            if found != expected:
                raise CheckpointDamaged(folder, f"{expected.name} does not have the checksum it was written with")

    def require(self, shape: CheckpointShape, folder: Path) -> None:
        """Check that the checkpoint in ``folder`` fits the model it is to be loaded into.

        Raises:
            CheckpointMismatch: naming what differs.
        """
        theirs, ours = msgspec.structs.asdict(self.shape), msgspec.structs.asdict(shape)
        if not (self.shape.first_weights and shape.first_weights):
            del theirs["first_weights"]
        differing = [f"{name} {theirs[name]} (this run: {ours[name]})" for name in theirs if theirs[name] != ours[name]]
        if differing:
            raise CheckpointMismatch(
                f"checkpoint {folder} is of another model: {', '.join(differing)}; resume with the model, learner.dtype, "
                "learner.lora, algorithm.advantage.kind and algorithm.kl.reference it was saved with, or start a new run"
            )
