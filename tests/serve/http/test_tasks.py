"""The endpoints of tasks pass whole inputs on, each to models of its own."""

import httpx
import pytest


def test_inputs_of_a_task(client: httpx.Client) -> None:
    classes = client.post("/classify", json={"text": ["abc", ["a", "b"]], "model": "classes"})
    assert classes.json()["data"] == [[3.0, 0.5], [10.0, 0.5]]
    assert client.post("/classify", json={"text": "abc", "model": "classes"}).status_code == 200
    translated = client.post("/translate", json={"text": "ab", "model": "translator"})
    assert translated.json()["translations"] == [[2.0, 0.5]]


@pytest.mark.parametrize("path", ["/tag", "/predict", "/translate"])
def test_a_model_of_another_task_names_its_endpoint(client: httpx.Client, path: str) -> None:
    body = {"text": "a", "rows": [{"a": 1}], "model": "classes"}
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert "ask /classify" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", [[], 3, [3], [["a"]], [["a", "b", "c"]]])
def test_other_inputs_are_refused(client: httpx.Client, text: object) -> None:
    assert client.post("/classify", json={"text": text, "model": "classes"}).status_code == 400
