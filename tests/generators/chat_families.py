# ruff: noqa: RUF001 - DeepSeek writes its control tokens with fullwidth bars
"""Small tokenizers and chat templates in the manner of the model families people train, made on the spot.

Each has what sets its family apart: where its control tokens live, how it splits text, and what its template does to content.
"""

from collections.abc import Sequence
from typing import Any

from chat_tokenizers import make_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from asyncrl.envs.builtin.calculator import Calculator
from asyncrl.envs.builtin.lessons.calculator import CalculatorLessons
from asyncrl.envs.lessons.demonstrations import demonstrate
from asyncrl.learners.tiny.conversations import render
from asyncrl.learners.tiny.tokenizer import fit_tokenizer

_TEXTS = [
    "The user asks, the assistant answers, and a tool responds: <b>42</b>.\n\n",
    'def main():\n    print({"output": [1, 2, 3]})  # end of the start\n',
    "<s><s> </s></s> [INST] im_end im_start user assistant system tool_response think User Assistant\n",
] * 4
_WORDS = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

_LLAMA_3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + system_message + "<|eot_id|>" }}
{%- if tools %}
    {%- set first = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
    {{- "<|start_header_id|>user<|end_header_id|>\\n\\nCall a function as " }}
    {{- '{"name": function name, "parameters": dictionary of argument name and its value}.\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" + ({"output": message.content} | tojson) + "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>" + message['role'] + "<|end_header_id|>\\n\\n" + message['content'] | trim + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}{%- endif %}
"""

_QWEN_3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nCall one as\\n<tool_call>\\n{\\"name\\": <name>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set answered = message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>') %}
    {%- if ns.searching and message.role == "user" and not answered %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = (messages | length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content, thought = message.content, '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') + '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS] ' + tools | string + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS] ' + message.content | string + '[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments }}
        {%- endfor %}
        {{- eos_token }}
    {%- else %}{{- ' ' + message.content | trim + eos_token }}
    {%- endif %}
{%- endfor %}
"""

_DEEPSEEK = """\
{{- bos_token }}
{%- for message in messages %}{%- if message.role == 'system' %}{{- message.content }}{%- endif %}{%- endfor %}
{%- for tool in tools or [] %}{{- '\\n' + tool | tojson }}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<｜User｜>' + message.content + '<｜Assistant｜>' }}
    {%- elif message.role == 'assistant' and message.tool_calls %}
        {{- '<｜tool▁calls▁begin｜>' }}
        {%- for call in message.tool_calls %}
            {{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments }}
            {{- '<｜tool▁call▁end｜>' }}
        {%- endfor %}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'assistant' %}{{- message.content + '<｜end▁of▁sentence｜>' }}
    {%- elif message.role == 'tool' %}{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
    {%- endif %}
{%- endfor %}
"""


def byte_level(template: str, special: Sequence[str], tags: Sequence[str], eos: str, **options: Any) -> PreTrainedTokenizerFast:
    """A tokenizer like Llama 3's or Qwen's: byte-level merges within words, and control tokens outside its vocabulary."""
    bpe = Tokenizer(models.BPE(ignore_merges=options.pop("ignore_merges", False)))
    bpe.normalizer = options.pop("normalizer", None)
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator(_TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return _wrapped(bpe, template, eos_token=eos, **options)


def _wrapped(tokenizer: Tokenizer, template: str, **options: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template, clean_up_tokenization_spaces=False, **options
    )


def llama_3() -> PreTrainedTokenizerFast:
    """Content is trimmed and put into JSON; a word that the vocabulary holds is one token, whatever the merges say."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"]
    bos = "<|begin_of_text|>"
    made = byte_level(_LLAMA_3, [*special, "<|python_tag|>"], (), "<|eot_id|>", bos_token=bos, ignore_merges=True)
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, made.convert_tokens_to_ids(bos))]
    )
    return made


def qwen_3() -> PreTrainedTokenizerFast:
    """Tags that are added tokens and yet not special; a template that looks for them in content."""
    tags = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<|fim_prefix|>"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return byte_level(_QWEN_3, special, tags, "<|im_end|>", normalizer=normalizers.NFC(), pad_token="<|endoftext|>")


def deepseek() -> PreTrainedTokenizerFast:
    """The tokens that begin turns are not special."""
    tags = ["<｜User｜>", "<｜Assistant｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<think>", "</think>"]
    tags += ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"]
    return byte_level(_DEEPSEEK, special, tags, "<｜end▁of▁sentence｜>", bos_token="<｜begin▁of▁sentence｜>")


def mistral(prepend: str = "each") -> PreTrainedTokenizerFast:
    """SentencePiece's manner: control tokens inside the vocabulary, merges that lead to them, and a blank put before text.

    ``prepend``: before ``each`` piece of text between control tokens, or before the ``first`` alone.
    """
    control = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
    control += ["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"]
    letters = [chr(code) for code in range(33, 127)]
    merges = [("<", "s"), ("<s", ">"), ("<", "/"), ("</", "s"), ("</s", ">"), ("\u2581", "a"), ("e", "r"), ("\u2581a", "s")]
    vocabulary = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters, *(a + b for a, b in merges)]
    ids = {token: index for index, token in enumerate(dict.fromkeys(vocabulary))}
    bpe = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prepend == "each":
        bpe.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        bpe.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="first", split=False)
    bpe.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return _wrapped(bpe, _MISTRAL, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    """A vocabulary that matches whole pieces of text, control tokens among them."""
    control = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>"]
    pieces = [(token, 0.0) for token in control] + [(chr(code), -9.0) for code in range(32, 127)] + [("\n", -9.0), ("user", -3.0)]
    model = Tokenizer(models.Unigram(pieces, unk_id=0))
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return _wrapped(model, make_tokenizer().chat_template, eos_token="<|im_end|>", pad_token="<pad>", unk_token="<unk>")


def tiny() -> PreTrainedTokenizerFast:
    """The tiny model's own tokenizer."""
    scripts = [(task, CalculatorLessons().ideal(task)) for task in Calculator.make_tasks("train", 60, 0)]
    return fit_tokenizer(render(demonstrate(lambda task: Calculator(), scripts)), 1024)


FAMILIES = {
    "bytes": make_tokenizer,
    "tiny": tiny,
    "llama 3": llama_3,
    "qwen 3": qwen_3,
    "deepseek": deepseek,
    "mistral": mistral,
    "mistral, first": lambda: mistral("first"),
    "unigram": unigram,
}
LOSSLESS = ("bytes", "tiny", "llama 3", "deepseek")
"""Those whose tokens, decoded, are the very text that was encoded."""
