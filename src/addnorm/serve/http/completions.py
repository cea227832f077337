"""`POST /v1/completions`: continuations of prompts, with log-probabilities of both."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.data.tokenizing.sides import loses_space
from addnorm.serve.http.answers import Piece, Score, completion_logprobs, scores_of_prompt
from addnorm.serve.http.generation import (
    STREAMED,
    Head,
    Job,
    all_answers,
    merged,
    streamed,
    usage,
    whole,
    writer,
)
from addnorm.serve.http.schemas import CompletionRequest
from addnorm.serve.http.served import Served, new_name, unless_gone
from addnorm.serve.messages import Generate
from addnorm.web.events import DONE, data

router = APIRouter()

MAX_TOKENS = 16
"""The new tokens of an answer where a request does not say, as OpenAI has it."""


@router.post("/v1/completions", summary="Continue prompts", responses=STREAMED)
async def completions(body: CompletionRequest, request: HttpRequest) -> Response:
    """Continue one or several prompts, given as texts or as ids."""
    served = writer(request, body)
    served.check_places(len(body.prompt), "prompt")
    grammar = await asyncio.to_thread(body.grammar) if body.is_structured else None
    timeout = request.app.state.timeout
    jobs = [await _job(served, body, prompt, grammar, timeout) for prompt in body.prompt]
    echoes = [
        _echo(job, prompt) if body.echo else ""
        for job, prompt in zip(jobs, body.prompt, strict=True)
    ]
    head = Head.new("cmpl", "text_completion", served)
    if body.stream:
        return await streamed(request, body, _chunks(body, head, jobs, echoes), DONE)
    answers = await unless_gone(request, all_answers(jobs))
    choices = [
        _choice(body, job, i * len(group) + j, echo, answer.text, answer.scores, answer.finished)
        for i, (job, echo, group) in enumerate(zip(jobs, echoes, answers, strict=True))
        for j, answer in enumerate(group)
    ]
    return whole(body, head.chunk(choices=choices, usage=usage(jobs)))


async def _job(
    served: Served,
    body: CompletionRequest,
    prompt: str | Sequence[int],
    grammar: str | None,
    timeout: float | None,
) -> Job:
    ids = await served.prompt(prompt, body.add_special_tokens is not False)
    limit = served.new_tokens(len(ids), body.max_tokens, "max_tokens", MAX_TOKENS)
    scored = body.logprobs is not None
    options = body.options(
        served.ready.vocab_size or 0,
        log_probs=body.logprobs,
        prompt_log_probs=bool(body.echo and scored),
        grammar=grammar,
    )
    generate = Generate(
        name=new_name("cmpl"),
        prompt=tuple(ids),
        limit=limit,
        n=1 if body.searches else body.answers,
        options=options,
        timeout=timeout,
        salt=body.cache_salt or "",
    )
    drops = isinstance(prompt, str) and loses_space(served.tokenizer, prompt, ids)
    return Job(served, generate, body.stop or (), continues=True, drop_space=drops)


def _echo(job: Job, prompt: str | Sequence[int]) -> str:
    """The prompt as text before its answer."""
    if isinstance(prompt, str):
        return job.served.tokenizer.prepared(prompt)
    return job.served.tokenizer.decode(job.request.prompt)


def _choice(
    body: CompletionRequest,
    job: Job,
    index: int,
    echo: str,
    text: str,
    scores: Sequence[Score],
    finished: str | None,
    first: bool = True,
) -> dict[str, Any]:
    """An answer or a chunk of one; the `first` includes the prompt if it is echoed."""
    logprobs = None
    if body.logprobs is not None:
        before: Sequence[Score] = ()
        if body.echo and first:
            before = scores_of_prompt(
                job.served.tokenizer, job.request.prompt, job.prompt_scores, echo
            )
        tokenizer = job.served.tokenizer
        logprobs = completion_logprobs(tokenizer, scores, len(echo))
        of_prompt = completion_logprobs(tokenizer, before)
        logprobs = {name: of_prompt[name] + logprobs[name] for name in logprobs}
    return {
        "index": index,
        "text": (echo if first else "") + text,
        "logprobs": logprobs,
        "finish_reason": finished,
    }


async def _chunks(
    body: CompletionRequest, head: Head, jobs: Sequence[Job], echoes: Sequence[str]
) -> AsyncGenerator[bytes, None]:
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    facts = {"usage": None} if with_usage else {}
    begun = set[int]()
    async with aclosing(merged([job.pieces() for job in jobs])) as pieces:
        async for i, (j, piece) in pieces:
            index = i * jobs[i].request.answers + j
            if not _shows(body, piece, index in begun):
                continue
            choice = _choice(
                body,
                jobs[i],
                index,
                echoes[i],
                piece.text,
                piece.scores,
                piece.finished,
                first=index not in begun,
            )
            begun.add(index)
            yield data(head.chunk(choices=[choice], **facts))
    if with_usage:
        yield data(head.chunk(choices=[], usage=usage(jobs)))


def _shows(body: CompletionRequest, piece: Piece, begun: bool) -> bool:
    """Whether a piece is worth a chunk; some tokens do not complete a character."""
    echoes = bool(body.echo) and not begun
    scored = body.logprobs is not None and piece.scores
    return bool(piece.text or piece.finished or scored or echoes)
