"""The endpoints of tasks pass whole inputs on, each to models of its own."""

import httpx
import pytest


def test_inputs_of_a_task(client: httpx.Client) -> None:
    classes = client.post("/classify", json={"text": ["abc", ["a", "b"]], "model": "classes"})
    assert classes.json()["data"] == [[3.0, 0.5], [10.0, 0.5]]
    assert client.post("/classify", json={"text": "abc", "model": "classes"}).status_code == 200
    restored = client.post("/translate", json={"text": "ab", "model": "denoiser"})
    assert restored.json()["translations"] == [[2.0, 0.5]]


def test_translations_come_from_the_engine(client: httpx.Client) -> None:
    body = {"text": ["one dog", " "], "model": "translator", "num_beams": 1}
    translated = client.post("/translate", json=body).json()
    [[dog], [blank]] = translated["translations"]
    assert dog["text"] == "ein Hund"
    assert dog["finish_reason"] == "stop"
    assert dog["score"] < 0
    assert blank == {"text": "", "score": 0.0, "finish_reason": "stop"}
    both = client.post("/translate", json={"text": "a", "model": "translator", "n_best": 2})
    assert len(both.json()["translations"][0]) == 2


LONG = "one dog " * 600


@pytest.mark.parametrize("text", [LONG, "too large"])
@pytest.mark.parametrize(
    ("path", "model", "field"),
    [
        ("/v1/completions", "fake", "prompt"),
        ("/v1/responses", "fake", "input"),
        ("/translate", "translator", "text"),
    ],
)
def test_an_error_of_length_names_the_field_of_the_text(
    client: httpx.Client, path: str, model: str, field: str, text: str
) -> None:
    """Whether the web server finds it, or the engine."""
    error = client.post(path, json={field: text, "model": model}).json()["error"]
    assert error["param"] == field
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/tag", "/predict", "/translate"])
def test_a_model_of_another_task_names_its_endpoint(client: httpx.Client, path: str) -> None:
    body = {"text": "a", "rows": [{"a": 1}], "model": "classes"}
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert "ask /classify" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", [[], 3, [3], [["a"]], [["a", "b", "c"]]])
def test_other_inputs_are_refused(client: httpx.Client, text: object) -> None:
    assert client.post("/classify", json={"text": text, "model": "classes"}).status_code == 400
