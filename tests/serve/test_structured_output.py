"""Structured output in requests: where it stands, what is refused, and answers of an engine."""

import json
import sys
from pathlib import Path
from time import process_time
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from tests.runs.tiny import train_tiny
from tests.serve.servers import serving

from addnorm.data.tokenizing.grammar_forms import MOST_CHARACTERS
from addnorm.errors import InputError
from addnorm.serve.structured_output import ResponseFormat, StructuredOutputs, grammar_of
from addnorm.serve.supervisor import WORKER


def test_the_schema_stands_where_each_api_has_it() -> None:
    schema = {"type": "object"}
    chat = ResponseFormat.model_validate(
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    )
    flat = ResponseFormat.model_validate({"type": "json_schema", "name": "x", "schema": schema})
    assert chat.wanted == flat.wanted == schema
    assert ResponseFormat(type="json_object").wanted == schema
    assert ResponseFormat(type="text").wanted is None
    assert grammar_of(ResponseFormat(type="text")) is None
    assert grammar_of(None) is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "thing"}, "Invalid type: thing"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"$ref": "https://example.com/a.json"}, "does not fetch"),
        ({"type": "object", "minProperties": -1}, "got -1"),
        ({"enum": ["x" * MOST_CHARACTERS]}, "at most 131,072"),
    ],
    ids=str,
)
def test_wrong_schemas_are_refused_with_the_reason_at_once(schema: Any, reason: str) -> None:
    grammar_of(ResponseFormat(type="json_object"))
    start = process_time()
    with pytest.raises(InputError, match=f"^response_format: .*{reason}"):
        grammar_of(ResponseFormat.model_validate({"type": "json_schema", "schema": schema}))
    assert process_time() - start < 0.25  # 50 ms


def test_a_schema_may_be_a_text() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    forms = [StructuredOutputs.model_validate({"json": x}) for x in (schema, json.dumps(schema))]
    assert grammar_of(None, forms[0]) == grammar_of(None, forms[1])
    for wrong in ("[" * 10**5, '"a"', "", "{}x", '{"const": NaN}', '{"const": 1e999}', "\ud800"):
        with pytest.raises(ValidationError, match=r"json\n"):
            StructuredOutputs.model_validate({"json": wrong})


def test_wrong_expressions_and_grammars_are_refused() -> None:
    for wrong in ({"regex": "("}, {"grammar": "start: foo"}):
        with pytest.raises(InputError, match=r"^structured_outputs: "):
            grammar_of(None, StructuredOutputs.model_validate(wrong))
    for several in ({}, {"regex": "a", "choice": ["a"]}, {"choice": []}, {"json_object": True}):
        with pytest.raises(ValidationError):
            StructuredOutputs.model_validate(several)
    with pytest.raises(InputError, match="response_format is given too"):
        grammar_of(ResponseFormat(type="json_object"), StructuredOutputs(regex="a"))


def optional_properties(n: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}}


BOMB = "(a{1000}){1000}"


@pytest.mark.parametrize(
    "asked",
    [
        {"regex": BOMB},
        {"regex": "a{100000}"},
        {"json": {"type": "string", "pattern": f"^{BOMB}$"}},
        {"json": optional_properties(1200)},
        {"json": optional_properties(3000)},
        {"json": {"allOf": [{"type": "string", "pattern": f"^.*a.{{{i}}}$"} for i in range(12)]}},
    ],
    ids=lambda asked: str(asked)[:40],
)
def test_too_large_grammars_are_refused_before_the_engine_sees_them(asked: Any) -> None:
    with pytest.raises(InputError, match=r"^structured_outputs: the grammar is too large \("):
        grammar_of(None, StructuredOutputs.model_validate(asked))


def test_large_ordinary_schemas_pass() -> None:
    nested: dict[str, Any] = {"type": "string", "maxLength": 5000}
    for _ in range(4):
        nested = {"type": "object", "properties": dict.fromkeys("abcd", nested), "required": ["a"]}
    words = [f"value {i}" for i in range(1000)]
    for schema in (optional_properties(900), nested, {"enum": words}):
        assert grammar_of(None, StructuredOutputs.model_validate({"json": schema}))
    assert grammar_of(None, StructuredOutputs(choice=words))
    assert grammar_of(None, StructuredOutputs(regex=r".{1,5000}"))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InputError, match=r"^response_format needs .*addnorm\[structured\]"):
        grammar_of(ResponseFormat(type="json_object"))
    assert grammar_of(ResponseFormat(type="text")) is None


SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["to", "be"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.mark.long
def test_answers_of_every_endpoint_follow_it(tmp_path: Path) -> None:
    tokens = {"tokenizer.kind": "bpe", "tokenizer.vocab_size": "280"}
    run = train_tiny(tmp_path, "language", **tokens)
    (run / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with serving(str(run), worker=WORKER) as url, httpx.Client(base_url=url, timeout=60) as client:

        def ask(path: str, **body: Any) -> dict[str, Any]:
            response = client.post(path, json={"seed": 1, **body})
            assert response.status_code == 200, response.text
            assert "x-addnorm-ignored" not in response.headers or "responses" in path
            return response.json()

        hello = [{"role": "user", "content": "To be"}]
        chat = ask("/v1/chat/completions", messages=hello, response_format=FORMAT, n=3)
        texts = [choice["message"]["content"] for choice in chat["choices"]]
        completion = ask("/v1/completions", prompt="To", response_format=FORMAT, max_tokens=200)
        texts.append(completion["choices"][0]["text"])
        flat = {"type": "json_schema", "name": "x", "schema": SCHEMA}
        response = ask("/v1/responses", input="To be", text={"format": flat})
        assert response["text"]["format"] == flat
        texts.append(response["output"][0]["content"][0]["text"])
        for text in texts:
            value = json.loads(text)
            assert value["a"] in ("to", "be")
            assert isinstance(value["b"], bool)
        short = ask("/v1/completions", prompt="To", response_format=FORMAT, max_tokens=3)
        assert short["choices"][0]["finish_reason"] == "length"
        word = ask("/v1/completions", prompt="To", structured_outputs={"choice": ["to", "be"]})
        assert word["choices"][0]["text"] in ("to", "be")
        assert word["choices"][0]["finish_reason"] == "stop"
        body = {"prompt": "To", "response_format": FORMAT, "stream": True, "max_tokens": 200}
        stream = client.post("/v1/completions", json={"seed": 1, **body}).text
        events = [each.removeprefix("data: ") for each in stream.strip().split("\n\n")][:-1]
        joined = "".join(json.loads(each)["choices"][0]["text"] for each in events)
        assert joined == completion["choices"][0]["text"]
        refused = client.post("/v1/completions", json={"prompt": "x", "num_beams": 2, **body})
        assert refused.status_code == 400
