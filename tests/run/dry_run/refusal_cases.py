"""Everything that is refused when a part of a run starts, case by case."""

from typing import Any

from broken_folders import (
    DATABASE,
    EXPERTS,
    LAYER,
    ML,
    PERHAPS,
    START,
    WITH_GPU,
    Case,
    add_output,
    be_shown_calls,
    be_told,
    both,
    call_tools,
    config,
    damaged,
    deleted,
    earlier_calls,
    header,
    index,
    load_config,
    load_template,
    load_weights,
    long_prompt,
    made,
    nothing,
    read_config,
    read_parser,
    slow_tokenizer,
    start_engine,
    system_messages,
    template,
    template_for_tools,
    track,
)
from model_folders import SMALL, write_model

from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.generators.chat_format import ChatFormat

LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2, "short_factor": [1.0] * 16, "long_factor": [1.0] * 16}
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
    ("rope_type longrope", {"rope_parameters": LONG}),
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
    "index of other weights": Case(
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"more": "other.safetensors"}}'),
        "which transformers reads, and .*index.json, which names other files",
        load_weights,
    ),
    "adapter": Case(
        lambda folder: (folder / "adapter_config.json").write_text("{}"), "an adapter of PEFT, which neither", load_weights
    ),
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
