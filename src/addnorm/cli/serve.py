"""`addnorm serve`: answer requests to runs over HTTP, as OpenAI's API has them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.main import at_least
from addnorm.cli.where import Imports, Where
from addnorm.errors import InputError, optional
from addnorm.files import check_model_folder
from addnorm.runs.options import Weights

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", re.IGNORECASE)

AtLeastOne = Parameter(validator=at_least(1))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a server listens, who may ask, and for how long.

    Parameters
    ----------
    host
        The address to listen on. Any but one of this machine needs a key.
    port
        The port to listen on; 0 is a free one.
    timeout
        Seconds after which a request is given up.
    api_key_file
        A file with a key, which each request must then send as `Authorization: Bearer KEY`.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Parameter(validator=at_least(0))] = 8000
    timeout: Annotated[float, AtLeastOne] = 600.0
    api_key_file: Annotated[Path | None, Parameter(show_default=False)] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Capacity(Where):
    """How much is answered at once, where, and at what cost.

    Parameters
    ----------
    memory
        The memory for keys and values of each run, such as `2GiB` or `500MB`.
    chunk
        The most tokens of a prompt that are read in one step, while other answers are written.
    max_queue
        The most requests that wait; more are refused with the status 429.
    compile
        Write through compiled graphs: up to five times as fast, on a CPU. The first time takes a
        minute or two; the graphs are then kept on disk. On a GPU of NVIDIA these are CUDA graphs,
        recorded when they are needed. Batches of models without pages stay as they are.
    exact
        Answer with the same tokens and log-probabilities, to the last bit, whatever else is asked
        at the same time.
    weights
        Keep the weights in fewer bits while this runs: faster, and slightly different.
    speculate
        Speculative decoding by prompt lookup: draft the next tokens from what followed the same
        n-gram in the prompt or the answer before, and verify them in one step. The answers stay the
        same; texts that repeat themselves are written up to several times as fast.
    draft
        Speculative decoding by a smaller run with the same tokenizer, an assistant model: it drafts
        the next tokens, and the model verifies them in one step. The answers stay the same.
    """

    memory: str = "2GiB"
    chunk: Annotated[int, AtLeastOne] = 256
    max_queue: Annotated[int, AtLeastOne] = 256
    compile: Annotated[bool, Parameter(negative="", show_default=False)] = False
    exact: Annotated[bool, Parameter(negative="", show_default=False)] = False
    weights: Weights | None = None
    speculate: Literal["ngram"] | None = None
    draft: Annotated[Path | None, Parameter(show_default=False)] = None


HERE = Listening()
USUAL = Capacity()


def serve(
    *runs: Path,
    listening: Listening = HERE,
    capacity: Capacity = USUAL,
    imports: Imports = (),
) -> None:
    """Answer requests to one or several runs over HTTP, many at once, as OpenAI's API has them.

    A language model answers at `/v1/completions`, `/v1/chat/completions` and `/v1/responses`, a
    translator at `/translate`, a classifier at `/classify`, a tagger at `/tag`, and any other task
    at `/predict`; models of text at `/v1/embeddings` too. `/v1/models` lists them, and `/metrics`
    has figures for Prometheus. Before it listens, it prints how many tokens fit into the memory.
    Ctrl-C, or SIGTERM, lets open answers end first; a second one does not.
    Needs the extra `serve`. Example: `addnorm serve runs/my --port 8000`.

    Parameters
    ----------
    runs
        The run folders, each a model named as its folder.
    """
    if not runs:
        raise InputError("name the run folders to serve")
    for run in runs:
        check_model_folder(run)
    if capacity.draft is not None:
        if capacity.speculate is not None:
            raise InputError("--speculate and --draft: give one of them")
        check_model_folder(capacity.draft)
    memory = bytes_of(capacity.memory)
    for module in ("fastapi", "httptools", "prometheus_client", "uvicorn"):
        optional(module, "serve", "addnorm serve")
    import asyncio

    from addnorm.cli.terminal import console
    from addnorm.serve.http.server import ServerOptions
    from addnorm.serve.http.server import serve as serve_runs
    from addnorm.serve.messages import Open
    from addnorm.web.access import check_host, read_key

    file = listening.api_key_file
    key = None if file is None else read_key(file)
    check_host(listening.host, key)
    opened = [
        Open(
            run=str(run),
            memory=memory,
            chunk=capacity.chunk,
            max_queue=capacity.max_queue,
            compile=capacity.compile,
            exact=capacity.exact,
            weights=capacity.weights,
            speculate=capacity.speculate,
            draft=None if capacity.draft is None else str(capacity.draft),
            device=capacity.device,
            dtype=capacity.dtype,
            imports=imports,
        )
        for run in runs
    ]
    options = ServerOptions(
        host=listening.host, port=listening.port, timeout=listening.timeout, key=key
    )
    asyncio.run(serve_runs(opened, options, console))


def bytes_of(size: str) -> int:
    """The number of bytes in a size such as `2GiB`. Raises `InputError` for another word."""
    match = SIZE.fullmatch(size.strip())
    if match is None:
        raise InputError(
            f"`memory = {size}`: give a size such as 2GiB, 500MB, or a number of bytes"
        )
    return int(float(match[1]) * UNITS[(match[2] or "").lower()])
