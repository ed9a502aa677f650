"""Every key that a recipe can hold, with type, range, default and meaning. docs/recipe.md is generated from this."""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from asyncrl.core.parallel_layout import ParallelLayout
from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.custom import Custom, CustomSchedule, LinearSchedule
from asyncrl.core.recipe.environment import EnvironmentConfig
from asyncrl.core.recipe.network import NetworkConfig
from asyncrl.core.recipe.reward import EnvironmentReward, RewardConfig
from asyncrl.core.recipe.section import AUTO, AUTOMATIC, Count, FileName, NonNegative, Positive, Seconds, Section, Text
from asyncrl.core.recipe.trajectories import SampledTrajectories, TrajectoriesConfig
from asyncrl.core.recipe.weights import AutoWeights, WeightsConfig
from asyncrl.core.trajectory import Sampling


class ModelConfig(Section, frozen=True):
    """The model that is trained.

    Attributes:
        path: a Hugging Face folder (Qwen2, Qwen3, Qwen3-MoE, Llama); an id on the hub such as ``Qwen/Qwen3-0.6B``, with
            ``@revision`` if it is not to be the newest; or ``tiny`` for a model made and warmed up on this machine.
        max_context: the most tokens of an episode, prompt and all turns together.
        tool_parser: name of the vLLM tool-call parser that reads the model's own format. ``auto`` follows from the model's chat
            template; docs/episodes.md has the table.
        reasoning_parser: name of the vLLM reasoning parser of a model that thinks before it speaks. Reasoning stays in the
            trajectory, and is cut from what tool parser and environment read. null cuts nothing.
    """

    path: Text
    max_context: Count = 512
    tool_parser: Annotated[Text, AUTOMATIC] = "hermes"
    reasoning_parser: Text | None = None


class CurriculumConfig(Section, frozen=True):
    """A class of your own that changes the weights of the sources while training.

    Attributes:
        name: ``module:Class``; see ``buffers.curriculum.Curriculum`` for what it must have.
        options: keyword arguments of its constructor.
    """

    name: Text
    options: dict[str, Any] = {}


class GeneratedTasks(Section, frozen=True, tag_field="kind", tag="generated"):
    """Tasks that the environment makes from a seed (its ``make_tasks``). In a mixture each member is a source of tasks.

    Attributes:
        train: how many different training tasks to make, in a mixture of each member. They are reshuffled and repeated each
            epoch; more tasks belong in files.
        evaluation: how many held-out tasks to make, in a mixture of each member; none of them is ever trained on.
        weights: how often tasks of each member of a mixture are drawn, relative to the others; 1 where nothing is said.
        curriculum: changes the weights while training.
    """

    train: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000
    evaluation: Annotated[int, Meta(ge=1, le=1_000_000)] = 128
    weights: dict[str, Positive] = {}
    curriculum: CurriculumConfig | None = None


class TaskFile(Section, frozen=True):
    """One source of tasks, whose format follows from its name and content.

    Attributes:
        path: a JSON-lines file (``.jsonl``), a Parquet file (``.parquet``), or a folder that Hugging Face datasets wrote.
        split: which split of a datasets folder that holds several.
        environment: in a mixture, the member that plays these tasks.
        weight: how often tasks are drawn from here, relative to the other sources.
        prompt_key: column that holds the prompt.
        id_key: column that holds the task's id; a row without one is named by file and line.
    """

    path: Text
    split: str = ""
    environment: str = ""
    weight: Positive = 1.0
    prompt_key: Text = "prompt"
    id_key: Text = "id"


class FileTasks(Section, frozen=True, tag_field="kind", tag="files"):
    """Tasks from files; all columns but prompt and id go to the environment.

    Attributes:
        train: sources of training tasks, mixed by weight; each is reshuffled every epoch.
        evaluation: sources of held-out tasks; their weights are not used.
        on_malformed: ``refuse`` a file with a row that is not a task, or ``skip`` such rows, counted and named in the log.
        curriculum: changes the weights while training.
    """

    train: Annotated[tuple[TaskFile, ...], Meta(min_length=1)]
    evaluation: Annotated[tuple[TaskFile, ...], Meta(min_length=1)]
    on_malformed: Literal["refuse", "skip"] = "refuse"
    curriculum: CurriculumConfig | None = None


