"""Speed and memory of the learner beside a plain PyTorch loop with the Hugging Face model, on one CPU thread.

Every figure is a ratio of two measurements of one run, repetition by repetition in turn, because what else runs on the machine
changes from minute to minute. Each part has a process of its own.
"""

import os
import statistics
import tempfile
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from asyncrl.bench import learner_memory, learner_prefixes, learner_steps
from asyncrl.bench.own_process import in_own_process


class LogprobSettings(msgspec.Struct, frozen=True):
    """Sizes of the float32 problem on which log-probabilities are measured.

    Attributes:
        tokens, vocabulary, hidden: of the product of hidden states and output layer.
        repetitions: repetitions of each way, in turn.
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
        logprob: see there.
    """

    padding_free: learner_steps.StepSettings = learner_steps.StepSettings(sigma=0.0)
    lognormal: learner_steps.StepSettings = learner_steps.StepSettings(sigma=1.0)
    shared_prefix: learner_prefixes.PrefixSettings = learner_prefixes.PrefixSettings()
    logprob: LogprobSettings = LogprobSettings()


class LearnerBenchResult(msgspec.Struct, frozen=True):
    """What ``asyncrl bench learner`` writes.

    Attributes:
        ratio_padding_free, ratio_lognormal: tokens a second of the learner over those of the plain loop.
        ratio_shared_prefix: the learner's tokens a second, those of the rows, where groups share a long prompt, over the same
            without sharing.
        logprob_memory_ratio: what forward and backward pass add to the process's peak of resident memory, straight from hidden
            states over by full logits.
        logprob_time_ratio: time of forward and backward pass, likewise; entropy is computed, but the loss does not depend on it.
        logprob_time_ratio_entropy_bonus: the same with a loss that depends on the entropy.
        logprob_megabytes, full_logits_megabytes: the memory that was compared, gradients of both operands (in both) included.
        padding_free, lognormal, shared_prefix: the measurements behind the first three.
    """

    ratio_padding_free: float
    ratio_lognormal: float
    ratio_shared_prefix: float
    logprob_memory_ratio: float
    logprob_time_ratio: float
    logprob_time_ratio_entropy_bonus: float
    logprob_megabytes: float
    full_logits_megabytes: float
    padding_free: learner_steps.StepSpeed
    lognormal: learner_steps.StepSpeed
    shared_prefix: learner_prefixes.PrefixSpeed
    settings: LearnerBenchSettings


def run(json_file: Path, console: Console, settings: LearnerBenchSettings | None = None) -> LearnerBenchResult:
    """Measure everything, tell on ``console`` what is going on, and write ``json_file``.

    Raises:
        RuntimeError: if the learner and the plain loop do not compute the same gradient.
    """
    settings = settings or LearnerBenchSettings()
    # Inherited by the processes below: one thread each, no GPU.
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "CUDA_VISIBLE_DEVICES": ""}
    speeds = []
    for name, of_steps in (("rows of one length", settings.padding_free), ("log-normal lengths", settings.lognormal)):
        console.print(f"Optimizer steps, {name}")
        with tempfile.TemporaryDirectory(prefix="asyncrl-bench-learner-") as folder:
            speeds.append(in_own_process(learner_steps.measure, Path(folder), of_steps))
    console.print("Optimizer steps, groups that share a prompt")
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-learner-") as folder:
        prefixes = in_own_process(learner_prefixes.measure, Path(folder), settings.shared_prefix)
    size = settings.logprob
    shape = (size.tokens, size.vocabulary, size.hidden)
    console.print("Log-probabilities: memory")
    tiled, full = (in_own_process(learner_memory.megabytes, way, *shape) for way in ("tiled", "full"))
    console.print("Log-probabilities: time")
    times = [in_own_process(learner_memory.seconds, *shape, size.repetitions, bonus) for bonus in (False, True)]
    result = LearnerBenchResult(
        ratio_padding_free=speeds[0].ratio,
        ratio_lognormal=speeds[1].ratio,
        ratio_shared_prefix=prefixes.ratio,
        logprob_memory_ratio=tiled / full,
        logprob_time_ratio=statistics.median(a / b for a, b in times[0]),
        logprob_time_ratio_entropy_bonus=statistics.median(a / b for a, b in times[1]),
        logprob_megabytes=tiled,
        full_logits_megabytes=full,
        padding_free=speeds[0],
        lognormal=speeds[1],
        shared_prefix=prefixes,
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
    shared = f"{result.shared_prefix.token_ratio:.2f} times as few tokens are computed"
    table.add_row("shared prompts", f"{result.ratio_shared_prefix:.2f} x no sharing; {shared}")
    memory = f"{result.logprob_megabytes:,.0f} MB, full logits {result.full_logits_megabytes:,.0f} MB"
    table.add_row("log-probabilities, memory", f"{result.logprob_memory_ratio:.3f} of full logits ({memory})")
    table.add_row("log-probabilities, time", f"{result.logprob_time_ratio:.2f} of full logits")
    table.add_row("with an entropy bonus", f"{result.logprob_time_ratio_entropy_bonus:.2f} of full logits")
    return table
