"""Speed and memory of the learner compared with a plain PyTorch loop on the Hugging Face model, on one CPU thread.

Every figure is a ratio of two measurements that alternate within one run, because the load of a machine changes from minute to
minute. Each part runs in a process of its own.
"""

import os
import statistics
import tempfile
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench.learner import learner_memory, learner_prefixes, learner_steps
from asyncrl.bench.own_process import in_own_process


class LogprobSettings(msgspec.Struct, frozen=True):
    """Sizes of the float32 problem on which log-probabilities are measured.

    Attributes:
        tokens, vocabulary, hidden: hidden states are [tokens, hidden], the output layer's weight is [vocabulary, hidden].
        repetitions: measurements of each of the two ways, which alternate.
    """

    tokens: int = 4096
    vocabulary: int = 32768
    hidden: int = 256
    repetitions: int = 3


class LearnerBenchSettings(msgspec.Struct, frozen=True):
    """How the learner is measured.

    Attributes:
        padding_free: rows of one length, where a loop that pads has nothing to pad.
        lognormal: rows of log-normally distributed lengths.
        shared_prefix: groups of rows that share a long prompt.
        shared_prefix_deep: the same with more layers, as models that people train have: the output layer and a part of the last
            layer, which sharing does not save, are a smaller part of them.
        logprob: the problem on which log-probabilities are measured.
    """

    padding_free: learner_steps.StepSettings = learner_steps.StepSettings(sigma=0.0)
    lognormal: learner_steps.StepSettings = learner_steps.StepSettings(sigma=1.0)
    shared_prefix: learner_prefixes.PrefixSettings = learner_prefixes.PrefixSettings()
    shared_prefix_deep: learner_prefixes.PrefixSettings = learner_prefixes.PrefixSettings(layers=16)
    logprob: LogprobSettings = LogprobSettings()


class LearnerBenchResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench learner`` writes.

    Attributes:
        ratio_padding_free, ratio_lognormal: the learner's tokens per second over those of the plain loop.
        ratio_shared_prefix: the learner's tokens per second where the rows of a group share a long prompt, over the same without
            sharing; all tokens of the rows count.
        ratio_shared_prefix_deep: the same with a deeper model.
        logprob_memory_ratio: how much one forward and backward pass raises the process's peak of resident memory, directly from
            hidden states over from full logits.
        logprob_time_ratio: the same for the time of both passes; entropy is computed, but the loss does not depend on it.
        logprob_time_ratio_entropy_bonus: the same with a loss that depends on the entropy.
        logprob_megabytes, full_logits_megabytes: the two amounts of memory, each with the gradients of both operands.
        padding_free, lognormal, shared_prefix, shared_prefix_deep: the measurements behind the first four ratios.
    """

    ratio_padding_free: float
    ratio_lognormal: float
    ratio_shared_prefix: float
    ratio_shared_prefix_deep: float
    logprob_memory_ratio: float
    logprob_time_ratio: float
    logprob_time_ratio_entropy_bonus: float
    logprob_megabytes: float
    full_logits_megabytes: float
    padding_free: learner_steps.StepSpeed
    lognormal: learner_steps.StepSpeed
    shared_prefix: learner_prefixes.PrefixSpeed
    shared_prefix_deep: learner_prefixes.PrefixSpeed
    settings: LearnerBenchSettings


def run(json_file: Path, console: Console, settings: LearnerBenchSettings | None = None) -> LearnerBenchResult:
    """Measure everything, report progress on ``console``, and write ``json_file``.

    Raises:
        RuntimeError: the learner and the plain loop, or the learner with and without sharing, compute different gradients.
    """
    settings = settings or LearnerBenchSettings()
    # The processes below inherit this: one thread each, no GPU.
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": ""}
    speeds = []
    for name, of_steps in (("rows of one length", settings.padding_free), ("log-normal lengths", settings.lognormal)):
        console.print(f"Measuring optimizer steps: {name}")
        with tempfile.TemporaryDirectory(prefix="asyncrl-bench-learner-") as folder:
            speeds.append(in_own_process(learner_steps.measure, Path(folder), of_steps))
    prefixes = []
    for of_prefixes in (settings.shared_prefix, settings.shared_prefix_deep):
        console.print(f"Measuring optimizer steps: groups that share a prompt, {of_prefixes.layers} layers")
        with tempfile.TemporaryDirectory(prefix="asyncrl-bench-learner-") as folder:
            prefixes.append(in_own_process(learner_prefixes.measure, Path(folder), of_prefixes))
    size = settings.logprob
    shape = (size.tokens, size.vocabulary, size.hidden)
    console.print("Measuring log-probabilities: memory")
    tiled, full = (in_own_process(learner_memory.megabytes, way, *shape) for way in ("tiled", "full"))
    console.print("Measuring log-probabilities: time")
    times = [in_own_process(learner_memory.seconds, *shape, size.repetitions, bonus) for bonus in (False, True)]
    result = LearnerBenchResult(
        ratio_padding_free=speeds[0].ratio,
        ratio_lognormal=speeds[1].ratio,
        ratio_shared_prefix=prefixes[0].ratio,
        ratio_shared_prefix_deep=prefixes[1].ratio,
        logprob_memory_ratio=tiled / full,
        logprob_time_ratio=statistics.median(a / b for a, b in times[0]),
        logprob_time_ratio_entropy_bonus=statistics.median(a / b for a, b in times[1]),
        logprob_megabytes=tiled,
        full_logits_megabytes=full,
        padding_free=speeds[0],
        lognormal=speeds[1],
        shared_prefix=prefixes[0],
        shared_prefix_deep=prefixes[1],
        settings=settings,
    )
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    return result


def view(result: LearnerBenchResult) -> RenderableType:
    """The result as a table."""
    table = Table(title="Learner", title_justify="left", show_header=False, border_style="dim", box=box.ROUNDED)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_row("rows of one length", f"{result.ratio_padding_free:.2f} x the plain loop")
    padding = f"{result.lognormal.padding:.0%} of the plain loop's tokens are padding"
    table.add_row("log-normal lengths", f"{result.ratio_lognormal:.2f} x the plain loop; {padding}")
    shared = f"without sharing {result.shared_prefix.token_ratio:.2f} times as many tokens are computed"
    table.add_row("shared prompts", f"{result.ratio_shared_prefix:.2f} x no sharing; {shared}")
    layers = f"with {result.settings.shared_prefix_deep.layers} layers"
    table.add_row("shared prompts, deeper model", f"{result.ratio_shared_prefix_deep:.2f} x no sharing; {layers}")
    memory = f"{result.logprob_megabytes:,.0f} MB, full logits {result.full_logits_megabytes:,.0f} MB"
    table.add_row("log-probabilities, memory", f"{result.logprob_memory_ratio:.3f} of full logits ({memory})")
    table.add_row("log-probabilities, time", f"{result.logprob_time_ratio:.2f} of full logits")
    table.add_row("with an entropy bonus", f"{result.logprob_time_ratio_entropy_bonus:.2f} of full logits")
    return table
