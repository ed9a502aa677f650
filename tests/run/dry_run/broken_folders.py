"""What can be wrong with a model's folder or a recipe, and what the parts of a run do with it when they start."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from model_folders import SMALL, write_model, write_weights

from asyncrl.core.chat_prompt import chat_prompt
from asyncrl.core.errors import AsyncRLError
from asyncrl.core.files.weight_files import stored_tensors
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.vllm.engine_arguments import EngineSettings, try_engine_arguments
from asyncrl.learners.supported_model import supported_config
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.tracker import Tracker

ROOMY = Machine(memory=64 << 30, free=60 << 30, cores=8)
WITH_GPU = msgspec.structs.replace(ROOMY, gpus=2)
LAYER = "model.layers.0.mlp.down_proj.weight"
ML = "{# <tool_call> #}{{ tools }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
START = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
EXPERTS = SMALL | {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
}  # fmt: skip


class Case(NamedTuple):
    """What is wrong with a model's folder or a recipe.

    Attributes:
        breaks: does it to the folder.
        told: what the plan's refusal says.
        starts: does what the part of the run does, which raises; None where that takes what not every machine has.
        overrides: of the recipe.
        machine: that the plan is made for.
    """

    breaks: Callable[[Path], object]
    told: str
    starts: Callable[[Path], object] | None
    overrides: tuple[str, ...] = ()
    machine: Machine = ROOMY


def template(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


def template_for_tools(text: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(text)

    return write


def config(**changes: Any) -> Callable[[Path], object]:
    """Change keys of config.json, or take those away that are given as an ellipsis."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        changed = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({key: value for key, value in changed.items() if value is not ...}))

    return change


def made(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: write_model(folder, SMALL | changes)


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Change the header of the weights, and leave what follows it."""

    def rewrite(folder: Path) -> None:
        file = folder / "model.safetensors"
        data = file.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        described = json.loads(data[8:end])
        change(described)
        encoded = json.dumps(described).encode()
        file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data[end:])

    return rewrite


def index(**elsewhere: str) -> Callable[[Path], object]:
    """Have an index name the file of each tensor, and files of other tensors."""

    def write(folder: Path) -> None:
        named = dict.fromkeys(stored_tensors(folder, ""), "model.safetensors") | elsewhere
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))

    return write


def add_output(folder: Path, first: bytes) -> None:
    """Store an output layer beside the embedding, equal to it but for the ``first`` bytes."""
    shape = (SMALL["vocab_size"], SMALL["hidden_size"])
    write_weights(folder, SMALL, **{"lm_head.weight": shape})
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-2 * shape[0] * shape[1], os.SEEK_END)  # it is the last tensor
        file.write(first)


def both(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [change(folder) for change in changes]


def slow_tokenizer(folder: Path) -> None:
    from transformers import ByT5Tokenizer

    for file in folder.glob("tokenizer*"):
        file.unlink()
    ByT5Tokenizer().save_pretrained(folder)
    (folder / "vocab.json").write_text("{}")


def system_messages(folder: Path) -> None:
    for name in ("tasks.jsonl", "others.jsonl"):
        (folder / name).write_text(
            '{"prompt": [{"role": "system", "content": "?"}, {"role": "user", "content": "1+2?"}], "answer": "3"}'
        )


CALLED = [
    {"role": "user", "content": "1+2?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "calculate", "arguments": '{"expression": "1+2"}'}}]},
    {"role": "tool", "content": "3"},
    {"role": "user", "content": "Well?"},
]


def earlier_calls(folder: Path) -> None:
    for name in ("tasks.jsonl", "others.jsonl"):
        (folder / name).write_text(json.dumps({"prompt": CALLED, "answer": "3"}))


def be_shown_calls(folder: Path) -> None:
    asyncio.run(ChatFormat.load(str(folder)).prompt(chat_prompt(CALLED)))


def nothing(folder: Path) -> None:
    pass


def load_template(folder: Path) -> None:
    ChatFormat.load(str(folder))


def call_tools(folder: Path) -> None:
    """What an episode of an environment with tools does before its first turn."""
    asyncio.run(ChatFormat.load(str(folder)).prompt([Message("user", "1+2?")], [ToolSpec("add", "Adds.", {"type": "object"})]))


def be_told(folder: Path) -> None:
    asyncio.run(ChatFormat.load(str(folder)).prompt([Message("system", "Be brief."), Message("user", "1+2?")]))


def load_config(**learner: Any) -> Callable[[Path], object]:
    return lambda folder: supported_config(folder, LearnerConfig(**learner))


def read_config(folder: Path) -> None:
    read_shape(str(folder))


def load_weights(folder: Path) -> None:
    from asyncrl.learners.megatron.hugging_face import HuggingFaceTensors

    with HuggingFaceTensors(folder) as tensors:
        for tensor in read_shape(str(folder)).architecture.tensors():
            tensors.rectangle(tensor.name, tensor.shape, (0,) * len(tensor.shape), tensor.shape)


def read_parser(name: str, *, reasoning: bool = False) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from asyncrl.generators.tool_calls.reader import ToolCallReader
        from asyncrl.generators.tool_calls.reasoning import Reasoning

        chat = ChatFormat.load(str(folder))
        try:
            Reasoning(chat, name) if reasoning else ToolCallReader(chat.tokenizer, name)
        except RuntimeError as error:
            raise AsyncRLError(str(error)) from error

    return read


PERHAPS = ("generators.engine={enable_prefix_caching: perhaps}",)


def start_engine(*overrides: str) -> Callable[[Path], object]:
    def run(folder: Path) -> None:
        pool = compose("quickstart", list(overrides)).generators
        try_engine_arguments(EngineSettings(pool, str(folder), 256), "generators")

    return run


def long_prompt(folder: Path) -> None:
    """What an episode does before its first turn."""
    ids = asyncio.run(ChatFormat.load(str(folder)).prompt([Message("user", "1+2?")]))
    if len(ids) >= 8:
        raise AsyncRLError("its prompt leaves no room")


def track(*overrides: str) -> Callable[[Path], object]:
    def run(folder: Path) -> None:
        recipe = compose("quickstart", [f"run_dir={folder}/runs", *(each.replace("HERE", str(folder)) for each in overrides)])
        tracker = Tracker(recipe, RunFolder.create(recipe))
        tracker.start()
        tracker.finish(Status.COMPLETED, 120)

    return run


def damaged(folder: Path) -> None:
    (folder / "m.db").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)


def deleted(folder: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/m.db")
    client.delete_experiment(client.create_experiment("asyncrl"))


DATABASE = ("tracking.uri='sqlite:///HERE/m.db'",)
