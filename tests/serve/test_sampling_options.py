"""The fields of OpenAI's requests mean the options of the engine."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from addnorm.errors import InputError
from addnorm.serve.engine.options import Options
from addnorm.serve.sampling_options import SamplingRequest

MEANINGS = [
    ({}, {}),
    ({"temperature": 0}, {"decoding": "greedy"}),
    ({"temperature": 0, "top_p": 0.5, "top_k": 3}, {"decoding": "greedy"}),
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    ({"top_k": -1}, {}),
    ({"top_k": 0}, {}),
    ({"top_k": 7, "min_p": 0.1}, {"top_k": 7, "min_p": 0.1}),
    ({"seed": -1}, {"seed": 2**63 - 1}),
    ({"seed": 5}, {"seed": 5}),
    ({"num_beams": 1}, {"decoding": "greedy"}),
    (
        {"num_beams": 4, "n": 2, "length_penalty": 0.6},
        {"decoding": "beam", "beams": 4, "n_best": 2, "length_penalty": 0.6},
    ),
    ({"logit_bias": {"3": -100}}, {"logit_bias": {3: -100.0}}),
    ({"presence_penalty": 1, "frequency_penalty": None}, {"presence_penalty": 1.0}),
    ({"ignore_eos": True, "min_tokens": 3}, {"ignore_eos": True, "min_tokens": 3}),
]


@pytest.mark.parametrize(("fields", "options"), MEANINGS, ids=str)
def test_fields_mean_options(fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert SamplingRequest(**fields).options(10) == Options(**options)


@pytest.mark.parametrize("name", ["10", "-1", "a", "²", "٣", "1" * 5000, " 1", ""])
def test_a_bias_is_for_a_token_of_the_vocabulary(name: str) -> None:
    shown = json.dumps(name, ensure_ascii=False)[:40]
    with pytest.raises(InputError, match=f"logit_bias: {shown} is not an id from 0 to 9"):
        SamplingRequest(logit_bias={name: 1.0}).options(10)


def test_too_many_biases_are_refused_before_each_is_checked() -> None:
    biases = {str(i): "x" for i in range(1025)}
    with pytest.raises(ValidationError, match="at most 1024 items, not 1025") as caught:
        SamplingRequest.model_validate({"logit_bias": biases})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e308, -1.0])
def test_numbers_have_bounds(number: float) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        with pytest.raises(ValidationError):
            SamplingRequest(**{name: number})


def test_one_stop_string_needs_no_list() -> None:
    assert SamplingRequest(stop="x").stop == ["x"]
    assert SamplingRequest(stop=["x", "y"]).stop == ["x", "y"]
