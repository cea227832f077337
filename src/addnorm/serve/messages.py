"""Messages between the web server and an engine: JSON after its length, in both directions."""

from asyncio import IncompleteReadError, StreamReader
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from addnorm.runs.options import Weights
from addnorm.serve.engine.events import Event, Stats
from addnorm.serve.engine.options import Options

LENGTH = 4
"""The bytes of a length, the highest first."""
LARGEST = 2**28
"""The most bytes of a message."""

SOURCE, TARGET = "source.json", "target.json"
"""The files of the source and the target tokenizer, in the folder of `Open.texts`."""

JSON = ConfigDict(ser_json_inf_nan="constants")
"""A log-probability may be infinite."""

ErrorKind = Literal["input", "full", "large", "memory", "ending", "failed"]
"""What an error is about: the request, the queue, the pages, the memory, the end of the server, or
a fault of the model or of ours.
"""


# To the engine.


@dataclass(frozen=True, kw_only=True)
class Open:
    """The first message: the run to open, and the settings."""

    type: Literal["open"] = "open"
    run: str
    """The run folder."""
    texts: str = ""
    """An empty folder, into which the engine writes the tokenizers."""
    memory: int
    chunk: int
    max_queue: int
    compile: bool = False
    exact: bool = False
    weights: Weights | None = None
    speculate: Literal["ngram"] | None = None
    """How the next tokens are drafted."""
    draft: str | None = None
    """The folder of a run that drafts them."""
    device: str = "auto"
    dtype: str | None = None
    imports: tuple[str, ...] = ()
    """Files and modules with custom parts."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """A request to continue tokens, or to translate a source."""

    type: Literal["generate"] = "generate"
    name: str
    prompt: tuple[int, ...]
    field: str = "prompt"
    """The field of the HTTP request that has the text, which errors name."""
    limit: int | None = None
    """The most new tokens; None is the default of the model."""
    n: int = 1
    options: Options = default(default_factory=Options)
    priority: int = 0
    timeout: float | None = None
    """Seconds after which the request is given up."""
    salt: str = ""

    @property
    def answers(self) -> int:
        """The number of answers: samples, or results of a beam search."""
        return self.options.n_best if self.options.decoding == "beam" else self.n


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Whole inputs for a model that computes one result for each."""

    type: Literal["apply"] = "apply"
    name: str
    endpoint: str
    inputs: tuple[Any, ...]
    field: str = "text"
    """The field of the HTTP request that has the inputs, which errors name."""
    options: Mapping[str, Any] = default(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """The end of a request, or of one of its answers, since nobody reads it."""

    type: Literal["cancel"] = "cancel"
    name: str
    index: int | None = None


@dataclass(frozen=True)
class Stop:
    """The end of the engine."""

    type: Literal["stop"] = "stop"


# From the engine.


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The description of what an engine serves."""

    type: Literal["ready"] = "ready"
    name: str
    """The name of the model in requests."""
    task: str
    endpoint: str
    """The path that answers for its task."""
    embeds: bool
    """Whether its hidden states can be pooled into vectors."""
    writes: bool = False
    """Whether it takes `Generate`, and writes a token at a step."""
    decoding: str = "greedy"
    """The kind of the model's own decoding."""
    vocab_size: int | None = None
    max_len: int | None = None
    """The most positions of a prompt with its answer, or of a source; None if unbounded."""
    capacity: int | None = None
    """The most tokens of a prompt with its answer that the memory holds; None without pages."""
    custom: bool = False
    """Whether a tokenizer is a custom part, whose module the reader must import."""
    begins: tuple[int, ...] | None = None
    """The ids before a text to continue, where they are not those of the tokenizer."""
    template: str | None = None
    """The chat template; None without one."""
    dated: bool = False
    """Whether the template may write the date of today."""
    undrafted: str | None = None
    """Why its answers are not drafted although that was asked for."""
    lines: tuple[str, ...] = ()
    """Lines to print: how much fits into the memory, and the models that are not in pages."""


@dataclass(frozen=True, kw_only=True)
class Events:
    """The events of one step."""

    type: Literal["events"] = "events"
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outputs for the inputs of an `Apply`, and the numbers of tokens read and unknown."""

    type: Literal["result"] = "result"
    name: str
    outputs: tuple[Any, ...]
    n_tokens: int = 0
    n_unknown: int = 0


@dataclass(frozen=True, kw_only=True)
class Error:
    """The reason why a request has no answer; without a name, why there is no engine."""

    type: Literal["error"] = "error"
    name: str | None
    message: str
    kind: ErrorKind = "failed"
    retry_after: float | None = None
    """In how many seconds a place in the queue is expected."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The engine's load, sent a few times a second while busy, and once when idle."""

    type: Literal["load"] = "load"
    stats: Stats


ToEngine = Annotated[Open | Generate | Apply | Cancel | Stop, Field(discriminator="type")]
FromEngine = Annotated[Ready | Events | Result | Error | Load, Field(discriminator="type")]

TO_ENGINE: TypeAdapter[Open | Generate | Apply | Cancel | Stop] = TypeAdapter(ToEngine, config=JSON)
FROM_ENGINE: TypeAdapter[Ready | Events | Result | Error | Load] = TypeAdapter(
    FromEngine, config=JSON
)


def packed(adapter: Any, message: Any) -> bytes:
    """Encode a message to bytes."""
    content = adapter.dump_json(message)
    assert len(content) <= LARGEST
    return len(content).to_bytes(LENGTH, "big") + content


async def next_message(reader: StreamReader) -> Any:
    """Read an engine's next message; None at the end. Raises `ValueError` for anything else."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH), "big")
        _check(length)
        return FROM_ENGINE.validate_json(await reader.readexactly(length))
    except (IncompleteReadError, ConnectionError):
        return None


class Inbox:
    """Collects bytes as they arrive, and yields whole messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def take(self, arrived: bytes) -> Iterator[Any]:
        """Yield the messages to an engine that the new bytes complete."""
        self._bytes += arrived
        while len(self._bytes) >= LENGTH:
            length = int.from_bytes(self._bytes[:LENGTH], "big")
            _check(length)
            if len(self._bytes) < LENGTH + length:
                return
            content = bytes(self._bytes[LENGTH : LENGTH + length])
            del self._bytes[: LENGTH + length]
            yield TO_ENGINE.validate_json(content)


def _check(length: int) -> None:
    if length > LARGEST:
        raise ValueError(f"a message of {length:,} bytes: at most {LARGEST:,} are read")
