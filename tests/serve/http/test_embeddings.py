"""Embeddings: numbers and base64 are the same vectors; ids; errors of the engine."""

from array import array
from base64 import b64decode
from sys import byteorder

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.serve.http.embeddings import base64_of

PATH = "/v1/embeddings"


def test_both_encodings_are_the_same_vectors(client: httpx.Client) -> None:
    body = {"input": ["a", "bc"]}
    plain = client.post(PATH, json=body).json()["data"]
    packed = client.post(PATH, json={**body, "encoding_format": "base64"}).json()["data"]
    for numbers, text in zip(plain, packed, strict=True):
        assert base64_of(numbers["embedding"]) == text["embedding"]
        assert numbers["index"] == text["index"]


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_base64_holds_the_floats(vector: list[float]) -> None:
    numbers = array("f", b64decode(base64_of(vector)))
    if byteorder == "big":
        numbers.byteswap()
    assert numbers.tolist() == vector


def test_a_wrong_input_is_the_requests_error(client: httpx.Client) -> None:
    response = client.post(PATH, json={"input": ["wrong"]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"
    assert client.post(PATH, json={"input": "a", "dimensions": 2}).status_code == 400
    assert client.post(PATH, json={"input": "a", "encoding_format": "int8"}).status_code == 400


@pytest.mark.parametrize("given", [[], [[]], [[5], []]])
def test_nothing_to_embed_is_named(client: httpx.Client, given: list[object]) -> None:
    answer = client.post("/v1/embeddings", json={"input": given})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input"
    assert "there is nothing to" in answer.json()["error"]["message"]
