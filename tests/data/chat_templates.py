"""Small chat templates with the variables of well-known families, and conversations for them."""

import json
from typing import Any

HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\nAnswer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""  # noqa: E501

LLAMA = """\
{{- bos_token }}
{%- macro head(role) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}{%- endmacro %}
{%- if tools is not none %}
    {{- head('system') + 'Environment: ipython\\nRespond as {"name": name, "parameters": dictionary}.\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
    {{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- head('assistant') + '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role in ('tool', 'ipython') %}
        {{- head('ipython') + (message.content | tojson) + '<|eot_id|>' }}
    {%- else %}
        {{- head(message['role']) + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- head('assistant') }}{%- endif %}
"""  # noqa: E501

MISTRAL = """\
{{- bos_token }}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and message == users[-1] %}
            {{- '[AVAILABLE_TOOLS] [' }}
            {%- for tool in tools %}{{- tool | tojson }}{{- '' if loop.last else ', ' }}{%- endfor %}
            {{- '][/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls is defined %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id | length != 9 %}{{- raise_exception('an id has 9 characters') }}{%- endif %}
            {%- set written = call.function | tojson %}
            {{- written[:-1] + ', "id": "' + call.id + '"}' }}{{- ']' + eos_token if loop.last else ', ' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""  # noqa: E501

HARMONY = """\
{%- if tools %}
    {{- '<|start|>developer<|message|># Tools\\nnamespace functions {' }}
    {%- for tool in tools %}{{- '\\ntype ' + tool.function.name + ' = ' + (tool.function.parameters | tojson) }}{%- endfor %}
    {{- '}<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + (call.arguments | tojson) + '<|call|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' + (message.content | tojson) + '<|end|>' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
    {%- else %}
        {{- '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""  # noqa: E501

PIECES = """\
{%- for message in messages %}
    {{- message.role | upper + ': ' }}
    {%- for piece in message.content %}{%- if piece.type == 'text' %}{{- piece.text + ' ' }}{%- else %}{{- '<image>' }}{%- endif %}{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}
"""  # noqa: E501

EITHER = """\
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.content is string %}{{- message.content }}
    {%- else %}{%- for piece in message.content %}{{- piece.text }}|{%- endfor %}{%- endif %}
{%- endfor %}
"""

CALLING = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "harmony": HARMONY}
"""Templates that take tools."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tell the {name} at a <place> & time.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "tide")
]

ARGUMENTS = {"city": 'Zürich "x"\n', "days": 2}
CALL: dict[str, Any] = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": ARGUMENTS},
}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Will it rain?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"rain": true}', "tool_call_id": "abcdefghi", "name": "weather"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And the tide?"},
]


def written_call(family: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as a model of the family writes it."""
    given = json.dumps(arguments, ensure_ascii=False)
    return {
        "hermes": f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>',
        "llama": f'{{"name": "{name}", "parameters": {given}}}',
        "mistral": f'[TOOL_CALLS][{{"name": "{name}", "arguments": {given}}}]',
        "harmony": (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
            f"to=functions.{name} <|constrain|>json<|message|>{given}<|call|>"
        ),
    }[family]
