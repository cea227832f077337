"""The engine: it takes requests to one model, and computes all of them together, step by step."""

from collections.abc import Callable
from dataclasses import replace
from sys import maxsize
from time import monotonic

from addnorm.errors import InputError
from addnorm.generate import BeamConfig
from addnorm.generate.decode import NEW_TOKENS
from addnorm.generate.next_token import check_writes, maximum_length, positions_for
from addnorm.models import DecoderModel
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.choosing import Chooser, decoding_of
from addnorm.serve.engine.events import Description, Event, Stats
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.paged import PagedLane, bytes_per_token, why_not_paged
from addnorm.serve.engine.pages import PagePool
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request
from addnorm.tasks.of_model import wrong_task


class Engine:
    """A trained model that answers many requests at once.

    `add` queues a request, `step` computes a token of every open answer and returns the news, and
    `cancel` ends answers. `memory` is for keys and values, in bytes; a step reads at most `chunk`
    tokens of a prompt, and has at most `rows` answers. Deadlines are in seconds of the `clock`.

    Raises `InputError` for a model that writes no text, and for a memory without a page.
    """

    def __init__(
        self,
        run: TrainedModel,
        *,
        memory: int = 2**30,
        chunk: int = 256,
        max_queue: int = 256,
        rows: int = 256,
        page_size: int = 16,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        model = run.model
        if not isinstance(model, DecoderModel):
            raise wrong_task(run, "writes no text")
        check_writes(model)
        if (why := why_not_paged(model)) is not None:
            raise InputError(f"{run.name}: {why}")
        self.run = run
        self._model = model
        self._vocab = model.embed.tokens.num_embeddings
        per_page = bytes_per_token(model) * page_size
        n_pages = memory // per_page - 1  # the buffers have a slot for padding
        if n_pages < 1:
            raise InputError(
                f"memory = {memory}: a page of {page_size} tokens takes {per_page:,} bytes of keys "
                f"and values, and at least two are needed"
            )
        pool = PagePool(n_pages, page_size)
        reach = max(pattern.reach[0] for pattern in model.stack.patterns)
        limits = Limits(rows=rows, chunk=chunk, queue=max_queue, reach=reach)
        self._lane = PagedLane(model, pool, limits, clock)

    def add(self, request: Request) -> None:
        """Queue a request, with `Options`; it never gets more tokens than there are positions.

        Raises `InputError` for a prompt or an option that the model does not have, `TooLarge` for a
        request that the memory never holds, and `QueueFull` if too many wait.
        """
        if request.name in self._lane:
            raise InputError(f"a request named {request.name} is open already")
        options = Options() if request.options is None else request.options
        decoding = decoding_of(self.run, options)
        if isinstance(decoding, BeamConfig):
            raise InputError("beam search is not served")
        room = positions_for(self._model.embed, 0, request.prompt) - len(request.prompt) + 1
        request = replace(request, limit=min(request.limit, room))
        chooser = Chooser.of(
            decoding,
            options,
            before=request.prompt,
            limit=request.limit,
            n=request.n,
            ends=self._ends(options),
        )
        chooser.check(self._vocab)
        self._lane.add(request, chooser)

    def _ends(self, options: Options) -> tuple[int, ...]:
        own = () if options.ignore_eos else self.run.tokenizers.target.eos_ids
        return (*own, *options.ends)

    def default_limit(self, n_prompt: int, options: Options) -> int:
        """The most new tokens after a prompt of `n_prompt` tokens where a request names none."""
        return decoding_of(self.run, options).rules.limit(None, n_prompt, NEW_TOKENS)

    def cancel(self, name: str, index: int | None = None) -> None:
        """End all answers of a request, or one of them; no event tells of it."""
        self._lane.cancel(name, index)

    def step(self) -> list[Event]:
        """Compute one step; return the new tokens and ends. Without open requests, return none."""
        return self._lane.step()

    @property
    def is_busy(self) -> bool:
        """Whether a request is open."""
        return bool(self._lane)

    def stats(self) -> Stats:
        """How busy the engine is."""
        schedule = self._lane.schedule
        return Stats(
            running=len(schedule.running),
            waiting=schedule.n_waiting,
            pages=schedule.pool.held,
            pages_in_all=schedule.pool.n_pages,
            set_aside=schedule.n_set_aside,
            near_ties=self._lane.near_ties,
        )

    @property
    def description(self) -> Description:
        """The model as its clients see it, and how many requests fit into the memory."""
        pool, longest = self._lane.schedule.pool, maximum_length(self._model.embed)
        tokens = pool.n_pages * pool.page_size
        length = min(512, longest)
        return Description(
            name=self.run.name,
            task=self.run.task,
            vocab_size=self._vocab,
            max_len=None if longest == maxsize else longest,
            decoding=decoding_of(self.run, Options()).kind,
            lines=(
                f"{tokens:,} tokens in {pool.n_pages:,} pages: "
                f"{tokens // length:,} requests of {length}",
            ),
        )