class SamplingConfig(Section, frozen=True):
    """How tokens are sampled while training. docs/episodes.md says what log-probabilities mean with top-p, top-k and min-p.

    Attributes:
        temperature: the temperature of the softmax; engine and learner both compute log-probabilities at this temperature.
        top_p: sample from the smallest set of most probable tokens with this probability; 1 is off. Like ``top_k`` and ``min_p``,
            it is refused where the update uses behaviour probabilities, which would be of another distribution than its own.
        top_k: sample from this many most probable tokens; 0 is off.
        min_p: leave out tokens with less than this share of the most probable token's probability; 0 is off.
        max_turn_tokens: the most tokens of one turn.
    """

    temperature: Positive = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    min_p: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    max_turn_tokens: Count = 128

    @property
    def sampling(self) -> Sampling:
        """How the engines are to sample."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p)


MAIN_POOL = "generators"
"""The name of the pool that the keys of ``generators`` themselves describe."""

PoolName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
Role = Literal["train", "evaluation", "both"]


class PlacementConfig(Section, frozen=True):
    """Which nodes of a Ray cluster the processes of one part of the run go to; docs/scaling.md has examples.

    Attributes:
        strategy: ``pack`` them onto as few nodes as possible, beginning with the driver's and those that the run uses already, or
            ``spread`` them evenly over the nodes that have room.
        per_node: the most of them on one node; null means as many as it has room for.
        gpu_kind: they go only to nodes with GPUs of this kind, by Ray's name, such as ``H100``; null means any node.
        resources: what each takes of its node beside GPUs, by Ray's names: ``{CPU: 4}``, ``memory`` in bytes, or a resource that
            you gave nodes of your choice, such as ``{inference: 1}``. On nodes without GPUs each takes at least a CPU, and the
            memory that the plan expects.
    """

    strategy: Literal["pack", "spread"] = "pack"
    per_node: Count | None = None
    gpu_kind: Text | None = None
    resources: dict[str, Positive] = {}


class PoolConfig(Section, frozen=True):
    """A further pool of vLLM engines, of its own size. A key that is null has the value of the same key of ``generators``.

    Attributes:
        count: engines in the pool.
        role, max_running, dtype, kv_cache_mb, gpu_memory_share, tensor_parallel, placement: as in ``generators``.
        engine: further arguments of vLLM's engine, added to those of ``generators.engine``.
    """

    count: Count
    role: Role | None = None
    max_running: Count | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    kv_cache_mb: Count | None = None
    gpu_memory_share: Annotated[float, Meta(gt=0, le=1)] | None = None
    tensor_parallel: Count | None = None
    engine: dict[str, Any] = {}
    placement: PlacementConfig | None = None


class GeneratorsConfig(Section, frozen=True):
    """The pool of vLLM engines, and further pools.

    Attributes:
        count: engines in the pool.
        role: what they play: ``train`` episodes, those of an ``evaluation``, or ``both``. ``auto`` is ``train`` if a pool of
            ``pools`` is there for evaluations alone.
        max_running: the most episodes that one engine plays at once; fewer while its key-value cache is too small for them.
        dtype: type of the engine's weights and activations; ``auto`` is bfloat16 where the processor or GPU supports it.
        kv_cache_mb: memory for the key-value cache of one engine on CPU, in MiB; on a GPU see ``gpu_memory_share``.
        gpu_memory_share: share of a GPU's memory that one engine takes; not used on CPU. At most 0.5 if ``learner.gpu`` is
            ``shared``.
        tensor_parallel: GPUs that one engine spans; on CPU, processes that divide its model between them.
        updates: what episodes that are being played do with a new version: they go on with it (``in_flight``), or keep the
            version they began with for as long as ``buffer.max_staleness`` admits it (``at_episode``). The latter needs
            ``learner.lora.publish`` adapter.
        engine: further arguments of vLLM's engine by their names there, such as ``{max_num_batched_tokens: 16384}``.
        placement: which nodes of a cluster they go to.
        pools: further pools by name, such as ``{evaluation: {count: 1, role: evaluation}}``, whose engines are not counted in
            ``count``.
    """

    count: Annotated[Count, AUTOMATIC] = 2
    role: Annotated[Role, AUTOMATIC] = "both"
    max_running: Annotated[Count, AUTOMATIC] = 64
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], AUTOMATIC] = "bfloat16"
    kv_cache_mb: Annotated[Count, AUTOMATIC] = 256
    gpu_memory_share: Annotated[Annotated[float, Meta(gt=0, le=1)], AUTOMATIC] = 0.85
    tensor_parallel: Count = 1
    updates: Literal["in_flight", "at_episode"] = "in_flight"
    engine: dict[str, Any] = {}
    placement: PlacementConfig = PlacementConfig()
    pools: dict[PoolName, PoolConfig] = {}

    @property
    def by_pool(self) -> dict[str, "GeneratorsConfig"]:
        """Each pool by name, with the value of every key; the first is :data:`MAIN_POOL`."""
        main = msgspec.structs.replace(self, pools={})
        return {MAIN_POOL: main, **{name: _of_pool(main, pool) for name, pool in self.pools.items()}}

    @property
    def engines(self) -> int:
        """Engines of all pools."""
        return self.count + sum(pool.count for pool in self.pools.values())

    @property
    def training(self) -> dict[str, "GeneratorsConfig"]:
        """The pools that play training episodes."""
        return {name: pool for name, pool in self.by_pool.items() if pool.role != "evaluation"}


def _of_pool(main: GeneratorsConfig, pool: PoolConfig) -> GeneratorsConfig:
    """Return the keys of a pool as if it were the only one."""
    own = {key: value for key, value in msgspec.structs.asdict(pool).items() if value is not None}
    return msgspec.structs.replace(main, **{**own, "engine": {**main.engine, **pool.engine}})


class BatchConfig(Section, frozen=True):
    """What one training step trains on.

    Attributes:
        groups_per_step: groups in a training step.
        group_size: episodes of one task in a group.
        min_group: a group that lost episodes is trained if at least this many finished; otherwise the missing ones are issued
            again. null means all of them.
    """

    groups_per_step: Count = 16
    group_size: Annotated[int, Meta(ge=2)] = 8
    min_group: Count | None = None


class FifoSampler(Section, frozen=True, tag_field="kind", tag="fifo"):
    """Oldest group first."""


class FreshestSampler(Section, frozen=True, tag_field="kind", tag="freshest"):
    """The group with the newest tokens first."""


class PrioritisedSampler(Section, frozen=True, tag_field="kind", tag="prioritised"):
    """Draws groups without replacement, with probabilities by advantage and staleness; importance weights remove the bias.

    Attributes:
        exponent: priority is ``(mean |advantage| + floor) ** exponent * staleness_decay ** staleness``.
        floor: added to the advantage, so that no group has priority 0.
        staleness_decay: factor per policy version of staleness.
    """

    exponent: Annotated[float, Meta(ge=0)] = 1.0
    floor: Positive = 0.1
    staleness_decay: Annotated[float, Meta(gt=0, le=1)] = 1.0


class StratifiedSampler(Section, frozen=True, tag_field="kind", tag="stratified"):
    """Takes from the task sources in proportion to their weights, and from each source the oldest group first."""


class CustomSampler(Section, frozen=True, tag_field="kind", tag="custom"):
    """A sampler of your own.

    Attributes:
        name: ``module:Class``; see ``buffers.sampling.Sampler`` for what it must have.
        options: keyword arguments of its constructor.
    """

    name: Text
    options: dict[str, Any] = {}


class ZeroVarianceFilter(Section, frozen=True, tag_field="kind", tag="zero_variance"):
    """Leave out groups whose rewards are all equal, up to rounding: their group-relative advantage is 0 (Yu et al. 2025,
    arXiv:2503.14476)."""


class AccuracyWindowFilter(Section, frozen=True, tag_field="kind", tag="accuracy_window"):
    """Leave out groups whose mean reward lies outside [low, high].

    Attributes:
        low: smallest mean reward that is trained.
        high: largest mean reward that is trained.
    """

    low: float = 0.0
    high: float = 1.0


class NoJournal(Section, frozen=True, tag_field="kind", tag="none"):
    """Trajectories are held in memory, and a run that is killed cannot be resumed."""


class AppendOnlyJournal(Section, frozen=True, tag_field="kind", tag="append_only"):
    """Everything that happens to the buffer is written to the run folder before it happens, so that a run can be resumed.

    Attributes:
        fsync: ``never`` survives killed processes; ``always`` waits for the disk at each commit, and survives a power cut.
        segment_mb: size of a journal or payload file, in MiB, at which the next one is begun.
    """

    fsync: Literal["never", "always"] = "never"
    segment_mb: Count = 64


class BufferConfig(Section, frozen=True):
    """The replay buffer. Staleness is counted in policy versions.

    Attributes:
        max_staleness: no token older than this enters a loss. 0 is synchronous training.
        pipeline_depth: how many training steps of experience may be outstanding ahead of the learner, which is the usual
            staleness. ``auto`` begins with 1 and moves within ``max_staleness`` while training, by one at a time, to the smallest
            depth at which learner and engines do not both wait.
        on_stale: what happens to groups that would cross the bound: ``mask`` their old tokens, ``wait`` for them before the next
            version is published, or ``drop`` them.
        max_reuse: how many training steps may train the same group, within the bound.
        sampler: which of the ready groups are trained next.
        filters: which finished groups are left out; new groups take their place.
        capacity_mb: the most bytes of trajectories held at once, in MB; beyond it no tickets are issued. Nothing is evicted.
        journal: whether the buffer survives being killed.
        shards: processes that hold trajectories, spread over the nodes of the cluster.
        max_attempts: attempts at a task that breaks its environment before it is filtered and named.
        max_failures: the most failures of one kind (broken environments, or dead generators, reward services and environment
            servers); at one more the run stops with the reason.
    """

    max_staleness: NonNegative = 4
    pipeline_depth: NonNegative | Literal["auto"] = AUTO
    on_stale: Literal["mask", "wait", "drop"] = "mask"
    max_reuse: Count = 1
    sampler: FifoSampler | FreshestSampler | PrioritisedSampler | StratifiedSampler | CustomSampler = FifoSampler()
    filters: tuple[ZeroVarianceFilter | AccuracyWindowFilter, ...] = ()
    capacity_mb: Count = 4096
    journal: AppendOnlyJournal | NoJournal = AppendOnlyJournal()
    shards: Count = 1
    max_attempts: Count = 3
    max_failures: Count = 64

    @property
    def first_depth(self) -> int:
        """The pipeline depth that a run begins with."""
        return min(1, self.max_staleness) if self.pipeline_depth == AUTO else self.pipeline_depth

    @property
    def largest_depth(self) -> int:
        """The largest pipeline depth that a run may reach."""
        return self.max_staleness if self.pipeline_depth == AUTO else self.pipeline_depth


Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class LoraConfig(Section, frozen=True):
    """Low-rank adapters are trained, and the model's own weights stay as they are (Hu et al. 2021, arXiv:2106.09685).

    Attributes:
        rank: the rank of each adapter; its two matrices are [rank, inputs] and [outputs, rank].
        alpha: an adapter adds ``alpha / rank`` times the product of its matrices to its weight.
        targets: which of each layer's weights have an adapter, named as in Hugging Face.
        publish: what engines receive: the sums of weights and adapters (``merged``), or the adapters alone, which vLLM then
            applies beside weights that never change (``adapter``).
    """

    rank: Count = 16
    alpha: Positive = 32.0
    targets: Annotated[tuple[Projection, ...], Meta(min_length=1)] = get_args(Projection)
    publish: Literal["merged", "adapter"] = "merged"


class LearnerConfig(Section, frozen=True):
    """The Megatron learner.

    Attributes:
        lr: peak learning rate of Adam.
        warmup_steps: training steps over which the learning rate rises linearly to ``lr``.
        min_lr_ratio: the learning rate decays linearly to this share of ``lr`` at the last training step; 1 keeps it constant.
        schedule: how the learning rate follows from the training step.
        weight_decay: decoupled weight decay.
        clip_grad: the largest gradient norm; a gradient with a larger norm is scaled down to it.
        dtype: type of the parameters in the forward pass; bfloat16 keeps fp32 master weights. ``auto`` is bfloat16 on GPUs, where
            float32 is several times slower, and float32 on CPU.
        gpu: ``own``, or ``shared``: two processes of the run use one GPU, such as the learner and an engine. Then the learner
            has one rank. ``auto`` shares if there is only one GPU. Not used on CPU.
        fp8: multiply the layers' matrices in 8-bit floating point, with TransformerEngine and a current scale for each tensor:
            all in e4m3, or gradients in e5m2 (``hybrid``). Attention, norms, output layer and optimizer are not affected. Needs
            ``dtype`` bfloat16, a model without experts and GPUs of compute capability 8.9 or newer; not yet tested on one.
        micro_batch_tokens: tokens computed in one micro-batch over all context-parallel ranks; must hold the longest episode.
        tensor_parallel, pipeline_parallel, data_parallel, context_parallel: ranks along each dimension; their product is the
            number of ranks. Tensor-parallel ranks divide the sequence too, between their matrix products (sequence parallelism).
            Context-parallel ranks divide the tokens of each row, for rows too long for one.
        expert_parallel: in a mixture of experts, ranks that share out each layer's experts; each token is sent to those that
            have its experts. They are no further ranks, but those of a pipeline stage (tensor times data times context parallel),
            and ``expert_parallel`` times ``expert_tensor_parallel`` must divide their number.
        expert_tensor_parallel: ranks that divide each expert, as ``tensor_parallel`` divides all other layers.
        virtual_pipeline: model chunks that each pipeline stage holds and computes in turn (interleaved schedule), which shortens
            the time in which stages wait for each other; needs ``pipeline_parallel`` of at least 2.
        recompute: what the backward pass computes again instead of keeping it in memory: nothing, attention between its
            projections (``selective``), or whole layers (``full``, about a third more time).
        lora: train low-rank adapters in place of the policy's weights, with a higher ``lr``; null trains all weights.
        placement: which nodes of a cluster the ranks go to. Tensor-parallel ranks that divide the same layers are on one node.
    """

    lr: Positive = 1e-6
    warmup_steps: NonNegative = 0
    min_lr_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    schedule: LinearSchedule | CustomSchedule = LinearSchedule()
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    clip_grad: Positive = 1.0
    dtype: Annotated[Literal["float32", "bfloat16"], AUTOMATIC] = "float32"
    gpu: Annotated[Literal["own", "shared"], AUTOMATIC] = "own"
    fp8: Literal["none", "e4m3", "hybrid"] = "none"
    micro_batch_tokens: Annotated[Count, AUTOMATIC] = 8192
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    data_parallel: Annotated[Count, AUTOMATIC] = 1
    context_parallel: Count = 1
    expert_parallel: Count = 1
    expert_tensor_parallel: Count = 1
    virtual_pipeline: Count = 1
    recompute: Literal["none", "selective", "full"] = "none"
    lora: LoraConfig | None = None
    placement: PlacementConfig = PlacementConfig()

    @property
    def layout(self) -> ParallelLayout:
        """How the ranks divide the model and the batch."""
        return ParallelLayout(
            tensor=self.tensor_parallel,
            pipeline=self.pipeline_parallel,
            data=self.data_parallel,
            context=self.context_parallel,
            expert=self.expert_parallel,
            expert_tensor=self.expert_tensor_parallel,
            virtual_pipeline=self.virtual_pipeline,
        )


class EvaluationConfig(Section, frozen=True):
    """Evaluation on held-out tasks, beside training.

    Attributes:
        every: training steps between evaluations; the first and the last version are always evaluated.
        temperature: the temperature of sampling; 0 is greedy.
        top_p, top_k, min_p: as in ``sampling``; without effect where sampling is greedy.
        max_turn_tokens: the most tokens of one turn; null means ``sampling.max_turn_tokens``.
        samples: episodes of each task, for mean@k and pass@k; null means 1 while training, and in ``asyncrl evaluate`` 8, or 1 if
            sampling is greedy.
        passing_reward: the least reward with which an episode passes, for pass@k.
        pinned: all episodes of an evaluation are of one policy version. Beside training, half of the generators play it, load
            nothing meanwhile, and catch up afterwards; a single generator keeps the next version waiting. If not pinned, all
            generators play it, episodes may use newer versions too, and the evaluation says which.
    """

    every: Count = 20
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: NonNegative = 0
    min_p: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    max_turn_tokens: Count | None = None
    samples: Count | None = None
    passing_reward: float = 1.0
    pinned: bool = False

    @property
    def sampling(self) -> Sampling:
        """How the engines are to sample."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p)


