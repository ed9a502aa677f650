"""Dry run and launch never disagree: what a part of a run refuses when it starts, the plan has refused before."""

import ast
import asyncio
import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
import pytest
from model_folders import SMALL, write_model, write_weights
from rich.console import Console

import asyncrl.core.files.weight_files
import asyncrl.run.models.dequantised
import asyncrl.run.models.embedded_tokens
import asyncrl.run.tracking.tracker
import asyncrl.weights.checkpoint
import generators.chat_format
import generators.chat_template
import generators.templates
import generators.vllm.engine_arguments
import learners.reward_model
import learners.supported_model
from asyncrl.core.chat_prompt import chat_prompt
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.files.weight_files import stored_tensors
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.summary import Status
from asyncrl.run.models.model_shape import read_shape
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.plan.plan import make_plan
from asyncrl.run.plan.plan_view import plan_view
from asyncrl.run.recipe.compose import compose
from asyncrl.run.tracking.tracker import Tracker
from generators.chat_format import ChatFormat
from generators.vllm.engine_arguments import EngineSettings, try_engine_arguments
from learners.supported_model import supported_config

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
    from learners.megatron.hugging_face import HuggingFaceTensors

    with HuggingFaceTensors(folder) as tensors:
        for tensor in read_shape(str(folder)).architecture.tensors():
            tensors.rectangle(tensor.name, tensor.shape, (0,) * len(tensor.shape), tensor.shape)


def read_parser(name: str, *, reasoning: bool = False) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        from generators.calls.reader import ToolCallReader
        from generators.calls.reasoning import Reasoning

        chat = ChatFormat.load(str(folder))
        try:
            Reasoning(chat, name) if reasoning else ToolCallReader(chat.tokenizer, name)
        except RuntimeError as error:
            raise AsyncRLError(str(error)) from error

    return read


PERHAPS = ("generators.engine={enable_prefix_caching: perhaps}",)


