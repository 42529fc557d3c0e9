"""Small tokenizers with the control tokens of Qwen2.5, Qwen3 and Llama 3, and templates that render as theirs do.

The templates are written for these tests. Each renders, for the messages used here, the text that the family's own
template renders: the default system prompt and tool block of Qwen2.5, the stripping of earlier thoughts of Qwen3, the
trimming and the begin-of-text token of Llama 3.
"""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_TOOLS = r"""{%- macro tool_block() -%}
{{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" }}
{{- "You are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}
{{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments " }}
{{- "within <tool_call></tool_call> XML tags:\n<tool_call>\n" }}
{{- "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- endmacro -%}
{%- macro tool_reply(at) -%}
{%- if at == 0 or messages[at - 1].role != "tool" %}{{- "<|im_start|>user" }}{%- endif %}
{{- "\n<tool_response>\n" + messages[at].content + "\n</tool_response>" }}
{%- if at + 1 == messages | length or messages[at + 1].role != "tool" %}{{- "<|im_end|>\n" }}{%- endif %}
{%- endmacro -%}
"""

QWEN25 = (
    _TOOLS
    + r"""{%- set default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant." %}
{%- set given = messages[0].role == "system" %}
{%- set system = messages[0].content if given else default %}
{%- if tools %}{{- "<|im_start|>system\n" + system + "\n\n" }}{{- tool_block() }}
{%- else %}{{- "<|im_start|>system\n" + system + "<|im_end|>\n" }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{{- tool_reply(loop.index0) }}
    {%- elif message.role == "assistant" and message.tool_calls %}
        {{- "<|im_start|>assistant" }}
        {%- if message.content %}{{- "\n" + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- "\n<tool_call>\n{\"name\": \"" + call.function.name + "\", \"arguments\": " }}
            {{- call.function.arguments | tojson }}{{- "}\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\n" }}
    {%- elif not (loop.first and message.role == "system") %}
        {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{%- endif %}
"""
)

QWEN3 = (
    _TOOLS
    + r"""{%- if tools %}
    {{- "<|im_start|>system\n" }}
    {%- if messages[0].role == "system" %}{{- messages[0].content + "\n\n" }}{%- endif %}
    {{- tool_block() }}
{%- elif messages[0].role == "system" %}{{- "<|im_start|>system\n" + messages[0].content + "<|im_end|>\n" }}
{%- endif %}
{%- set ns = namespace(last_query=messages | length - 1) %}
{%- for message in messages %}
    {%- if message.role == "user" and not (message.content.startswith("<tool_response>")
            and message.content.endswith("</tool_response>")) %}{%- set ns.last_query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else "" %}
    {%- if message.role == "tool" %}{{- tool_reply(loop.index0) }}
    {%- elif message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
    {%- elif message.role == "assistant" %}
        {%- set thought = "" %}
        {%- if "</think>" in content %}
            {%- set thought = content.split("</think>")[0].rstrip("\n").split("<think>")[-1].lstrip("\n") %}
            {%- set content = content.split("</think>")[-1].lstrip("\n") %}
        {%- endif %}
        {{- "<|im_start|>assistant\n" }}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- "<think>\n" + thought.strip("\n") + "\n</think>\n\n" + content.lstrip("\n") }}
        {%- else %}{{- content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- "\n" }}{%- endif %}
            {{- "<tool_call>\n{\"name\": \"" + call.function.name + "\", \"arguments\": " }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- "}\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\n" }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- "<think>\n\n</think>\n\n" }}{%- endif %}
{%- endif %}
"""
)

LLAMA3 = r"""{%- for message in messages %}
    {%- set header = "<|start_header_id|>" + message["role"] + "<|end_header_id|>\n\n" %}
    {%- if loop.index0 == 0 %}{{- bos_token }}{%- endif %}
    {{- header + message["content"] | trim + "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}{%- endif %}
"""

STRICT = r"""{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) %}
        {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {%- if message.role == "user" %}{{- "[INST] " + message.content + " [/INST]" }}
    {%- else %}{{- " " + message.content | trim + eos_token }}{%- endif %}
{%- endfor %}
"""

ROUNDS = r"""{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- "[Round " ~ (loop.index0 // 2 + 1) ~ "]\n" + message.content + "\n<|im_start|>" }}
    {%- else %}{{- message.content + "<|im_end|>\n" }}{%- endif %}
{%- endfor %}
"""

_QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_QWEN_MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
_LLAMA_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

FAMILIES = {
    "qwen2.5": (QWEN25, _QWEN_SPECIAL, _QWEN_MARKUP[:2], None, "<|im_end|>"),
    "qwen3": (QWEN3, _QWEN_SPECIAL, _QWEN_MARKUP, None, "<|im_end|>"),
    "llama3": (LLAMA3, _LLAMA_SPECIAL, [], "<|begin_of_text|>", "<|eot_id|>"),
    "strict": (STRICT, ["<s>", "</s>", "[INST]", "[/INST]"], [], "<s>", "</s>"),
    "rounds": (ROUNDS, _QWEN_SPECIAL, ["<think>"], None, "<|im_end|>"),
}

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_CORPUS = [
    "You are a helpful assistant. The user asks and the assistant answers.",
    "system user assistant tool function arguments name",
    "Move up, down, left or right. The lake is frozen; there are holes in the ice.",
    "\n\n\n  # Tools\n\nYou may call one or more functions to assist with the user query.\n\n",
    "<|im_ start end think tool_call tool_response INST eot_id header |>",
] * 8


@cache
def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of a few hundred tokens with one family's control tokens and template."""
    template, special, markup, bos, eos = FAMILIES[family]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in markup])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template, bos_token=bos, eos_token=eos, pad_token=special[0]
    )
