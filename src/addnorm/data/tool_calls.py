"""Tool calls in the texts of models: where they begin, and what they call.

A model writes a call as its template taught it. The families whose form is known:

    Hermes, Qwen    <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number of times
    Llama 3         {"name": …, "parameters": {…}}, alone or after <|python_tag|>
    Mistral         [TOOL_CALLS][{"name": …, "arguments": {…}}], or [TOOL_CALLS]name[ARGS]{…}
    GPT-OSS         <|channel|>commentary to=functions.name …<|message|>{…}<|call|>
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from string import ascii_letters, digits
from typing import Any

from addnorm.data.conversation import Message


def _new_id() -> str:
    """A random id of nine letters and digits, as Mistral's templates require."""
    return "".join(SystemRandom().choices(ascii_letters + digits, k=9))


@dataclass(frozen=True)
class ToolCall:
    """A function that the assistant calls."""

    name: str
    arguments: Mapping[str, Any]
    id: str = field(default_factory=_new_id, compare=False)

    @property
    def arguments_as_json(self) -> str:
        """The arguments as a JSON text, as in OpenAI's API."""
        return json.dumps(self.arguments, ensure_ascii=False)

    def as_message(self) -> Message:
        """The call in the form that templates read."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Reply:
    """The content of an answer, and its tool calls."""

    content: str
    calls: tuple[ToolCall, ...] = ()

    def as_message(self) -> Message:
        """The answer as a message of the assistant."""
        calls = [call.as_message() for call in self.calls]
        more = {"tool_calls": calls} if calls else {}
        return {"role": "assistant", "content": self.content, **more}


@dataclass(frozen=True, kw_only=True)
class CallForm:
    """The format in which a family of models writes tool calls.

    `read` takes the text from where calls begin on; it raises `ValueError` for a damaged one.
    """

    marks: tuple[str, ...]
    """The special tokens of the form, which are not written otherwise."""
    begins: tuple[str, ...]
    """What begins a call anywhere in an answer."""
    opens: tuple[str, ...] = ()
    """What begins a call at the start of an answer."""
    read: Callable[[str], Reply]

    def reply(self, text: str) -> Reply:
        """Split a model's answer into its content and its calls."""
        reader = CallReader(self)
        content = reader.push(text)
        rest = reader.finish()
        return Reply(content + rest.content, rest.calls)


class CallReader:
    """Reads an answer as it is written, and separates text from calls."""

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._held, self._begun, self._calling = "", False, False

    def push(self, text: str) -> str:
        """Return the text that can be shown so far; white space waits, since a call may follow."""
        self._held += text
        if self._calling:
            return ""
        opened = self._held.lstrip()
        if not self._begun and opened.startswith(self._form.opens or "\0"):
            self._calling = True
            return ""
        places = [self._held.find(mark) for mark in self._form.begins]
        self._calling = any(at >= 0 for at in places)
        at = min(at for at in places if at >= 0) if self._calling else self._certain()
        at = len(self._held[:at].rstrip())
        content, self._held = self._held[:at], self._held[at:]
        self._begun = self._begun or bool(content)
        return content

    def finish(self) -> Reply:
        """Return the calls and the remaining text; if a call is damaged, it counts as text."""
        if not self._calling:
            return Reply(self._held)
        try:
            reply = self._form.read(self._held.strip())
        except (ValueError, RecursionError):
            return Reply(self._held)
        return reply if reply.calls or reply.content else Reply(self._held)

    def _certain(self) -> int:
        """The length of the held text that is certainly not the start of a call."""
        beginnings = (mark[:n] for mark in self._form.begins for n in range(1, len(mark)))
        doubtful = max((len(b) for b in beginnings if self._held.endswith(b)), default=0)
        return len(self._held) - doubtful


def call_form(template: str | None) -> CallForm | None:
    """The call format of a template's family; None if it is unknown."""
    text = template or ""
    for form, has, lacks in FORMS:
        if all(word in text for word in has) and not any(word in text for word in lacks):
            return form
    return None


# The forms.


