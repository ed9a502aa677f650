"""The table of kept episodes: one row for each trajectory, in Parquet files that any reader of Parquet takes as they are.

A file holds the trajectories of one training step that one data-parallel rank trained, or those of one evaluation that one
generator played. Those of one episode may lie in several files of its step. What always holds: the lists of a row that are of its
tokens are all as long as ``token_ids``, or null.
"""

from enum import StrEnum

import pyarrow as pa


class Kind(StrEnum):
    """What an episode was played for."""

    TRAIN = "train"
    EVALUATION = "evaluation"


class TokenFate(StrEnum):
    """What became of a token in training."""

    GIVEN = "given"
    """Nobody sampled it: it belongs to the prompt or to an answer of the environment."""
    TRAINED = "trained"
    """It entered the loss."""
    STALE = "stale"
    """Sampled by a version older than ``max_staleness`` allows."""
    MASKED = "masked"
    """Its importance weight was out of bounds."""
    REJECTED = "rejected"
    """A rejection criterion of ``algorithm.correction`` left it out."""
    NOT_TRAINED = "not_trained"
    """Sampled where no loss trains it: in an evaluation, in a greedy episode, or by a role that is not trained."""


def _field(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={"meaning": meaning})


CALL = pa.struct(
    [
        _field("tool", pa.string(), "name of the tool as the model wrote it; empty if the call could not be read"),
        _field("seconds", pa.float32(), "how long the tool ran"),
        _field(
            "outcome",
            pa.string(),
            "ok, error (the tool raised), timeout, malformed (no tool ran) or truncated (a limit cut the turn off)",
        ),
        _field("problem", pa.string(), "what the model was told went wrong; empty if nothing did"),
    ]
)
"""A tool call."""

TURN = pa.struct(
    [
        _field("start", pa.int32(), "its first token"),
        _field("end", pa.int32(), "one past its last token"),
        _field("text", pa.string(), "what the policy sampled, as text"),
        _field("answer", pa.string(), "the tokens up to the next turn, as text; empty after the last turn"),
        _field("reward", pa.float64(), "the environment's reward for the turn"),
        _field("calls", pa.list_(CALL), "its tool calls, in order"),
        _field("generating_s", pa.float32(), "seconds until the engine had sampled it, waiting in the engine included"),
        _field("environment_s", pa.float32(), "seconds until the environment had reacted to it"),
    ]
)
"""A turn."""

EXPERTS = pa.struct(
    [
        _field("experts", pa.int32(), "experts of a layer"),
        _field("layers", pa.int32(), "layers that have experts"),
        _field("per_token", pa.int32(), "experts that a token goes to in a layer"),
        _field("packed", pa.binary(), "see asyncrl.core.routed_experts.RoutedExperts, which unpacks it"),
    ]
)
"""The experts that the leading tokens of a trajectory went to."""

SCHEMA = pa.schema(
    [
        _field("kind", pa.string(), "train or evaluation"),
        _field("step", pa.int32(), "the training step that trained it; null in an evaluation"),
        _field("version", pa.int32(), "the policy version that was trained, or that was published when the evaluation began"),
        _field("environment", pa.string(), "environment.name of the recipe, or the member of a mixture of environments"),
        _field("source", pa.string(), "the task source that its task was drawn from"),
        _field("task_id", pa.string(), "the task"),
        _field("group_id", pa.int64(), "the group; -1 in an evaluation"),
        _field("sample_index", pa.int32(), "its place in the group"),
        _field("attempt", pa.int32(), "how often the task had been given up before"),
        _field("part", pa.int32(), "its place among the trajectories of the episode"),
        _field("parts", pa.int32(), "how many trajectories the episode has"),
        _field("role", pa.string(), "who asked for it; empty where the environment knows only one role"),
        _field("parent", pa.int32(), "the part that it branched off; null if it begins anew"),
        _field("shared", pa.int32(), "how many of its first tokens are a copy of its parent's; nobody sampled them here"),
        _field("why", pa.string(), "why it was begun, see asyncrl.core.trajectory.StartReason"),
        _field("trained", pa.bool_(), "whether its role is trained"),
        _field("temperature", pa.float32(), "what it was sampled with"),
        _field("top_p", pa.float32(), "what it was sampled with; 1 keeps all tokens"),
        _field("top_k", pa.int32(), "what it was sampled with; 0 keeps all tokens"),
        _field("min_p", pa.float32(), "what it was sampled with; 0 keeps all tokens"),
        _field("logprob_convention", pa.string(), "what logprobs are of, see asyncrl.core.trajectory.LogprobConvention"),
        _field("stop_reason", pa.string(), "why it ended, see asyncrl.core.trajectory.StopReason"),
        _field("reward", pa.float64(), "final reward of the episode; with one trajectory, the sum of its turns' rewards"),
        _field("role_rewards", pa.map_(pa.string(), pa.float64()), "final rewards of the roles that have one of their own"),
        _field("metrics", pa.map_(pa.string(), pa.float64()), "what the environment reported, rewards that have names among it"),
        _field("prompt", pa.string(), "the tokens before the first turn, as text"),
        _field("turns", pa.list_(TURN), "its turns: tokens, text, the environment's answer, reward, calls, and seconds"),
        _field(
            "turn_rewards",
            pa.list_(pa.map_(pa.string(), pa.float64())),
            "of each turn: the parts of its reward that have names",
        ),
        _field("began", pa.timestamp("us", "UTC"), "when its worker accepted the ticket"),
        _field("queued_s", pa.float32(), "seconds from then until it was played"),
        _field("reset_s", pa.float32(), "seconds of making and resetting the environment"),
        _field("scoring_s", pa.float32(), "seconds of waiting for a reward model's score"),
        _field("token_ids", pa.list_(pa.int32()), "all tokens, in the order the engine saw them"),
        _field("versions", pa.list_(pa.int32()), "of each token: the policy version that sampled it; -1 where nobody did"),
        _field(
            "logprobs", pa.list_(pa.float32()), "of each token: the engine's log-probability (nats); 0 where nobody sampled it"
        ),
        _field(
            "learner_logprobs",
            pa.list_(pa.float32()),
            "the same by the learner, of the policy before the token's first optimizer step; null where no loss saw it",
        ),
        _field(
            "teacher_logprobs",
            pa.list_(pa.float32()),
            "the same by the teacher of algorithm.teacher; null without one",
        ),
        _field(
            "advantages",
            pa.list_(pa.float32()),
            "of each token: its advantage; 0 where nobody sampled it; null where no loss saw the trajectory",
        ),
        _field(
            "weights",
            pa.list_(pa.float32()),
            "of each token: its importance weight in the loss, 0 where it is left out; null where no loss saw the trajectory",
        ),
        _field(
            "experts",
            EXPERTS,
            "experts that its tokens went to, see asyncrl.core.routed_experts.RoutedExperts; null where the engine was not asked",
        ),
        _field(
            "traffic",
            pa.large_binary(),
            "of part 0: what the agent asked and was answered, see `asyncrl agent replay`; null unless environment.keep_traffic",
        ),
        _field("fates", pa.list_(pa.dictionary(pa.int8(), pa.string())), "of each token: what became of it, see TokenFate"),
    ],
    metadata={"asyncrl_episodes": "1"},
)
"""The columns, with their meaning in each field's metadata. The table's own metadata has the version of this schema."""
