"""What the controller wants turned, and what it did, as lines of the run's journal: each is written before it is done."""

from collections.abc import Mapping

import msgspec

from asyncrl.core.measures.units import percent


class Turn(msgspec.Struct, frozen=True):
    """A knob to be turned, if it still has the value ``before``."""

    knob: str
    before: int
    to: int


class Moved(msgspec.Struct, frozen=True, tag="moved"):
    """A knob is turned, and the setting is then tried.

    Attributes:
        step: the training step after which it is.
        setting: the values of all knobs before it.
        to: the knob's value after it.
        foreseen: by how much the plan says that trained tokens a second are multiplied.
        rate, error: trained tokens a second before it, and their relative standard error.
        beyond: the limits that were not kept to before it, and by how much.
        machine: what the rate was measured on.
    """

    step: int
    knob: str
    setting: dict[str, int]
    to: int
    foreseen: float
    rate: float
    error: float
    beyond: dict[str, float] = {}
    machine: str = ""

    @property
    def before(self) -> int:
        """The knob's value before it."""
        return self.setting[self.knob]

    @property
    def sentence(self) -> str:
        """What it says to the user."""
        if self.beyond:
            why = f"because {' and '.join(self.beyond)} is beyond its limit; {self.foreseen:.2f}x is foreseen"
        else:
            why = f"the plan fitted to the last steps foresees {self.foreseen:.2f}x"
        return f"tune: {turned(self)} is tried: {why}"


class Judged(msgspec.Struct, frozen=True, tag="judged"):
    """A move is over: the new value is kept or taken back.

    Attributes:
        brought: by how much trained tokens a second were multiplied; None if that was not measured.
        why: what else there is to say.
        open: whether nothing is known of it, so that it may be tried again.
    """

    step: int
    knob: str
    before: int
    to: int
    foreseen: float
    brought: float | None
    kept: bool
    why: str = ""
    open: bool = False

    @property
    def sentence(self) -> str:
        """What it says to the user."""
        brought = "" if self.brought is None else f"it brought {self.brought:.2f}x ({self.foreseen:.2f}x was foreseen)"
        said = "; ".join(part for part in (brought, self.why) if part)
        return f"tune: {turned(self)} is {'kept' if self.kept else 'taken back'}: {said}"


class Rested(msgspec.Struct, frozen=True, tag="rested"):
    """Nothing is turned until the workload drifts.

    Attributes:
        setting: the values of all knobs.
        rate, length: trained tokens a second, and mean tokens of an episode.
        again_at: the training step after which a plan is asked again in any case: that of the rest itself, where nothing but
            further steps is missing; None for never.
        beyond: the limits that are not kept to, and that no knob is foreseen to help.
    """

    step: int
    setting: Mapping[str, int]
    rate: float
    length: float
    why: str
    again_at: int | None = None
    beyond: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What it says to the user."""
        return f"tune: stays at {values_of(self.setting)}: {self.why}"


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """The setting became another than it was turned to, or could not be turned back: it is measured as it is, and stays.

    Attributes:
        setting: the values of all knobs.
    """

    step: int
    setting: Mapping[str, int]
    why: str

    @property
    def sentence(self) -> str:
        """What it says to the user."""
        return f"tune: goes on from {values_of(self.setting)}: {self.why}"


class Woke(msgspec.Struct, frozen=True, tag="woke"):
    """It is looked again for a better setting, and what did not help before may be tried once more."""

    step: int
    why: str

    @property
    def sentence(self) -> str:
        """What it says to the user."""
        return f"tune: looks again for a better setting: {self.why}"


Line = Moved | Judged | Rested | Changed | Woke


def values_of(setting: Mapping[str, int]) -> str:
    """``generators.count 1, buffer.pipeline_depth 2``."""
    return ", ".join(f"{knob} {value}" for knob, value in setting.items())


def turned(move: Moved | Judged) -> str:
    """``generators.count 1 -> 2``."""
    return f"{move.knob} {move.before} -> {move.to}"


def changed_by(before: float, now: float) -> str:
    """``grew by 14 %``."""
    change = now / before - 1
    return f"{'grew' if change > 0 else 'fell'} by {percent(abs(change))}"
