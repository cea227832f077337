"""The engine: takes requests to one model, and computes all of them together, step by step."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import torch
from torch import Tensor

from addnorm.data.tokenizing.grammars import Grammar, GrammarCompiler
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, Continuation, Translation
from addnorm.generate.decode import NEW_TOKENS
from addnorm.generate.next_token import Ids, device_of, evaluating, maximum_length
from addnorm.generate.rules import check_rules
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.batches import BatchLane, Search
from addnorm.serve.engine.budget import page_pool, scores_at_once, slots_in
from addnorm.serve.engine.choosing import Chooser, decoding_of, reported
from addnorm.serve.engine.decoder import Kernels, PagedDecoder
from addnorm.serve.engine.events import Description, Event, PromptScores, Stats
from addnorm.serve.engine.exact import Tiles
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.paged import PagedLane, bytes_per_token, reach_of, why_not_paged
from addnorm.serve.engine.rows import why_alone
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request
from addnorm.serve.engine.slots import RowBuffers, bytes_of_slot
from addnorm.serve.engine.speculation import Drafter, Speculation
from addnorm.tasks.registry import wrong_task

FOR_BEAMS = 8
"""The share of the memory of a model in pages that beam search gets: one in so many."""

Writer = DecoderModel | EncoderDecoderModel


class Engine:
    """A trained model that answers many requests at once.

    `add` queues a request, `step` computes a token of every open answer and returns the news, and
    `cancel` ends answers. `memory` is for keys and values, in bytes; `limits` say how much is done
    at once. Deadlines are in seconds of the `clock`.

    Keys and values are in pages where they depend on earlier tokens alone, and `kernels` says how a
    step uses them (see `PagedDecoder`); other models, and beam search, are advanced in batches,
    which requests join and leave at any step too. With `exact`, tokens and log-probabilities have
    the same bits whatever else is asked: see `exact`; batches are of one answer then. Raises
    `InputError` for a model that reads or writes no text, for a memory without a page, and for a
    model that does not compile where that is asked for.
    """

    def __init__(
        self,
        run: TrainedModel,
        *,
        memory: int = 2**30,
        limits: Limits | None = None,
        page_size: int = 16,
        clock: Callable[[], float] = monotonic,
        kernels: Kernels = "in_place",
        exact: bool = False,
    ) -> None:
        self.run = run
        self._model = _writer(run)
        self._compiler: GrammarCompiler | None = None
        self._why_batches = why_not_paged(self._model)
        self._paged: PagedLane | None = None
        self._tiles: Tiles | None = None
        self._exact = exact
        limits = replace(limits or Limits(), alone=exact)
        most_scores = scores_at_once(self._model, memory)
        if isinstance(self._model, DecoderModel) and self._why_batches is None:
            pages = memory - memory // FOR_BEAMS
            pool = page_pool(pages, page_size, bytes_per_token(self._model))
            reach = replace(limits, reach=reach_of(self._model))
            decoder = PagedDecoder(self._model, pool, kernels, exact=exact)
            self._tiles = decoder.tiles
            self._paged = PagedLane(decoder, reach, clock)
            memory //= FOR_BEAMS
        self._why_alone = why_alone(self._model)
        self._next_token = _next_token(run, self._model)
        buffers = RowBuffers(
            self._next_token,
            slots_in(memory, bytes_of_slot(self._model, run.recipe.model.d_model)),
            in_place=kernels != "gathered",
        )
        self._why_gathered = buffers.why_gathered
        self._batches = BatchLane(
            buffers,
            self._prompt_scores,
            limits,
            clock,
            most_scores=most_scores,
            joins=self._why_alone is None and not exact,
        )

    @property
    def _vocab(self) -> int:
        """The number of tokens in the model's output."""
        model = self._model
        embed = model.embed if isinstance(model, DecoderModel) else model.target_embed
        return embed.tokens.num_embeddings

    def speculate(self, drafter: Drafter) -> None:
        """Let a drafter guess the next tokens of answers in pages, several per step.

        The answers stay the same (see `speculation`). Raises `InputError` for a model
        without pages.
        """
        if self._paged is None:
            raise InputError(
                f"{self.run.name}: nothing can be drafted for it, because its keys and values are "
                f"not in pages: {self._why_batches}"
            )
        self._paged.speculation = Speculation(drafter)

    # Requests.

    def add(self, request: Request) -> None:
        """Queue a request; its answers never exceed the model's positions.

        Raises `InputError` for a prompt or an option that the model does not have, `TooLarge` for a
        request that the memory never holds, and `QueueFull` if too many wait.
        """
        if any(request.name in lane for lane in self._lanes):
            raise InputError(f"a request named {request.name} is open already")
        options = Options() if request.options is None else request.options
        next_token = self._next_token
        room = next_token.remaining_length(1, request.prompt)
        request = replace(request, limit=min(request.limit, room))
        before = request.prompt
        if isinstance(next_token, Translation):
            before = (next_token.bos_id,)
            if options.prompt_log_probs:
                raise InputError(
                    "prompt_log_probs: an encoder reads the source, so its tokens have no scores"
                )
        plan = self._plan(request, options, before)
        if isinstance(plan, Chooser) and self._paged is not None:
            self._paged.add(request, plan)
        else:
            self._batches.add(request, plan)

    def _plan(
        self, request: Request, options: Options, before: tuple[int, ...]
    ) -> Chooser | Search:
        """How the tokens of a request are chosen. Raises `InputError` for wrong options."""
        decoding = decoding_of(self.run, options)
        target = self.run.tokenizers.target
        own = () if options.ignore_eos else target.eos_ids
        ends, limit = (*own, *options.ends), request.limit
        if not isinstance(decoding, BeamConfig):
            chooser = Chooser.of(
                decoding,
                options,
                before=before,
                limit=limit,
                n=request.n,
                ends=ends,
                grammar=self._grammar(options),
            )
            chooser.check(self._vocab)
            return chooser
        if request.n > 1:
            raise InputError(
                f"n = {request.n}: for beam search, give n_best, the number of results"
            )
        check_rules(decoding.rules, self._vocab)
        return Search(decoding, ends, before, limit)

    def _grammar(self, options: Options) -> Grammar | None:
        """The grammar of an answer. Raises `InputError` for one that cannot be followed."""
        if options.grammar is None:
            return None
        if self._compiler is None:
            self._compiler = GrammarCompiler(self.run.tokenizers.target)
        return self._compiler.start(options.grammar, options.grammar_field)

    def default_limit(self, n_prompt: int, options: Options) -> int:
        """The most new tokens after a prompt if a request sets no limit, as in `generate`."""
        rules = decoding_of(self.run, options).rules
        if isinstance(self._model, DecoderModel):
            return rules.limit(None, n_prompt, NEW_TOKENS)
        return rules.limit(None, 1, n_prompt + 50)

    def cancel(self, name: str, index: int | None = None) -> None:
        """End all answers of a request, or one of them, without events."""
        for lane in self._lanes:
            lane.cancel(name, index)

    # Steps.

    @property
    def _lanes(self) -> list[PagedLane | BatchLane]:
        return [self._batches] if self._paged is None else [self._paged, self._batches]

    def step(self, look_up: Callable[[], None] = lambda: None) -> list[Event]:
        """Compute one step; return the new tokens and ends. Without open requests, return none.

        While a batch reads whole prompts, `look_up` is called between layers; it may add and cancel
        requests.
        """
        paged = [] if self._paged is None else self._paged.step()
        return [*paged, *self._batches.step(look_up)]

    @property
    def is_busy(self) -> bool:
        """Whether a request is open."""
        return any(self._lanes)

    def _prompt_scores(self, prompt: Ids, n_best: int) -> PromptScores:
        """The scores of a prompt that is not read in pages."""
        assert isinstance(self._model, DecoderModel)
        tokens = torch.tensor([prompt], device=device_of(self._model))
        with torch.inference_mode(), evaluating(self._model):
            logits: Tensor = self._model(tokens)[0, :-1].float()
        return PromptScores(*reported(logits, prompt[1:], n_best))

    # Facts for clients.

    def stats(self) -> Stats:
        """The load of the engine."""
        running, waiting = self._batches.n_running, self._batches.n_waiting
        if self._paged is None:
            return Stats(
                running=running,
                waiting=waiting,
                pages=self._batches.n_slots_used,
                pages_in_all=self._batches.most_tokens,
                near_ties=self._batches.near_ties,
            )
        schedule = self._paged.schedule
        return Stats(
            running=running + len(schedule.running),
            waiting=waiting + schedule.n_waiting,
            pages=schedule.pool.held,
            pages_in_all=schedule.pool.n_pages,
            set_aside=schedule.n_set_aside,
            near_ties=self._batches.near_ties + self._paged.near_ties,
            drafted=self._paged.n_drafted,
            accepted=self._paged.n_accepted,
        )

    @property
    def description(self) -> Description:
        """The model as clients see it, and the number of requests that fit into memory."""
        model = self._model
        embed = model.embed if isinstance(model, DecoderModel) else model.target_embed
        longest = maximum_length(embed)
        return Description(
            name=self.run.name,
            task=self.run.task,
            vocab_size=self._vocab,
            capacity=None if self._paged is None else self._paged.schedule.capacity,
            decoding=decoding_of(self.run, Options()).kind,
            lines=self._lines(min(512, longest)),
        )

    def _lines(self, length: int) -> tuple[str, ...]:
        together = "one answer at a time" if self._exact else "together"
        why = self._why_gathered
        kernel = () if why is None else (f"keys are copied before they are read: {why}",)
        most = f"up to {self._batches.most_tokens:,} tokens {together}"
        if self._paged is None:
            alone = () if self._why_alone is None else (f"each request alone: {self._why_alone}",)
            return (
                f"without pages, {most}: {self._why_batches}",
                *alone,
                *kernel,
                "beginnings of prompts are not shared",
            )
        pool = self._paged.schedule.pool
        tokens = pool.n_pages * pool.page_size
        length = min(length, tokens)
        n = tokens // length
        return (
            f"{tokens:,} tokens in {pool.n_pages:,} pages: "
            f"{n:,} request{'s' if n > 1 else ''} of {length}",
            f"beam search: {most}",
            *kernel,
            *([] if self._tiles is None else [str(self._tiles)]),
            *([] if self._paged.speculation is None else [str(self._paged.speculation)]),
        )


def _next_token(run: TrainedModel, model: Writer) -> Continuation | Translation:
    if isinstance(model, DecoderModel):
        return Continuation(model)
    return Translation(model, run.tokenizers.target.bos_id)


def _writer(run: TrainedModel) -> Writer:
    """The model of a run, which must write text.

    Raises `InputError` unless it writes text, and reads it.
    """
    model = run.model
    if not isinstance(model, DecoderModel | EncoderDecoderModel):
        raise wrong_task(run, "writes no text")
    if run.reads_files:
        raise InputError(f"{run.name}: it reads files of images or sound, and no text")
    return model
