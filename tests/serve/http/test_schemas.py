"""Bodies of requests: every limit of a field is the engine's, and every refusal is in our words."""

import re
from collections.abc import Iterator
from time import process_time
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from tests.serve.engine.tiny import TINY, run_of

from addnorm.models import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.schedule import TooLarge
from addnorm.serve.engine.sequence import Request
from addnorm.serve.http.responses_request import ResponsesRequest
from addnorm.serve.http.schemas import (
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingsRequest,
    PredictRequest,
    TagRequest,
    TokenizeRequest,
    TranslateRequest,
)
from addnorm.serve.sampling_options import ApiRequest, SamplingRequest
from addnorm.web.errors import of_validation

TRANSLATOR = EncoderDecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))
NEEDED: dict[type[ApiRequest], dict[str, Any]] = {
    CompletionRequest: {"prompt": "a"},
    ChatRequest: {"messages": [{"role": "user", "content": "a"}]},
    ResponsesRequest: {"input": "a"},
    TranslateRequest: {"text": "a"},
    EmbeddingsRequest: {"input": "a"},
    TokenizeRequest: {"prompt": "a"},
    ClassifyRequest: {"text": "a"},
    TagRequest: {"text": "a"},
    PredictRequest: {"rows": [{"a": 1}]},
}
WITH = {
    "n": {"num_beams": 16},
    "n_best": {"num_beams": 16},
    "length_penalty": {"num_beams": 4},
    "top_logprobs": {"logprobs": True},
    "best_of": {"n": 16},
}
"""Fields that need another one."""


def extremes(schema: dict[str, Any]) -> Iterator[float]:
    """The smallest and the largest number that a field's schema allows."""
    for form in schema.get("anyOf", [schema]):
        whole = form.get("type") == "integer"
        if form.get("type") in ("integer", "number"):
            for bound, step in (("Minimum", 1), ("Maximum", -1)):
                if (given := form.get(bound.lower())) is not None:
                    yield given
                elif (given := form.get(f"exclusive{bound}")) is not None:
                    yield given + step * (1 if whole else 1e-9)


def options_of(body: ApiRequest) -> Options:
    match body:
        case TranslateRequest():
            return body.options("greedy")
        case ResponsesRequest():
            return body.options(None)
        case SamplingRequest():
            return body.options(30)
        case _:
            raise AssertionError(body)


LIMITED = [
    (schema, field, value)
    for schema in (CompletionRequest, ChatRequest, ResponsesRequest, TranslateRequest)
    for field, facts in schema.model_json_schema()["properties"].items()
    for value in extremes(facts)
    if field != "best_of" and "max" not in field
]


def test_most_fields_have_limits() -> None:
    assert {"length_penalty", "temperature", "seed", "top_k"} < {field for _, field, _ in LIMITED}


@pytest.fixture(scope="module")
def engines() -> dict[bool, Engine]:
    return {
        False: Engine(run_of(TINY), memory=2**20),
        True: Engine(run_of(TRANSLATOR), memory=2**20),
    }


@pytest.mark.parametrize(
    ("schema", "field", "value"), LIMITED, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_the_engine_takes_what_the_description_allows(
    schema: type[ApiRequest], field: str, value: float, engines: dict[bool, Engine]
) -> None:
    body = schema.model_validate({**NEEDED[schema], **WITH.get(field, {}), field: value})
    engine = engines[schema is TranslateRequest]
    try:
        engine.add(Request(name=field, prompt=(5, 6), limit=4, options=options_of(body)))
    except TooLarge:
        return
    engine.cancel(field)


WRONG = (5, 1.5, "x", True, None, [], {}, [5], [None], [[]], [{}], {"x": 1}, "1e999", -1, 2**70)
PYTHONS = re.compile(r"\b(True|False|None)\b|(=|not|be|or) '")
"""Values as Python spells them, and not as JSON does."""
PYDANTICS = re.compile(
    r"Input should|valid dict|instance|Extra inputs|not permitted|Field required|Value error"
    r"|pydantic|unable to|JsonSchema|[A-Z]\w+(Format|Request|Outputs|Options|Message|Part|Item)"
)


def errors(schema: type[BaseModel], body: Any) -> Iterator[str]:
    try:
        schema.model_validate(body)
    except ValidationError as error:
        details = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        yield of_validation(RequestValidationError(details)).message


@pytest.mark.parametrize("schema", NEEDED, ids=lambda schema: schema.__name__)
def test_refusals_are_in_our_words(schema: type[ApiRequest]) -> None:
    for field in schema.model_fields:
        for value in WRONG:
            for message in errors(schema, {**NEEDED[schema], field: value}):
                assert not PYDANTICS.search(message), message
                assert not PYTHONS.search(message), message
                assert field in message


@pytest.mark.parametrize(
    ("schema", "field", "value", "message"),
    [
        (TranslateRequest, "text", 5, "text = 5: must be a string or a list"),
        (ClassifyRequest, "text", None, "text: must be a string or a list"),
        (ResponsesRequest, "input", True, "input = true: must be a string or a list"),
        (
            CompletionRequest,
            "response_format",
            "json",
            'response_format = "json": must be a JSON object',
        ),
        (
            CompletionRequest,
            "structured_outputs",
            {"jsn": True},
            "structured_outputs.jsn = true: no such field",
        ),
        (
            CompletionRequest,
            "structured_outputs",
            {"json": "{"},
            'structured_outputs.json = "{": the text is not JSON',
        ),
        (
            CompletionRequest,
            "structured_outputs",
            {"json": "[]"},
            'structured_outputs.json = "[]": the text is not a JSON object, as a schema is',
        ),
        (ResponsesRequest, "tools", [None], "tools: tool 1: only functions are supported"),
        (
            EmbeddingsRequest,
            "encoding_format",
            "base6",
            'encoding_format = "base6": must be "float" or "base64"',
        ),
        (
            ChatRequest,
            "messages",
            [{"role": "user", "content": 5}],
            "messages.0.content = 5: must be a string or a list",
        ),
    ],
)
def test_a_refusal_says_what_would_be_valid(
    schema: type[ApiRequest], field: str, value: Any, message: str
) -> None:
    [written] = errors(schema, {**NEEDED[schema], field: value})
    assert written.startswith(message)


def test_one_text_or_several_are_described() -> None:
    for schema, field in ((TranslateRequest, "text"), (CompletionRequest, "stop")):
        forms = schema.model_json_schema()["properties"][field]["anyOf"]
        assert {"string", "array"} <= {form["type"] for form in forms}


@pytest.mark.parametrize("wrong", [1, "", None, [], {}])
def test_a_million_wrong_parts_cost_no_more_than_one(wrong: Any) -> None:
    messages = [{"role": "user", "content": [wrong] * 10**6}]
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate({"messages": messages})
    assert caught.value.error_count() <= 3
    start = process_time()
    with pytest.raises(ValidationError):
        ResponsesRequest.model_validate({"input": messages})
    assert process_time() - start < 0.1
