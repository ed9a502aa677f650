"""Makes a scripted model: random weights of a chosen size, with an output layer that knows which token follows which.

A benchmark needs replies of the same length in every trainer, and well-formed tool calls, but not a model that understands
anything. Each token of a script has an embedding that is orthogonal to the others', and the output layer gives the same large
logit to all tokens that may follow it. The layers between are ordinary and random; they add little to the embedding, and cost as
much to compute as in any model of this size. Where the script allows several tokens, the model chooses among them with equal
probability, so that rewards within a group differ.

What always holds: whatever comes before, a turn follows the script with a probability of more than 0.999. Every trainer that
reads Hugging Face folders can use the model.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from asyncrl.bench.loop.script import CONTROL_TOKENS, END, PADDING, TAG_TOKENS, Script, Size

CONTEXT_LENGTH = 4096

_CHAT_TEMPLATE = """\
{%- if tools or messages[0].role == 'system' -%}
    {{- '<|system|>' -}}
    {%- if messages[0].role == 'system' -%}{{- messages[0].content -}}{%- endif -%}
    {%- if tools -%}
        {{- INSTRUCTIONS -}}
        {%- for tool in tools -%}
            {%- set function = tool.function -%}
            {{- '\\n{"type": "function", "function": {"name": ' + (function.name | tojson) -}}
            {{- ', "description": ' + (function.description | tojson) -}}
            {{- ', "parameters": {"type": "object", "properties": {' -}}
            {%- for name, property in function.parameters.properties.items() -%}
                {{- (name | tojson) + ': {"type": ' + (property.type | tojson) -}}
                {{- ', "description": ' + ((property.description or '') | tojson) + '}' -}}
                {%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
            {%- endfor -%}
            {{- '}, "required": ' + (function.parameters.required | tojson) + '}}}' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<|user|>' + message.content + '<|respond|>' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|tool|>' + message.content + '<|resume|>' -}}
    {%- elif message.role == 'assistant' -%}
        {{- message.content or '' -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function or call -%}
            {%- set arguments = function.arguments -%}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
            {{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
"""

_JSON = (
    '\n{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "integer", "description": "',
    '."}, "',
    '."}}, "required": ["',
    '", "',
    '"]}}}',
)
"""Parts of every tool's description; each becomes one token."""

_SPOKEN_LOGIT = 40.0
_LAYER_STD = 0.02
_PIECE_SCORE, _BYTE_SCORE = -1.0, -20.0
"""Log-probabilities of the tokenizer's pieces; with these, a text is cut into as few pieces as possible."""
_WORD = re.compile(r" ?[A-Za-z_]+|[^A-Za-z_]")


def make_scripted_model(
    folder: Path, size: Size, script: Script, instructions: str, texts: Iterable[str], seed: int = 0
) -> PreTrainedTokenizerFast:
    """Write model and tokenizer as a Hugging Face folder, and return the tokenizer. Turns off the progress bars of transformers.

    Args:
        folder: the folder, which is created.
        size: the model's layout.
        script: the turns that the model samples.
        instructions: text that the chat template writes before the descriptions of the tools.
        texts: prompts and tools' answers, or some of them; their words become tokens.
        seed: seed of the weights.

    Raises:
        ValueError: the script has more tokens than the hidden size, or one that the tokenizer splits, or one at two places.
    """
    logging.disable_progress_bar()
    tokenizer = _tokenizer(script, instructions, texts)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _model(size, script.followers(), tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def _tokenizer(script: Script, instructions: str, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer whose vocabulary has each token of the script, the words of all texts, and all bytes."""
    named = (*CONTROL_TOKENS, *TAG_TOKENS)
    spoken = [token for place in (*script.call, *script.answer) for token in place if token not in named]
    words = [word for text in (instructions, _CHAT_TEMPLATE, *texts) for word in _WORD.findall(text)]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = dict.fromkeys(to_bytes.pre_tokenize_str(text)[0][0] for text in (*spoken, *words, *_JSON))
    alphabet = [byte for byte in sorted(pre_tokenizers.ByteLevel.alphabet()) if byte not in pieces]
    vocabulary = [
        *((token, _BYTE_SCORE) for token in named),
        *((piece, _PIECE_SCORE) for piece in pieces),
        *((byte, _BYTE_SCORE) for byte in alphabet),
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = to_bytes
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAG_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PADDING,
        chat_template=_CHAT_TEMPLATE.replace("INSTRUCTIONS", repr(instructions)),
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def _model(size: Size, followers: Mapping[str, Iterable[str]], tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Make the model that follows the script, with random weights from torch's default generator."""
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,  # padded to split evenly over tensor-parallel ranks
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head_dim,
        intermediate_size=size.intermediate,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=_LAYER_STD,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if len(followers) > size.hidden:
        raise ValueError(f"the script has {len(followers)} tokens, over the hidden size {size.hidden}; use fewer")
    model = Qwen3ForCausalLM(config)
    id_of = {token: _id(token, tokenizer) for token in {*followers, END}}
    with torch.no_grad():
        embeddings, output = model.model.embed_tokens.weight, model.lm_head.weight
        embeddings.normal_()
        output.zero_()
        orthogonal = torch.linalg.qr(torch.randn(size.hidden, size.hidden))[0] * size.hidden**0.5
        for direction, (token, following) in zip(orthogonal, followers.items(), strict=False):
            embeddings[id_of[token]] = direction
            for each in following:
                output[id_of[each]] += direction * (_SPOKEN_LOGIT / size.hidden)
    return model


def _id(token: str, tokenizer: PreTrainedTokenizerFast) -> int:
    ids: list[int] = tokenizer.encode(token, add_special_tokens=False)
    if len(ids) != 1:
        raise ValueError(f"{token!r} of the script is not a single token; choose another word")
    return ids[0]