class CheckpointConfig(Section, frozen=True):
    """What ``asyncrl launch --resume RUN`` starts from. Training steps after the last checkpoint are repeated from the journal.

    Attributes:
        every: training steps between checkpoints of the learner.
        keep: how many of the newest checkpoints are kept.
    """

    every: Count = 20
    keep: Count = 2


class TrackingConfig(Section, frozen=True):
    """Where the run is tracked (MLflow).

    Attributes:
        uri: MLflow's tracking URI; empty means ``mlflow.db`` in ``run_dir``, which all runs there share.
        experiment: MLflow experiment name.
        trajectories: which episodes are kept in ``RUN/trajectories``; docs/trajectories.md describes the files. Some of them are
            logged as MLflow traces, too.
        also: trackers beside MLflow: ``tensorboard``, ``wandb`` (Weights & Biases). Each needs its package, e.g.
            ``pip install "asyncrl[tensorboard]"``.
    """

    uri: str = ""
    experiment: Text = "asyncrl"
    trajectories: TrajectoriesConfig = SampledTrajectories()
    also: tuple[Literal["tensorboard", "wandb"], ...] = ()


class DeadlinesConfig(Section, frozen=True):
    """How long each wait of the run may take, in seconds, before the run ends and says who waited for whom.

    Attributes:
        start: each step of starting: Ray, the tiny model, the engines (just-in-time compilation included), the learner.
        batch: the learner waiting for a full batch.
        step: the learner training one batch.
        publish: each step of a publication of weights: the learner writing it, its way to a node, an engine loading it. A
            generator that misses one is replaced.
        straggler: how long the other engines wait for one that has not loaded a publication, once the first of them has. Then the
            version is published without it; it gets no tickets until it has caught up with the newest.
        evaluation: one evaluation; a generator that has not played its share by then is replaced.
        reward: the score of a finished episode, where ``reward`` takes it from a reward model or service.
        lease: a generator that is silent for this long is given up, and its tickets are issued again; a generator is replaced
            if an environment blocks its event loop for three quarters of this time.
        shutdown: stopping everything after the end or Ctrl-C.
    """

    start: Seconds = 600.0
    batch: Seconds = 600.0
    step: Seconds = 600.0
    publish: Seconds = 120.0
    straggler: Seconds = 10.0
    evaluation: Seconds = 600.0
    reward: Seconds = 300.0
    lease: Seconds = 30.0
    shutdown: Annotated[float, Meta(gt=0, le=15)] = 10.0


