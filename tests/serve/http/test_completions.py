"""Completions: whole and streamed are one, echo with log-probabilities, stop strings, refusals."""

import json
from typing import Any

import httpx
import pytest

PATH = "/v1/completions"


def answer(client: httpx.Client, **body: Any) -> dict[str, Any]:
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    text = client.post(PATH, json={**body, "stream": True}).text
    *events, end = text.strip().split("\n\n")
    assert end == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 100},
        {"max_tokens": 100, "stop": ["springt", "nie"]},
        {"max_tokens": 500},
        {"max_tokens": 9, "n": 3, "echo": True, "logprobs": 2},
        {"max_tokens": 70, "logprobs": 0, "stop": "北"},
    ],
)
def test_pieces_join_to_the_whole_answer(client: httpx.Client, options: dict[str, Any]) -> None:
    whole = answer(client, prompt="Hallo", **options)
    pieces = chunks(client, prompt="Hallo", stream_options={"include_usage": True}, **options)
    *pieces, usage = pieces
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert all(piece["usage"] is None for piece in pieces)
    assert len({(piece["id"], piece["created"]) for piece in pieces}) == 1
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in mine) == choice["text"]
        *before, last = [piece["finish_reason"] for piece in mine]
        assert last == choice["finish_reason"]
        assert set(before) <= {None}
        if choice["logprobs"] is not None:
            for name, values in choice["logprobs"].items():
                assert [x for piece in mine for x in piece["logprobs"][name]] == values


def test_a_stop_string_is_not_in_the_text(client: httpx.Client) -> None:
    [choice] = answer(client, prompt="Hallo", max_tokens=100, stop="springt")["choices"]
    assert choice["text"] == "Der schnelle braune Fuchs "
    assert choice["finish_reason"] == "stop"


def test_the_end_token_stops(client: httpx.Client) -> None:
    [choice] = answer(client, prompt="Hallo", max_tokens=500)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["text"].endswith("🦊 ")


def test_echo_scores_a_prompt_without_an_answer(client: httpx.Client) -> None:
    """As lm-eval asks: ids, the first of which nothing comes before."""
    ids = client.post("/tokenize", json={"prompt": "Hallo"}).json()["tokens"]
    scored = answer(client, prompt=[ids, ids[:3]], echo=True, logprobs=1, max_tokens=0)
    for choice, row in zip(scored["choices"], [ids, ids[:3]], strict=True):
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"] == [None, *(-float(i) for i in range(1, len(row)))]
        assert logprobs["top_logprobs"][0] is None
        assert logprobs["text_offset"][0] == 0
        assert choice["text"] == "Hallo"[: len(row) - 1]
    assert scored["usage"]["completion_tokens"] == 0


def test_the_last_log_probability_is_of_the_end_token(client: httpx.Client) -> None:
    """A client that leaves out what it did not ask for leaves out one token."""
    [choice] = answer(client, prompt="H", max_tokens=500, logprobs=1)["choices"]
    assert choice["logprobs"]["tokens"][-1] == "<eos>"


def test_several_prompts_have_n_answers_each(client: httpx.Client) -> None:
    choices = answer(client, prompt=["a", "b", "c"], n=2, echo=True, max_tokens=2)["choices"]
    assert [choice["index"] for choice in choices] == [*range(6)]
    assert [choice["text"][0] for choice in choices] == [*"aabbcc"]


