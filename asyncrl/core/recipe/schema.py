"""The recipe: its sections by name, of which those in several parts have files of their own beside this one.

docs/reference/recipe.md is generated from here.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.custom import CustomConfig
from asyncrl.core.recipe.environment import EnvironmentConfig
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.network import NetworkConfig
from asyncrl.core.recipe.notify import NotifyConfig
from asyncrl.core.recipe.reward import EnvironmentRewardConfig, RewardConfig
from asyncrl.core.recipe.section import AUTOMATIC, Count, FileName, NonNegative, Seconds, Section, Text, UpToOne
from asyncrl.core.recipe.tasks import FileTasksConfig, GeneratedTasksConfig
from asyncrl.core.recipe.trajectories import SampledTrajectoriesConfig, TrajectoriesConfig
from asyncrl.core.recipe.tune import DEPTH, TuneConfig
from asyncrl.core.recipe.weights import AutoWeightsConfig, WeightsConfig
from asyncrl.core.trajectory import Sampling


class ModelConfig(Section, frozen=True):
    """The model that is trained.

    Attributes:
        path: a Hugging Face folder of an architecture that docs/reference/models.md lists; an id on the hub such as
            ``Qwen/Qwen3-0.6B``, with ``@revision`` if it is not to be the newest; an address of such a folder in an object
            store (``s3://BUCKET/MODEL``); or ``tiny`` for a model made and warmed up on this machine.
        max_context: the most tokens of an episode, prompt and all turns together.
        tool_parser: name of the vLLM tool-call parser that reads the model's own format. ``auto`` follows from the model's chat
            template; docs/reference/episodes.md has the table.
        reasoning_parser: name of the vLLM reasoning parser of a model that thinks before it speaks. Reasoning stays in the
            trajectory, and is cut from what tool parser and environment read. null cuts nothing.
        chat_template: a file with a Jinja template that takes the place of all the model's own, or the text of one. The run keeps
            the text, and exports it with the model. null leaves those of the model's tokenizer.
        chat_template_kwargs: values of variables that the chat template reads, such as ``{enable_thinking: false}``, wherever it
            is rendered: prompts, tool answers, and by default whoever renders the exported model's.
    """

    path: Text
    max_context: Count = 512
    tool_parser: Annotated[Text, AUTOMATIC] = "hermes"
    reasoning_parser: Text | None = None
    chat_template: Text | None = None
    chat_template_kwargs: dict[str, Any] = {}


LEAST_TEMPERATURE = 0.01
"""The lowest temperature above 0 at which vLLM samples."""


class SamplingConfig(Section, frozen=True):
    """How tokens are sampled while training. docs/reference/episodes.md: what log-probabilities mean with top-p, top-k and min-p.

    Attributes:
        temperature: the temperature of the softmax; engine and learner both compute log-probabilities at this temperature. vLLM
            takes every lower one for 0.01, and refuses higher ones.
        top_p: sample from the smallest set of most probable tokens with this probability; 1 is off. Like ``top_k`` and ``min_p``,
            it is refused where the update uses behaviour probabilities, which would be of another distribution than its own.
        top_k: sample from this many most probable tokens; 0 is off.
        min_p: leave out tokens with less than this share of the most probable token's probability; 0 is off.
        max_turn_tokens: the most tokens of one turn.
        stop: texts, and ids of tokens, at which a turn ends too, such as ``["</answer>", 13]``; in evaluations as well. What was
            sampled up to there is kept and trained, and the environment reads it.
    """

    temperature: Annotated[float, Meta(ge=LEAST_TEMPERATURE, le=2)] = 1.0
    top_p: UpToOne = 1.0
    top_k: NonNegative = 0
    min_p: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    max_turn_tokens: Count = 128
    stop: tuple[Text | NonNegative, ...] = ()

    @property
    def sampling(self) -> Sampling:
        """How the engines are to sample."""
        return Sampling(self.temperature, self.top_p, self.top_k, self.min_p, self.stop)


class BatchConfig(Section, frozen=True):
    """What one training step trains on.

    Attributes:
        groups_per_step: groups in a training step.
        group_size: episodes of one task in a group; 1 where nothing compares them.
        min_group: a group that lost episodes is trained if at least this many finished; otherwise the missing ones are issued
            again. null means all of them.
    """

    groups_per_step: Count = 16
    group_size: Count = 8
    min_group: Count | None = None


class EvaluationConfig(Section, frozen=True):
    """Evaluation on held-out tasks, beside training.

    Attributes:
        every: training steps between evaluations; the first and the last version are always evaluated.
        temperature: the temperature of sampling; 0 is greedy, and others are at least 0.01.
        top_p, top_k, min_p: as in ``sampling``; without effect where sampling is greedy.
        max_turn_tokens: the most tokens of one turn; null means ``sampling.max_turn_tokens``.
        samples: episodes of each task, for mean@k and pass@k; null means 1 while training, and in ``asyncrl evaluate`` 8, or 1 if
            sampling is greedy.
        passing_reward: the least reward with which an episode passes, for pass@k.
        pinned: all episodes of an evaluation are of one policy version. Beside training, the pools that only evaluate, or half of
            the generators if there is none, play it, load nothing meanwhile, and catch up afterwards; a single generator keeps
            the next version waiting. If not pinned, all generators that evaluate play it, episodes may use newer versions too,
            and the evaluation says which.
    """

    every: Count = 20
    temperature: Annotated[float, Meta(ge=0, le=2)] = 0.0
    top_p: UpToOne = 1.0
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
        dir: an address of an object store, such as ``s3://BUCKET/FOLDER``, to which checkpoints are copied with all that a resume
            elsewhere needs, beside training; null means where ``run_dir`` is.
    """

    every: Count = 20
    keep: Count = 2
    dir: Text | None = None


class TrackingConfig(Section, frozen=True):
    """Where the run is tracked (MLflow).

    Attributes:
        uri: MLflow's tracking URI; empty means ``mlflow.db`` in ``run_dir``, which all runs there share. A server's
            credentials stand in the environment: ``MLFLOW_TRACKING_USERNAME`` and ``..._PASSWORD``, or ``MLFLOW_TRACKING_TOKEN``.
            A database's password in it stands in the run's ``recipe.yaml`` too, from which a resume takes it; nowhere else is it
            shown. Rather have the client find it, as PostgreSQL's does by ``PGPASSWORD`` or in ``~/.pgpass``.
        experiment: MLflow experiment name.
        trajectories: which episodes are kept in ``RUN/trajectories``; docs/reference/trajectories.md describes the files. Some
            of them are logged as MLflow traces, too.
        also: trackers beside MLflow: ``tensorboard``, ``wandb`` (Weights & Biases) and ``opentelemetry`` (spans of training steps
            and of episodes), each with its package, e.g. ``pip install "asyncrl[tensorboard]"``; and ``ray``, the exporter of the
            Ray cluster, which Prometheus reads.
    """

    uri: str = ""
    experiment: Text = "asyncrl"
    trajectories: TrajectoriesConfig = SampledTrajectoriesConfig()
    also: tuple[Literal["opentelemetry", "ray", "tensorboard", "wandb"], ...] = ()


class DeadlinesConfig(Section, frozen=True):
    """How long each wait of the run may take, in seconds, before the run ends and says who waited for whom.

    Attributes:
        start: each step of starting: Ray, the tiny model, the engines (just-in-time compilation included), the learner.
        room: room in a cluster for what a launch or ``asyncrl scale`` adds. Ray is asked for it meanwhile, so that a cluster that
            grows by itself does. With 0, what has no room now is refused.
        batch: the learner waiting for a full batch.
        step: the learner training one batch.
        publish: each step of a publication of weights: the learner writing it, its way to a node, an engine loading it; and
            one step of an engine. A generator that misses one is replaced.
        straggler: how long the other engines wait for one that has not loaded a publication, once the first of them has. Then the
            version is published without it; it gets no tickets until it has caught up with the newest.
        evaluation: one evaluation; a generator that has not played its share by then is replaced.
        reward: the score of a finished episode, where ``reward`` takes it from a reward model or service, and a teacher's
            probabilities of it (``algorithm.teacher``).
        lease: a generator that is silent for this long is given up, and its tickets are issued again; a generator is replaced
            if an environment blocks its event loop for three quarters of this time. While a node does not answer for a tenth of
            this time, nobody waits for its generators, and their tickets are issued again.
        upload: the last files of a run that has ended reaching the object stores that it is kept in.
        shutdown: stopping everything after the end or Ctrl-C.
    """

    start: Seconds = 600.0
    room: Annotated[float, Meta(ge=0)] = 0.0
    batch: Seconds = 600.0
    step: Seconds = 600.0
    publish: Seconds = 120.0
    straggler: Seconds = 10.0
    evaluation: Seconds = 600.0
    reward: Seconds = 300.0
    lease: Seconds = 30.0
    upload: Seconds = 600.0
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
        tune: which sizes the run turns by itself while it trains; null for none.
        network: the connections between the run's own processes.
        notify: who is told when the run ends.
        deadlines: how long each wait may take.
        seed: the seed of task order, initialisation and environments.
        run_dir: where run folders are made: a folder, or an address of an object store such as ``s3://BUCKET/FOLDER``, ``gs://``,
            ``az://``, ``hf://`` or another that fsspec knows. Then the run works in ``runs``, and all of it is copied there.
    """

    name: FileName
    steps: Count
    model: ModelConfig
    environment: EnvironmentConfig
    tasks: GeneratedTasksConfig | FileTasksConfig = GeneratedTasksConfig()
    reward: RewardConfig = EnvironmentRewardConfig()
    batch: BatchConfig = BatchConfig()
    sampling: SamplingConfig = SamplingConfig()
    generators: GeneratorsConfig = GeneratorsConfig()
    buffer: BufferConfig = BufferConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    learner: LearnerConfig = LearnerConfig()
    weights: WeightsConfig = AutoWeightsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    tune: TuneConfig | None = None
    network: NetworkConfig = NetworkConfig()
    notify: NotifyConfig = NotifyConfig()
    deadlines: DeadlinesConfig = DeadlinesConfig()
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    run_dir: Text = "runs"

    @property
    def largest_depth(self) -> int:
        """The largest pipeline depth that the run may reach, by itself or as ``tune`` turns it."""
        bounds = None if self.tune is None else self.tune.knobs.get(DEPTH)
        return self.buffer.largest_depth if bounds is None else bounds[1]

    @property
    def trained_of_group(self) -> int:
        """How many episodes of a group are trained: all but a greedy one."""
        return self.batch.group_size - (self.algorithm.greedy_sample is not None)

    @property
    def fewest_episodes(self) -> int:
        """The fewest episodes that an optimizer step trains, which the data-parallel ranks of the learner share out."""
        return self.batch.groups_per_step // self.algorithm.minibatches * self.trained_of_group

    @property
    def fewest_groups(self) -> int:
        """The fewest groups of a training step with which each data-parallel rank has an episode in each optimizer step."""
        return -(-self.learner.data_parallel // self.trained_of_group) * self.algorithm.minibatches

    @property
    def customs(self) -> tuple[CustomConfig, ...]:
        """The sections that name functions of the user's own."""
        algorithm = self.algorithm
        sections = (
            algorithm.advantage,
            algorithm.loss,
            algorithm.aggregation,
            algorithm.correction.weight,
            self.learner.schedule,
        )
        return tuple(section for section in sections if isinstance(section, CustomConfig))
