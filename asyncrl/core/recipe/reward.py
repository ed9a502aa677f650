"""The recipe's section on where the reward of a finished training episode comes from."""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.core.recipe.environment import VariableName
from asyncrl.core.recipe.section import Count, Seconds, Section, Text


class EnvironmentRewardConfig(Section, frozen=True, tag_field="kind", tag="environment"):
    """The environment's own reward."""


class ModelRewardConfig(Section, frozen=True, tag_field="kind", tag="model"):
    """The score of a reward model. It runs in a process of its own, which takes a GPU if the cluster has any. It reads an
    episode's tokens as they were sampled, so its tokenizer must be the policy's.

    Attributes:
        path: a Hugging Face folder of a sequence classifier with one label, trained on the policy's chat template.
        environment_weight: the environment's own reward is multiplied by this and added to the score.
        dtype: type of its weights.
        batch_tokens: the most tokens of one forward pass, padding included; must hold the longest episode.
    """

    path: Text
    environment_weight: Annotated[float, Meta(ge=0)] = 0.0
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    batch_tokens: Count = 16384


class RemoteRewardConfig(Section, frozen=True, tag_field="kind", tag="remote"):
    """The score that an HTTP service gives; docs/reference/algorithms.md describes its requests and answers.

    Attributes:
        url: where requests are posted.
        environment_weight: the environment's own reward is multiplied by this and added to the score.
        batch_size: the most episodes in one request.
        requests: the most requests that each generator makes at once.
        token_variable: name of the environment variable whose value is sent to ``url`` as bearer token; null if none is. It is
            read where the run is launched, and stands in no file of the run.
        timeout_s: a request that takes longer is repeated, until ``deadlines.reward`` has passed.
    """

    url: Text
    environment_weight: Annotated[float, Meta(ge=0)] = 0.0
    batch_size: Count = 32
    requests: Count = 4
    token_variable: VariableName | None = None
    timeout_s: Seconds = 60.0


RewardConfig = EnvironmentRewardConfig | ModelRewardConfig | RemoteRewardConfig
