"""What the tests of agent runs share: a template with tools and thinking, tools, and runs as an agent logs them."""

from __future__ import annotations

from typing import Any

# As templates of thinking models behave: tools in the system turn, calls and results marked up, and thinking kept only behind
# the last question of a user. Without thinking, the prompt itself closes it.
THINKER = (
    "{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}"
    "{%- for tool in tools or [] %}{{- '\nTool: ' + tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- set asked = namespace(at=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set asked.at = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > asked.at and (loop.last or m.reasoning_content) %}"
    "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}{{- m.content }}"
    "{%- for call in m.tool_calls or [] %}"
    "{{- '\n<call>' + call.function.name + ' ' + call.function.arguments | tojson + '</call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}"
    "{%- elif m.role != 'system' %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
LOOK = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any) -> dict[str, Any]:
    """Return a tool call as a server logs it."""
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def step(run: str, messages: list[dict[str, Any]], answer: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return one line of an agent run."""
    return {"run": run, "messages": messages, "answer": answer, **more}


def tool_run(name: str, looks: int, thinking: str = "I look.") -> list[dict[str, Any]]:
    """Return a run of `looks` tool calls and an answer, in which each step sees all that was said before."""
    messages = [said("system", "Be short."), said("user", "Colour of the sky?")]
    steps = []
    for at in range(looks):
        answer = said("assistant", "", reasoning_content=thinking, tool_calls=[call("look", {"at": at})])
        steps.append(step(name, list(messages), answer, tools=[LOOK]))
        messages += [answer, said("tool", "" if at % 2 else "Blue.")]
    answer = said("assistant", "It is blue.", reasoning_content=thinking)
    return [*steps, step(name, messages, answer, tools=[LOOK])]


def talk(name: str, turns: int) -> list[dict[str, Any]]:
    """Return a run of a user's questions, each answered with thinking that the next step no longer sees."""
    messages: list[dict[str, Any]] = []
    steps = []
    for at in range(turns):
        messages.append(said("user", f"Colour {at}?"))
        answer = said("assistant", "Blue.", reasoning_content=f"Colour {at}.")
        steps.append(step(name, list(messages), answer))
        messages.append(answer)
    return steps
