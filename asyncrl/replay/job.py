"""What the ranks of a replay are asked, and what they answer: values that are written as MessagePack."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncrl.core.batch import Batch, RowName
from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.step_report import Hardware
from asyncrl.run.folder.step_log import StepRecord, in_digits


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A replay, as each of its ranks gets it.

    Attributes:
        recipe: its layout is that of the ranks.
        model_path: the Hugging Face folder that the run began with.
        checkpoint: what to begin from; None for the model itself.
        batches: those of the steps, in order.
        first: the first step that is looked at; those before it only lead there.
        payload: the folders of the payload shards.
        threads: CPU threads of each rank.
        meeting: the file in which the ranks meet.
        saved: where checkpoints are written, by version.
        renamed: batches name episodes anew that other runs have recorded; see :mod:`asyncrl.replay.recorded_groups`.
        hook: ``module:function`` that sees every micro-batch; None for none.
        top: how many tokens and rows to tell of; 0 for none.
        gap: how many tokens to tell of where learner and engine differ most; 0 for none.
        code, beside: the folders in which modules are looked for that the recipe names, and that the command names.
    """

    recipe: Recipe
    model_path: Path
    checkpoint: Path | None
    batches: tuple[Batch, ...]
    first: int
    payload: dict[int, Path]
    threads: int
    meeting: str
    code: Path
    beside: Path
    saved: dict[int, Path] = {}
    renamed: bool = False
    hook: str | None = None
    top: int = 0
    gap: int = 0


class CarriedRow(msgspec.Struct, frozen=True):
    """A row of a step, and what it did there.

    Attributes:
        optimizer_step: which of the step's optimizer steps, from 0.
        norm: the norm of what the row alone adds to the gradient.
        tokens: how many of its tokens are in the loss.
        advantage, weight: means over these.
        staleness: the largest of theirs.
        gap: mean of |learner - engine| log-probability over them.
    """

    name: RowName
    optimizer_step: int
    norm: float
    tokens: int
    advantage: float
    weight: float
    staleness: int
    gap: float


class CarriedToken(msgspec.Struct, frozen=True):
    """A token of a step, and what it did there.

    Attributes:
        row: the row it is in.
        number: its place among the row's sampled tokens.
        pull: see :attr:`asyncrl.replay.hook.SeenMicroBatch.pull`.
        ratio: probability under the policy being optimised, over that under the anchor of the loss.
        learner, engine: its log-probability by each, in nats.
    """

    row: RowName
    optimizer_step: int
    number: int
    pull: float
    advantage: float
    weight: float
    ratio: float
    staleness: int
    learner: float
    engine: float


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The rank has the version to begin from."""


class Replayed(msgspec.Struct, frozen=True, tag="replayed"):
    """The rank has computed a step.

    Attributes:
        readings: the learner's, by name; none on all ranks but the one that reports.
        hardware: what that rank computes on; None on the others.
        fingerprint: of the rank's part of the weights that the step made. Parts add up, modulo 2**64.
        moved: whether the optimizer moved weights of the rank.
        peak_bytes: the most memory that the process has had so far, on the host and on its GPU.
        rows, tokens: those of the rank's slice that carried the step; only asked for with ``top``.
        gaps: tokens of the slice where learner and engine differ most; only asked for with ``gap``.
        gap_by: sum of |learner - engine|, and tokens, by what the tokens have in common, such as ``staleness 2``.
        diverged: why the step made no new weights, and nothing after it is computed; empty if it did.
    """

    step: int
    readings: dict[str, float]
    hardware: Hardware | None
    fingerprint: int
    moved: bool
    peak_bytes: int
    rows: tuple[CarriedRow, ...] = ()
    tokens: tuple[CarriedToken, ...] = ()
    gaps: tuple[CarriedToken, ...] = ()
    gap_by: dict[str, tuple[float, int]] = {}
    diverged: str = ""


def record_of(of_ranks: Sequence[Replayed]) -> StepRecord:
    """Make the record of a step of what all its ranks have answered, as a run writes it."""
    reporter = next((each for each in of_ranks if each.hardware is not None), of_ranks[0])
    fingerprint = in_digits(sum(each.fingerprint for each in of_ranks) % 2**64)
    return StepRecord(reporter.step, reporter.readings, reporter.hardware, fingerprint)


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The hook has stopped the replay, and says why."""

    step: int
    why: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank could not go on; ``own`` tells that the error is one of ours, whose text stands alone."""

    error: str
    own: bool


Answer = Loaded | Replayed | Stopped | Failed


def _written(value: object) -> str:
    return str(value)


def _read(kind: type, value: str) -> Path:
    return kind(value)  # type: ignore[no-any-return]


encoder = msgspec.msgpack.Encoder(enc_hook=_written)
jobs: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job, dec_hook=_read)
answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
