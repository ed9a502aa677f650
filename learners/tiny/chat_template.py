"""The tiny model's chat template: tools in the system message, calls and responses in the Hermes convention.

What always holds: rendering more messages only appends text, and a rendered assistant turn looks exactly like a sampled
one. So a conversation can be continued token by token without rendering it again.
"""

CHAT_TEMPLATE = """\
{%- set told = messages[0].content if messages and messages[0].role == 'system' else '' -%}
{%- if told or tools -%}
    {{- '<|im_start|>system\\n' + told -}}
    {%- if tools -%}
        {{- '<tools>' -}}
        {%- for tool in tools -%}
            {{- '\\n' + (tool | tojson) -}}
        {%- endfor -%}
        {{- '\\n</tools>' -}}
    {%- endif -%}
    {{- '<|im_end|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>tool\\n<tool_response>' + message.content + '</tool_response><|im_end|>' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' + (message.content or '') -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set function = call.function or call -%}
            {%- set arguments = function.arguments -%}
            {{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
            {{- (arguments if arguments is string else arguments | tojson) + '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>' -}}
    {%- elif message.role == 'user' -%}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
