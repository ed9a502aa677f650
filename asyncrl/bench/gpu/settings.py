"""What ``asyncrl bench gpu`` measures, and for how long."""

import msgspec


class ModelSize(msgspec.Struct, frozen=True):
    """The sizes of a dense Qwen3 model.

    Attributes:
        name: what the result calls it.
    """

    name: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = True

    @property
    def parameters(self) -> int:
        """Number of weights."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.key_value_heads) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden * (1 if self.tied else 2)


TINY = ModelSize("tiny", 64, 192, 2, 4, 2, 32, 512)
QWEN3_06B = ModelSize("0.6B", 1024, 3072, 28, 16, 8, 128, 151_936)
QWEN3_17B = ModelSize("1.7B", 2048, 6144, 28, 16, 8, 128, 151_936)
QWEN3_4B = ModelSize("4B", 2560, 9728, 36, 32, 8, 128, 151_936)


class CorrectnessSettings(msgspec.Struct, frozen=True):
    """How one rank on a GPU is compared with one on the CPU."""

    model: ModelSize = msgspec.structs.replace(TINY, name="small", hidden=256, feed_forward=768, layers=4, head_dim=64)
    rows: int = 16
    tokens: int = 128
    steps: int = 3


class TrainingSettings(msgspec.Struct, frozen=True):
    """How training steps are measured.

    Attributes:
        models: the sizes, the smallest first.
        variants_of: the name of the size with which recomputation, fp8 and shared prefixes are measured.
        row_tokens: length of the rows of equal length.
        median_tokens, sigma: of the log-normal lengths.
        step_tokens: tokens of a training step, about.
        micro_batch_tokens: tokens of the learner's micro-batches.
        plain_rows: rows of a micro-batch in the plain loop, if the device has room for so many.
        repetitions: measured steps of each loop, after one that warms up.
    """

    models: tuple[ModelSize, ...] = (QWEN3_06B, QWEN3_17B, QWEN3_4B)
    variants_of: str = "1.7B"
    row_tokens: int = 4096
    median_tokens: int = 1024
    sigma: float = 1.0
    step_tokens: int = 65_536
    micro_batch_tokens: int = 16_384
    plain_rows: int = 2
    repetitions: int = 3


class LogprobSettings(msgspec.Struct, frozen=True):
    """The problem on which log-probabilities are measured."""

    tokens: int = 8192
    hidden: int = 2048
    vocabulary: int = 151_936
    repetitions: int = 5


class PublicationSettings(msgspec.Struct, frozen=True):
    """How publications are measured."""

    model: ModelSize = QWEN3_17B
    repetitions: int = 8


class EngineSettings(msgspec.Struct, frozen=True):
    """How an engine and a whole run are measured.

    Attributes:
        model: what the engine samples from, with random weights.
        requests: requests at once; prompt_tokens and new_tokens are those of each.
        gpu_memory_share: of the engine.
        steps: training steps of the quickstart.
    """

    model: ModelSize = QWEN3_06B
    requests: int = 256
    prompt_tokens: int = 256
    new_tokens: int = 256
    gpu_memory_share: float = 0.4
    steps: int = 10


class Seconds(msgspec.Struct, frozen=True):
    """The deadline of each part. Most of the time is for starting.

    The training part starts 16 processes; on an H100, importing, compiling and loading took 25 s of each. The engine part starts
    two engines, each of which imports vLLM, compiles its model and captures its graphs in 60 to 90 s; the second has a whole
    quickstart around it.
    """

    correctness: float = 180.0
    training: float = 600.0
    logprob: float = 30.0
    publication: float = 50.0
    broadcast: float = 50.0
    engine: float = 360.0


class GpuBenchSettings(msgspec.Struct, frozen=True):
    """Everything that a measurement depends on."""

    correctness: CorrectnessSettings = CorrectnessSettings()
    training: TrainingSettings = TrainingSettings()
    logprob: LogprobSettings = LogprobSettings()
    publication: PublicationSettings = PublicationSettings()
    engine: EngineSettings = EngineSettings()
    seconds: Seconds = Seconds()

    @classmethod
    def small(cls) -> "GpuBenchSettings":
        """Tiny shapes, with which the whole program runs on a CPU."""
        return cls(
            correctness=CorrectnessSettings(model=TINY, rows=16, tokens=32, steps=2),
            training=TrainingSettings(
                models=(TINY,),
                variants_of="tiny",
                row_tokens=64,
                median_tokens=32,
                step_tokens=1024,
                micro_batch_tokens=512,
                plain_rows=4,
                repetitions=1,
            ),
            logprob=LogprobSettings(tokens=256, hidden=64, vocabulary=2048, repetitions=2),
            publication=PublicationSettings(model=TINY, repetitions=3),
            engine=EngineSettings(model=TINY, requests=4, prompt_tokens=16, new_tokens=32, steps=1),
            seconds=Seconds(correctness=240, training=240, logprob=120, publication=120, broadcast=120, engine=300),
        )