def start_engine(*overrides: str) -> Callable[[Path], object]:
    pool = compose("quickstart", list(overrides)).generators
    return lambda folder: try_engine_arguments(EngineSettings(pool, str(folder), 256), "generators")


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

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("attention_bias", {"attention_bias": True}),
    ("mlp_bias", {"mlp_bias": True, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
    ("qk_norm", {"qk_norm": True, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}),
    ("hidden_act gelu", {"hidden_act": "gelu"}),
    (
        "use_sliding_window, layer_types sliding_attention",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    ("text_config", {"text_config": {"hidden_size": 64}}),
    ("dual_chunk_attention_config", {"dual_chunk_attention_config": {"chunk_size": 8}}),
    ("is_causal false", {"is_causal": False}),
    ("rope_type yarn", {"rope_parameters": YARN}),
    ("rope_type dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    ("partial_rotary_factor 0.5", {"partial_rotary_factor": 0.5}),
    ("logit_scale 0.5", {"logit_scale": 0.5}),
]
"""What engines compute and the learner does not, and how a configuration asks for it."""
FROM_FILES = ("~tasks", "+tasks={kind: files, train: [{path: HERE/tasks.jsonl}], evaluation: [{path: HERE/others.jsonl}]}")

CASES = {
    "no template": Case(lambda folder: (folder / "chat_template.jinja").unlink(), "there is none", load_template),
    "no tokenizer": Case(
        lambda folder: [each.unlink() for each in folder.glob("tokenizer*")],
        "holds no tokenizer",
        load_template,
    ),
    "cut tokenizer": Case(
        lambda folder: (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes()[:500]),
        r"the tokenizer in .* cannot be loaded",
        load_template,
    ),
    "template not in UTF-8": Case(
        lambda folder: (folder / "chat_template.jinja").write_bytes((ML + START).encode() + b"\xe9"),
        r"chat_template\.jinja is not UTF-8: .*; save it as UTF-8",
        load_template,
    ),
    "slow tokenizer": Case(both(slow_tokenizer, template(ML + START)), "put a fast tokenizer", load_template),
    "no syntax": Case(template("{% for m in messages %}"), "does not render a turn", load_template),
    "no content": Case(template(ML.replace("{{ m.content }}", "")), "exactly once", load_template),
    "no end": Case(template(ML.replace("<|im_end|>", "\n")), "does not begin with a special token", load_template),
    "no tools": Case(
        template(ML.replace("{{ m.role }}", "{{ raise_exception('?') if m.role == 'tool' else m.role }}") + START),
        "does not render a tool response",
        call_tools,
    ),
    "end at the end": Case(
        template(ML.replace("<|im_end|>", "{% if loop.last %}<|im_end|>{% endif %}") + START), "only where the", load_template
    ),
    "no response": Case(
        template(ML.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}") + START),
        "leaves out the content",
        call_tools,
    ),
    "tools left out": Case(template(ML.replace("{{ tools }}", "") + START), "leaves out the tools", call_tools),
    "calls left out": Case(
        both(template(ML + START), earlier_calls),
        "leaves out the calls of the assistant's earlier turns",
        be_shown_calls,
        FROM_FILES,
    ),
    "system left out": Case(
        both(template(ML.replace("{{ m.content }}", "{{ m.content if m.role != 'system' }}") + START), system_messages),
        "leaves out the system message",
        be_told,
        FROM_FILES,
    ),
    "no template for tools": Case(
        both(template_for_tools("{# <tool_call> #}{{ messages }}"), template(ML + START)), "exactly once", call_tools
    ),
    "no such variable": Case(
        template(ML + START + "{{ date_of_birth }}"),
        "reads no variable 'thinking'; it reads date_of_birth",
        lambda folder: ChatFormat.load(str(folder), ModelConfig(path="m", chat_template_kwargs={"thinking": False})),
        ("+model.chat_template_kwargs={thinking: false}",),
    ),
    "ends": Case(
        lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": "</s>"}'),
        "must be a token id",
        load_template,
    ),
    "no start": Case(template(ML), "not followed by the start", load_template),
    "plain between": Case(
        template(
            "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}A:{% endif %}"
        ),
        "only ordinary text",
        load_template,
    ),
    "pieces": Case(template(ML.replace("<|im_start|>{{", "{{ '<|im_' + 'start|>' +") + START), "from pieces", load_template),
    "prompt": Case(
        nothing,
        r"has \d+ tokens with this model, and model.max_context is 12",
        long_prompt,
        (
            "model.max_context=12",
            "sampling.max_turn_tokens=4",
        ),
    ),
    "system role": Case(
        both(
            template(ML.replace("{{ m.role }}", "{{ raise_exception('no system') if m.role == 'system' else m.role }}") + START),
            system_messages,
        ),
        r"cannot render the prompt .*: no system; use a template that takes the roles system, user",
        None,
        FROM_FILES,
    ),
    "beyond the embedding": Case(
        lambda folder: write_model(folder, SMALL | {"vocab_size": 256}),
        r"has tokens up to \d+ \('.*'\), and the model has embeddings of 256; use the tokenizer .*resize_token_embeddings",
        None,
    ),
    "an end beyond the embedding": Case(
        lambda folder: (folder / "generation_config.json").write_text('{"eos_token_id": [1, 512]}'),
        "names 512 as eos_token_id, and the model has embeddings of 512",
        None,
    ),
    "no configuration": Case(config(rms_norm_eps=None), "no readable Hugging Face config.json", load_config()),
    **{told: Case(made(**changes), f"ForCausalLM with {told} is not supported", load_config()) for told, changes in VARIANTS},
    "model type": Case(
        made(model_type="llama"), "has model_type 'llama', and that of a Qwen3ForCausalLM is 'qwen3'", load_config()
    ),
    "no head size": Case(config(head_dim=...), "has no head_dim, for which", read_config),
    "fp8 of experts": Case(
        lambda folder: write_model(folder, EXPERTS),
        "have not been tested",
        load_config(fp8="e4m3", dtype="bfloat16"),
        ("learner={fp8: e4m3, dtype: bfloat16}",),
        WITH_GPU,
    ),
    "fp8 of sizes": Case(
        lambda folder: write_model(folder, SMALL | {"intermediate_size": 120}),
        "are not a multiple of 16",
        load_config(fp8="e4m3", dtype="bfloat16"),
        ("learner={fp8: e4m3, dtype: bfloat16}",),
        WITH_GPU,
    ),
    "fp8 without a GPU": Case(nothing, "there is no GPU here", None, ("learner={fp8: e4m3, dtype: bfloat16}",)),
    "gptq": Case(
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        r"quantised \(gptq\), and transformers cannot dequantise them here: it has no way",
        load_config(),
    ),
    "unknown quantisation": Case(
        config(quantization_config={"quant_method": "nope"}), "Unknown quantization type, got nope", load_config()
    ),
    "quantised and not whole": Case(
        both(config(quantization_config={"quant_method": "fp8"}, num_hidden_layers=3)),
        "lacks tensor model.layers.2",
        load_weights,
    ),
    "no weights": Case(lambda folder: (folder / "model.safetensors").unlink(), "holds neither", load_weights),
    "cut weights": Case(
        lambda folder: (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-4]),
        r"of [\d,]+ bytes, is not a whole safetensors file",
        load_weights,
    ),
    "pointer": Case(
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "a Git LFS pointer",
        load_weights,
    ),
    "pickled weights": Case(
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "in pytorch_model.bin, a pickle, .*; if you trust it, write safetensors beside it: python -c",
        load_weights,
    ),
    "no output layer": Case(
        config(tie_word_embeddings=False), r"lacks tensor lm_head\.weight; .*tie_word_embeddings", load_weights
    ),
    "another output layer": Case(
        lambda folder: add_output(folder, b"\1"), r"lm_head.weight in .* differs from model.embed_tokens.weight in", None
    ),
    "an output layer of another type": Case(
        both(lambda folder: add_output(folder, b""), header(lambda found: found["lm_head.weight"].update(dtype="F16"))),
        "lm_head.weight in .* differs from",
        None,
    ),
    "no tensor": Case(header(lambda found: found.update(other=found.pop(LAYER))), f"lacks tensor {LAYER}", load_weights),
    "further tensors": Case(
        config(num_hidden_layers=1), r"has tensor model\.layers\.1\..* and 10 more, which the model in its config.json", None
    ),
    "further files": Case(
        lambda folder: (folder / "adapter_model.safetensors").write_bytes(b""), "holds adapter_model.safetensors beside", None
    ),
    "vocabulary": Case(config(vocab_size=511), r"implies \(511, 64\); set vocab_size to 512", load_weights),
    "shape": Case(config(intermediate_size=64), r"has shape \(128, 64\), but its config.json implies", load_weights),
    "type": Case(header(lambda found: found[LAYER].update(dtype="I16")), "is stored as I16", load_weights),
    "index without file": Case(index(more="other.safetensors"), r"there is no .*other\.safetensors", load_weights),
    "index without tensor": Case(index(more="model.safetensors"), "lacks tensor more, which", load_weights),
    "no index": Case(
        lambda folder: (folder / "model.safetensors.index.json").write_text("{"), "cannot read .*index.json", load_weights
    ),
    "a folder as file": Case(
        both(index(more="other.safetensors"), lambda here: (here / "other.safetensors").mkdir()), "Is a directory", load_weights
    ),
    "run folder": Case(lambda folder: (folder / "runs").write_text(""), "is no folder", track(), ("run_dir=HERE/runs",)),
    "damaged database": Case(damaged, "cannot be used", track(*DATABASE), DATABASE),
    "deleted experiment": Case(deleted, "has been deleted", track(*DATABASE), DATABASE),
    "metrics in files": Case(nothing, "MLflow no longer writes", track("tracking.uri=HERE/m"), ("tracking.uri=HERE/m",)),
    "unknown database": Case(nothing, "MLflow cannot use", track("tracking.uri='nope://x/y'"), ("tracking.uri='nope://x/y'",)),
    "no server": Case(nothing, "nothing answers at", None, ("tracking.uri='http://127.0.0.1:9'",)),
}
ASKING_VLLM = {
    "parser": Case(nothing, "jamba.*does not take", read_parser("jamba"), ("model.tool_parser=jamba",)),
    "reasoning": Case(
        nothing,
        "deepseek_r1.*does not take",
        read_parser("deepseek_r1", reasoning=True),
        ("+model.reasoning_parser=deepseek_r1",),
    ),
    **{
        key: Case(config(**{key: 100}), "256 is more than the model's 100 positions", start_engine())
        for key in ("n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length", "seq_len")
    },
    "tokens of calls": Case(
        template("{# <|start_header_id|> <|python_tag|> #}" + ML.replace("<tool_call>", "") + START),
        r"model\.tool_parser: .*'llama3_json' finds calls by the token '<\|python_tag\|>', which",
        read_parser("llama3_json"),
    ),
    "argument": Case(nothing, "vLLM refuses", start_engine(*PERHAPS), PERHAPS),
}
"""Cases for which vLLM is imported, here and by the plan: that takes long."""

REFUSALS: dict[tuple[ModuleType, str], tuple[str, ...] | str] = {
    (generators.chat_format, "ChatFormat.__init__"): ("no template",),
    (generators.chat_format, "ChatFormat.load"): ("no tokenizer", "cut tokenizer", "template not in UTF-8"),
    (generators.chat_format, "ChatFormat._control_tokens"): ("slow tokenizer",),
    (generators.chat_format, "ChatFormat._of"): ("no template for tools",),
    (generators.chat_template, "ChatTemplate._after_marker"): ("no content",),
    (generators.chat_template, "ChatTemplate._find_end_of_turn"): ("no syntax", "no end"),
    (generators.chat_template, "ChatTemplate._check_delta"): ("end at the end", "no start", "plain between"),
    (generators.chat_template, "ChatTemplate.check_reaches"): (
        "no tools",
        "no response",
        "tools left out",
        "system left out",
        "calls left out",
    ),
    (generators.chat_template, "ChatTemplate.check_follows"): ("no tools",),
    (generators.chat_format, "_named_ends"): ("ends",),
    (generators.chat_template, "ChatTemplate._check_tokens"): ("pieces",),
    (generators.templates, "templates_of"): ("no such variable",),
    (generators.vllm.engine_arguments, "check_cpu_arguments"): "the plan calls it",
    (generators.vllm.engine_arguments, "check_engine_arguments"): "the plan calls it",
    (generators.vllm.engine_arguments, "try_engine_arguments"): ("argument",),
    (learners.supported_model, "check_megatron"): "the plan calls it",
    (learners.supported_model, "supported_config"): ("no configuration",),
    (learners.supported_model, "_check_supported"): ("attention_bias", "model type"),
    (learners.supported_model, "_check_fp8"): ("fp8 of experts", "fp8 of sizes"),
    (asyncrl.core.files.weight_files, "stored_tensors"): ("no weights", "pickled weights", "index without tensor"),
    (asyncrl.core.files.weight_files, "check_weights"): ("further tensors", "further files"),
    (asyncrl.core.files.weight_files, "check_tensor"): ("no tensor", "no output layer", "shape", "vocabulary", "type"),
    (asyncrl.core.files.weight_files, "_refuse_another_output"): ("another output layer",),
    (asyncrl.core.files.weight_files, "_index"): ("no index",),
    (asyncrl.core.files.weight_files, "_header"): ("cut weights", "pointer", "index without file", "a folder as file"),
    (asyncrl.weights.checkpoint, "Checkpoint.__init__"): ("no weights",),
    (asyncrl.weights.checkpoint, "Checkpoint.check"): "while training",
    (asyncrl.run.models.embedded_tokens, "check_embedded"): ("beyond the embedding", "an end beyond the embedding"),
    (asyncrl.run.models.dequantised, "plain_folder"): "the disk is full, or the process was killed",
    (asyncrl.run.models.dequantised, "check_dequantisable"): ("gptq", "unknown quantisation"),
    (learners.reward_model, "RewardModel.__init__"): "the plan looks for all weights of the classifiers that it knows",
    (learners.reward_model, "RewardModel.score"): "while training",
    (asyncrl.run.tracking.tracker, "Tracker._raise_failure"): ("damaged database", "deleted experiment"),
    (
        asyncrl.run.tracking.tracker,
        "Tracker._call_further",
    ): "the plan imports trackers beside MLflow; training calls them",
    (asyncrl.run.tracking.tracker, "Tracker._put"): "while training",
    (asyncrl.run.tracking.tracker, "Tracker.finish"): "at the end",
    (asyncrl.run.tracking.tracker, "check_database"): "of a run that is resumed, before anything starts",
}
"""For each function of those modules that refuses something: cases, at least as many as its refusals, or why there are none."""


def refusals(module: ModuleType) -> Iterator[str]:
    """The functions of a module that raise an error of their own making, each as often as it does."""

    def within(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield name
            yield from within(child, f"{name}.{child.name}".removeprefix(".") if named else name)

    return within(ast.parse(inspect.getsource(module)), "")


def test_each_refusal_at_start_has_a_case():
    for module in {module for module, _ in REFUSALS}:
        for function, count in Counter(refusals(module)).items():
            told = REFUSALS.get((module, function))
            assert told is not None, f"{module.__name__}.{function} refuses something: name the cases"
            assert isinstance(told, str) or len(told) >= count, f"{module.__name__}.{function} has {count} refusals"
    for told in REFUSALS.values():
        assert isinstance(told, str) or set(told) <= {*CASES, *ASKING_VLLM}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path, SMALL)


def check(case: Case, folder: Path) -> None:
    """See that plan and start both refuse a case."""
    case.breaks(folder)
    overrides = [each.replace("HERE", str(folder)) for each in case.overrides]
    recipe = compose("quickstart", [f"model.path={folder}", f"run_dir={folder}/elsewhere", *overrides])
    with pytest.raises(RecipeError, match=case.told):
        make_plan(recipe, case.machine)
    if case.starts is not None:
        with pytest.raises(AsyncRLError):
            case.starts(folder)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_part_refuses_when_it_starts_the_plan_refuses(folder: Path, case: Case):
    check(case, folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in ASKING_VLLM if name != "argument"])
def test_what_vllm_refuses_when_it_starts_the_plan_refuses(folder: Path, name: str):
    check(ASKING_VLLM[name], folder)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("tried_apart")
def test_a_process_that_asks_vllm_says_what_it_refuses(folder: Path):
    check(ASKING_VLLM["argument"], folder)


@pytest.mark.usefixtures("tried_apart")
def test_a_sound_folder_is_taken(folder: Path):
    load_template(folder)
    load_config()(folder)
    load_weights(folder)
    track()(folder)
    plan = make_plan(compose("quickstart", [f"model.path={folder}", f"run_dir={folder}/new"]), ROOMY)
    assert not plan.remarks
    facts = {fact.topic: fact.found for fact in plan.facts}
    assert facts.keys() == {"vocabulary", "weights", "output layer", "turns", "prompt", "thoughts"}
    assert facts["output layer"] == "tied to the embedding"
    console = Console(file=StringIO(), width=200)
    console.print(plan_view(plan, compose("quickstart")))
    assert "a system message: reaches it; tools: reaches it" in console.file.getvalue()
    assert not (folder / "new").exists()