def _call(tree: object) -> ToolCall:
    """Read the call in a JSON value. Raises `ValueError` for anything else."""
    match tree:
        case {"name": str(name), "arguments": dict(arguments), **more} if name:
            pass
        case {"name": str(name), "parameters": dict(arguments), **more} if name:
            pass
        case _:
            raise ValueError(f"not a call: {tree!r:.100}")
    own = more.get("id")
    return ToolCall(name, arguments, own) if isinstance(own, str) else ToolCall(name, arguments)


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_constant)


def _values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text that are separated by white space and semicolons."""
    at = 0
    while match := re.compile(r"[\s;]*(?=[^\s;])").match(text, at):
        value, at = DECODER.raw_decode(text, match.end())
        yield value


HERMES = re.compile(r"<tool_call>(.*?)</tool_call>\s*", re.DOTALL)


def _hermes(text: str) -> Reply:
    calls = [_call(DECODER.decode(body.strip())) for body in HERMES.findall(text)]
    if not calls:
        raise ValueError("no call is whole")
    return Reply(HERMES.sub("", text), tuple(calls))


def _llama(text: str) -> Reply:
    return Reply("", tuple(_call(value) for value in _values(text.removeprefix(PYTHON))))


MISTRAL = "[TOOL_CALLS]"
NAMED = re.compile(r"\s*([^\s\[\]{}]+?)\s*(?:\[CALL_ID\]\s*(\w+)\s*)?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(text: str) -> Reply:
    calls: list[ToolCall] = []
    for body in text.split(MISTRAL)[1:]:
        if (named := NAMED.match(body)) is None:
            values = [*_values(body)]
            flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
            calls += map(_call, flat)
            continue
        call = _call({"name": named[1], "arguments": DECODER.decode(body[named.end() :].strip())})
        calls.append(ToolCall(call.name, call.arguments, named[2] or call.id))
    return Reply("", tuple(calls))


HARMONY = re.compile(
    r"(?:<\|start\|>assistant)?([^<]*)<\|channel\|>([^<]*)(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"(.*?)(?=<\|start\|>|<\|end\|>|<\|call\|>|<\|return\|>|$)(?:<\|end\|>|<\|call\|>|<\|return\|>)?",
    re.DOTALL,
)
RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


def _harmony(text: str) -> Reply:
    """Read an answer in the Harmony format without its thoughts, which templates drop too."""
    content, calls = "", list[ToolCall]()
    for before, channel, body in HARMONY.findall(text):
        if recipient := RECIPIENT.search(f"{before} {channel}"):
            calls.append(_call({"name": recipient[1], "arguments": DECODER.decode(body)}))
        elif not channel.strip().startswith("analysis"):
            content += body
    return Reply(content, tuple(calls))


PYTHON = "<|python_tag|>"
CHANNEL = "<|channel|>"

FORMS: Sequence[tuple[CallForm, tuple[str, ...], tuple[str, ...]]] = (
    (
        CallForm(marks=("<tool_call>", "</tool_call>"), begins=("<tool_call>",), read=_hermes),
        ("<tool_call>", "tools"),
        ("<function=", "<arg_key>", CHANNEL),
    ),
    (
        CallForm(marks=(MISTRAL, "[ARGS]", "[CALL_ID]"), begins=(MISTRAL,), read=_mistral),
        (MISTRAL,),
        (),
    ),
    (
        CallForm(marks=(PYTHON,), begins=(PYTHON,), opens=("{",), read=_llama),
        ("<|start_header_id|>", "tools", '"parameters": '),
        ("<tool_call>",),
    ),
    (
        CallForm(
            marks=(
                "<|start|>",
                "<|end|>",
                "<|message|>",
                CHANNEL,
                "<|constrain|>",
                "<|call|>",
                "<|return|>",
            ),
            begins=(CHANNEL, " to=functions."),
            read=_harmony,
        ),
        (CHANNEL, "<|message|>", "tools"),
        (),
    ),
)
"""Each form, the words of templates that teach it, and words of those that teach another."""
