"""How fast the parts of a run are: each figure with where it comes from, so that a prediction can say what it stands on.

What always holds: times are in seconds, and are those of a part that has its processor to itself. Where parts share the cores of
a machine, :class:`asyncrl.simulation.processor.Processor` slows them down.
"""

from collections.abc import Iterator

import msgspec


class Rate(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One figure.

    Attributes:
        value: the figure.
        source: where it comes from, for whoever reads a prediction.
        error: the relative residual of the fit that it comes from; None where nothing was fitted.
        measured: the smallest and the largest size that it was measured with; None where it does not depend on one.
    """

    value: float
    source: str
    error: float | None = None
    measured: tuple[float, float] | None = None


NOTHING = Rate(0.0, "not modelled")


class EngineRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One engine. A step takes ``step + sampled * request + prompts * prompt_token + context * context_token``.

    Attributes:
        step: the part of a step's time that does not depend on what it computes.
        request: for each request that samples a token in the step; ``measured`` are numbers of requests.
        prompt_token: for each token of a prompt, or of an answer of a tool, that the step computes.
        context_token: for each token that the requests that sample have behind them.
        cache_tokens: tokens that the key-value cache holds; 0 for as many as there are.
        block_tokens: only whole blocks of so many tokens are found in the cache again.
        step_tokens: the most tokens of prompts that one step computes.
        turn: from one turn to the next, beside what the environment takes: templates, messages between processes.
        start: from launch until it samples.
        cores: processor cores that it keeps busy, with its front end; 0 where it computes on a device of its own.
    """

    step: Rate
    request: Rate
    prompt_token: Rate
    context_token: Rate = NOTHING
    cache_tokens: Rate = NOTHING
    block_tokens: Rate = Rate(16, "vLLM's default")
    step_tokens: Rate = Rate(8192, "vLLM's default")
    turn: Rate = NOTHING
    start: Rate = NOTHING
    cores: Rate = NOTHING


class LearnerRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The learner. A training step takes ``step + rows * row + micro_batches * micro_batch + tokens * token``, where rows, tokens
    and micro-batches are those of the data-parallel rank with the most tokens.

    Attributes:
        step: what a training step takes whatever its batch: the optimizer, and calls between processes.
        token: for each token that a rank computes, over all passes; ``measured`` are tokens of a rank's batch.
        row: for each row.
        micro_batch: for each micro-batch.
        between: between training steps, when it neither trains, publishes nor waits: recording.
        cores: processor cores that all ranks keep busy; 0 where they compute on devices of their own.
        ranks: data-parallel ranks that the other figures were measured with. With more, ``token`` and ``row`` stay what they are
            for each rank.
        start: from launch until it trains.
    """

    step: Rate
    token: Rate
    row: Rate = NOTHING
    micro_batch: Rate = NOTHING
    between: Rate = NOTHING
    cores: Rate = NOTHING
    ranks: Rate = Rate(1, "one rank")
    start: Rate = NOTHING


class PublicationRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A publication.

    Attributes:
        write: the learner writes the version, and does not train.
        move: until an engine has all bytes, while it samples.
        pause: for which an engine does not sample.
        checkpoint: for which training waits for a checkpoint.
    """

    write: Rate
    move: Rate
    pause: Rate
    checkpoint: Rate = NOTHING


class MachineRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What engines and learner share.

    Attributes:
        cores: processor cores; 0 where the parts compute on devices of their own.
        others: cores that other processes keep busy: the driver, environments, and programs that are no part of the run.
        weight: the weight of the learner beside that of an engine where both want more cores than there are.
    """

    cores: Rate = NOTHING
    others: Rate = NOTHING
    weight: Rate = Rate(1.0, "equal priorities")


class FailureRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong.

    Attributes:
        filtered: share of the complete groups that filters leave out.
        broken: share of the episodes whose environment breaks.
        engine_life: mean time until an engine dies; 0 for never. Its successor comes after ``lease`` and ``engine.start``.
        lease: silence after which an engine is given up.
    """

    filtered: Rate = NOTHING
    broken: Rate = NOTHING
    engine_life: Rate = NOTHING
    lease: Rate = Rate(30.0, "deadlines.lease")


class Rates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All figures of one run."""

    engine: EngineRates
    learner: LearnerRates
    publication: PublicationRates
    machine: MachineRates = MachineRates()
    failures: FailureRates = FailureRates()

    def listed(self) -> Iterator[tuple[str, Rate]]:
        """Yield each figure by its dotted name, but for those that are not modelled."""
        for section in self.__struct_fields__:
            of_section = getattr(self, section)
            for name in of_section.__struct_fields__:
                rate = getattr(of_section, name)
                if rate is not NOTHING and rate != NOTHING:
                    yield f"{section}.{name}", rate