WRONG = [
    ({}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [10**6]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": "a", "n": 17}, "n"),
    ({"prompt": "a", "n": 0}, "n"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 2**63}, "max_tokens"),
    ({"prompt": "a", "temperature": -0.1}, "temperature"),
    ({"prompt": "a", "temperature": 1e308}, "temperature"),
    ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "seed": 2**63}, "seed"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "stop": ["x"] * 5}, "stop"),
    ({"prompt": "a", "stop": "x" * 101}, "stop.0"),
    ({"prompt": "a", "stop": ""}, "stop.0"),
    ({"prompt": "a", "logit_bias": {"1000": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"),
    ({"prompt": "a", "num_beams": 2, "n": 3}, "n"),
    ({"prompt": "a " * 400}, "prompt"),
    ({"prompt": "a", "max_tokens": 1000}, "max_tokens"),
    ({"prompt": ["a"] * 300}, "prompt"),
    ({"prompt": [5] * 600}, "prompt"),
    ({"prompt": "a", "num_beams": 2, "logprobs": 1}, "logprobs"),
    ({"prompt": "a", "stop": 5}, "stop"),
]


@pytest.mark.parametrize(("body", "param"), WRONG, ids=lambda x: str(x)[:60])
def test_a_wrong_request_names_the_field(
    client: httpx.Client, body: dict[str, Any], param: str
) -> None:
    response = client.post(PATH, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"promt": "a"}, 'prompt is missing: "promt" is not a field'),
        ({"prompt": "a", "n": 17}, "n = 17: must be at most 16"),
        ({"prompt": "a", "stream": "maybe"}, 'stream = "maybe": must be true or false'),
        ({"prompt": "a", "temperature": "hot"}, 'temperature = "hot": must be a number'),
        ({"prompt": "a", "stop": ["b"] * 5}, "stop: must have at most 4 items, not 5"),
        ({"prompt": "a", "stop": [""]}, 'stop.0 = "": must have at least 1 character'),
    ],
)
def test_a_wrong_request_is_told_what_would_be_valid(
    client: httpx.Client, body: dict[str, Any], message: str
) -> None:
    assert client.post(PATH, json=body).json()["error"]["message"] == message


def test_a_body_of_another_type_is_told_which_is_read(client: httpx.Client) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    for body in ('{"prompt": "a"}', ""):
        response = client.post(PATH, content=body, headers=form)
        assert response.status_code == 400
        assert "application/json" in response.json()["error"]["message"]


def test_the_usual_tokens_are_as_many_as_have_room(client: httpx.Client) -> None:
    """512 positions: the last token of an answer is not read."""
    ids = client.post("/tokenize", json={"prompt": "Hallo"}).json()["tokens"]
    full = answer(client, prompt=[*ids, *ids[1:] * 101])["usage"]
    assert (full["prompt_tokens"], full["completion_tokens"]) == (511, 2)
    assert client.post(PATH, json={"prompt": "Hallo", "max_tokens": 507}).status_code == 200
    response = client.post(PATH, json={"prompt": "Hallo", "max_tokens": 508})
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_an_unknown_field_is_ignored_and_named(client: httpx.Client) -> None:
    body = {"prompt": "a", "user": "me", "tempreature": 2, "suffix": None, "é": 1}
    response = client.post(PATH, json=body)
    assert response.headers["x-addnorm-ignored"] == "tempreature"


def test_unknown_tokens_of_prompts_are_counted(client: httpx.Client) -> None:
    details = answer(client, prompt=[[1, 9, 1], [9]])["usage"]["prompt_tokens_details"]
    assert details["unknown_tokens"] == 2


def test_an_unknown_model_is_404_with_the_nearest(client: httpx.Client) -> None:
    response = client.post(PATH, json={"prompt": "a", "model": "fale"})
    assert response.status_code == 404
    assert 'no model "fale". Did you mean "fake"?' in response.json()["error"]["message"]


def test_a_model_of_another_task_names_its_endpoint(client: httpx.Client) -> None:
    response = client.post(PATH, json={"prompt": "a", "model": "classes"})
    assert response.status_code == 400
    assert "ask /classify" in response.json()["error"]["message"]


def test_a_row_that_is_not_a_number_fails_alone(client: httpx.Client) -> None:
    assert client.post(PATH, json={"prompt": "nan"}).status_code == 500
    assert client.post(PATH, json={"prompt": "nan", "stream": True}).status_code == 500
    assert client.post(PATH, json={"prompt": "a"}).status_code == 200


def test_a_grammar_that_cannot_be_followed_midway_is_an_error_of_the_request(
    client: httpx.Client,
) -> None:
    refused = client.post(PATH, json={"prompt": "stuck"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"
    body = {"prompt": "stuck", "stream": True, "structured_outputs": {"regex": "a"}}
    events = client.post(PATH, json=body).text.split("data: ")[1:]
    error = next(json.loads(event)["error"] for event in events if '"error"' in event)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "structured_outputs"