class Recipe(Section, frozen=True):
    """Everything that one run is made of.

    Attributes:
        name: name of the run; the name of its folder begins with it.
        steps: training steps, each of one batch and one published version, in ``algorithm.minibatches`` times
            ``algorithm.epochs`` optimizer steps. A resumed run may be given more; a decaying learning rate then follows the new
            length.
        model: the model that is trained.
        environment: the environment in which its episodes are played.
        tasks: the tasks that it is trained and evaluated on.
        reward: where the reward of a finished training episode comes from; evaluation always uses the environment's own.
        batch: what one training step trains on.
        sampling: how tokens are sampled while training.
        generators: the pool of vLLM engines, and further pools.
        buffer: the replay buffer and its staleness contract.
        algorithm: the mathematics of the update.
        learner: the Megatron learner.
        weights: how new weights reach the engines.
        evaluation: evaluation on held-out tasks, beside training.
        checkpoint: what a run is resumed from.
        tracking: where the run is tracked (MLflow).
        network: the connections between the run's own processes.
        deadlines: how long each wait may take.
        seed: the seed of task order, initialisation and environments.
        run_dir: where run folders are made.
    """

    name: FileName
    steps: Count
    model: ModelConfig
    environment: EnvironmentConfig
    tasks: GeneratedTasks | FileTasks = GeneratedTasks()
    reward: RewardConfig = EnvironmentReward()
    batch: BatchConfig = BatchConfig()
    sampling: SamplingConfig = SamplingConfig()
    generators: GeneratorsConfig = GeneratorsConfig()
    buffer: BufferConfig = BufferConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    weights: WeightsConfig = AutoWeights()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    network: NetworkConfig = NetworkConfig()
    deadlines: DeadlinesConfig = DeadlinesConfig()
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    run_dir: Text = "runs"

    @property
    def customs(self) -> tuple[Custom, ...]:
        """The sections that name functions of the user's own."""
        algorithm = self.algorithm
        sections = (
            algorithm.advantage,
            algorithm.loss,
            algorithm.aggregation,
            algorithm.correction.weight,
            self.learner.schedule,
        )
        return tuple(section for section in sections if isinstance(section, Custom))
