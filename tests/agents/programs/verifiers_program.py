"""An agent that samples as verifiers does in training: by its renderer on the client's side, in token ids."""

import os

from renderers import DefaultRendererConfig
from verifiers.v1.clients.train import TrainClient
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.types import SamplingConfig


async def solve(task):
    client = TrainClient(
        TrainClientConfig(
            base_url=os.environ["OPENAI_BASE_URL"],
            api_key_var="OPENAI_API_KEY",
            renderer_model_name=os.environ["MODEL_FOLDER"],
            renderer=DefaultRendererConfig(),
        )
    )
    messages = list(task["messages"])
    for _ in range(3):
        body = {"model": "main", "messages": messages}
        response = await client.get_response(ChatDialect(), body, SamplingConfig(temperature=1.0, max_tokens=100))
        messages += [
            {"role": "assistant", "content": response.message.content or ""},
            {"role": "user", "content": "Are you sure?"},
        ]
    await client.close()
    return messages[-2]["content"]
