"""The endpoints of the tasks: `/translate`, `/classify`, `/tag`, `/predict`."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from addnorm.serve.http.generation import Answer, Job, all_answers, usage, usage_of, whole
from addnorm.serve.http.schemas import (
    ClassifyRequest,
    PredictRequest,
    TagRequest,
    TranslateRequest,
)
from addnorm.serve.http.served import Served, models_of, new_name, unless_gone
from addnorm.serve.messages import Generate
from addnorm.serve.sampling_options import ApiRequest

router = APIRouter()


@router.post("/translate", summary="Translate texts")
async def translate(body: TranslateRequest, request: HttpRequest) -> Response:
    """Translate texts: the best translations of each, with scores."""
    served = models_of(request)[body.model]
    if not served.ready.writes:
        options = {
            "beams": body.num_beams,
            "n_best": body.n_best,
            "length_penalty": body.length_penalty,
            "temperature": body.temperature,
            "top_k": body.top_k,
            "top_p": body.top_p,
            "seed": body.seed,
            "max_new_tokens": body.max_tokens,
        }
        return await _applied(request, body, "/translate", body.texts, options, "translations")
    served.check_endpoint("/translate")
    served.check_places(len(body.texts), "text")
    jobs = {
        i: await _translation(served, body, text, request.app.state.timeout)
        for i, text in enumerate(body.texts)
        if text.strip()
    }
    answers = await unless_gone(request, all_answers([*jobs.values()]))
    by_place = dict(zip(jobs, answers, strict=True))
    blank = [Answer(finished="stop")]  # the translation of nothing is nothing
    translations = [
        [
            {"text": answer.text, "score": answer.score, "finish_reason": answer.finished}
            for answer in by_place.get(i, blank)
        ]
        for i in range(len(body.texts))
    ]
    facts = {"translations": translations, "usage": usage([*jobs.values()])}
    return whole(body, {"model": served.name, **facts})


async def _translation(
    served: Served, body: TranslateRequest, text: str, timeout: float | None
) -> Job:
    ids = await served.source(text)
    request = Generate(
        name=new_name("translate"),
        prompt=tuple(ids),
        field="text",
        limit=body.max_tokens,
        options=body.options(served.ready.decoding),
        timeout=timeout,
    )
    return Job(served, request)


@router.post("/classify", summary="Classify texts")
async def classify(body: ClassifyRequest, request: HttpRequest) -> Response:
    """Classify texts or pairs: the classes and their probabilities, or the numbers."""
    texts = [body.text] if isinstance(body.text, str) else body.text
    options = {"threshold": body.threshold}
    return await _applied(request, body, "/classify", texts, options)


@router.post("/tag", summary="Tag the words of sentences")
async def tag(body: TagRequest, request: HttpRequest) -> Response:
    """Tag each word of sentences."""
    sentences = [body.text] if isinstance(body.text, str) else body.text
    return await _applied(request, body, "/tag", sentences, {})


@router.post("/predict", summary="Predict for rows")
async def predict(body: PredictRequest, request: HttpRequest) -> Response:
    """Predict for rows of fields, for a task that has no endpoint of its own."""
    return await _applied(request, body, "/predict", body.rows, {}, field="rows")


async def _applied(
    request: HttpRequest,
    body: ApiRequest,
    endpoint: str,
    inputs: Sequence[Any],
    options: dict[str, Any],
    name: str = "data",
    field: str = "text",
) -> Response:
    """The task's outputs for the inputs in a field, under a name."""
    served = models_of(request)[body.model]
    served.check_endpoint(endpoint)
    result = await unless_gone(request, served.apply(endpoint, inputs, field=field, **options))
    return whole(body, {"model": served.name, name: result.outputs, "usage": usage_of(result)})
