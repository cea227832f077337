"""The sampling fields of OpenAI's requests, and the engine options that they stand for."""

import re
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from addnorm.errors import InputError, in_json
from addnorm.serve.engine.options import Options
from addnorm.serve.structured_output import ResponseFormat, StructuredOutputs, grammar_of

MOST_ANSWERS = 16
MOST_STOPS = 4
MOST_BIASES = 1024
MOST_BEST = 20
MOST_TOKENS = 2**31 - 1

SEEDS = 2**63
"""Seeds are taken modulo this: those of OpenAI may be negative."""


def _listed(value: Any) -> Any:
    if not isinstance(value, str | list | None):
        raise ValueError("give a text or a list of texts")
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=100)]
StopList = Annotated[list[Stop], Field(max_length=MOST_STOPS)]
Stops = Annotated[StopList, BeforeValidator(_listed, json_schema_input_type=Stop | StopList)]
"""Texts before which an answer ends; a single one needs no list."""

LengthPenalty = Annotated[float | None, Field(ge=-10.0, le=10.0)]
"""The exponent of the length penalty of beam search."""

Bias = Annotated[float, Field(ge=-100.0, le=100.0)]


def _few(value: Any) -> Any:
    """The biases, unless there are too many for pydantic to check one by one."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"must have at most {MOST_BIASES} items, not {len(value)}")
    return value


BiasTable = Annotated[dict[str, Bias], Field(max_length=MOST_BIASES)]
Biases = Annotated[BiasTable | None, BeforeValidator(_few)]
"""Numbers to add to the logits of tokens, by their ids as texts."""


class ApiRequest(BaseModel):
    """A body whose unknown fields are ignored, and named in a header of the response.

    A field of OpenAI's that is not supported may have the value that changes nothing.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Fields that are not supported, each with the values that change nothing."""
    harmless: ClassVar[frozenset[str]] = frozenset(
        {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
    )
    """Fields that are about something that we do not do."""

    model: Annotated[str | None, Field(max_length=128)] = None

    @model_validator(mode="after")
    def _check_unsupported(self) -> "ApiRequest":
        extra = self.model_extra or {}
        for name, neutral in self.unsupported.items():
            if name in extra and extra[name] is not None and extra[name] not in neutral:
                raise ValueError(f"{name} is not supported by this server: leave it out")
        return self

    @property
    def ignored(self) -> list[str]:
        """The unknown fields."""
        return sorted({*(self.model_extra or {})} - self.harmless - {*self.unsupported})


class SamplingRequest(ApiRequest):
    """How an answer's tokens are chosen; None stands for the model's own decoding."""

    temperature: Annotated[float | None, Field(ge=0.0, le=100.0)] = None
    top_p: Annotated[float | None, Field(gt=0.0, le=1.0)] = None
    n: Annotated[int | None, Field(ge=1, le=MOST_ANSWERS)] = None
    seed: Annotated[int | None, Field(ge=-SEEDS, lt=SEEDS)] = None
    stop: Stops | None = None
    logit_bias: Biases = None
    presence_penalty: Annotated[float | None, Field(ge=-2.0, le=2.0)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2.0, le=2.0)] = None
    # Beyond OpenAI, under vLLM's names.
    top_k: Annotated[int | None, Field(ge=-1, le=MOST_TOKENS)] = None
    min_p: Annotated[float | None, Field(ge=0.0, le=1.0)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0.0, le=100.0)] = None
    num_beams: Annotated[int | None, Field(ge=1, le=MOST_ANSWERS)] = None
    length_penalty: LengthPenalty = None
    min_tokens: Annotated[int | None, Field(ge=0, le=MOST_TOKENS)] = None
    ignore_eos: bool | None = None
    cache_salt: Annotated[str | None, Field(max_length=256)] = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def answers(self) -> int:
        """The requested number of answers."""
        return self.n or 1

    @property
    def searches(self) -> bool:
        """Whether beam search is requested."""
        return self.num_beams is not None and self.num_beams > 1

    @property
    def is_structured(self) -> bool:
        """Whether the answer must follow a grammar."""
        wanted = self.response_format
        return self.structured_outputs is not None or (wanted is not None and wanted.type != "text")

    @property
    def grammar_field(self) -> str:
        """The field that asks for a grammar."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    def grammar(self) -> str | None:
        """The grammar of the answer; None allows any text. Raises `InputError` for a wrong one."""
        return grammar_of(self.response_format, self.structured_outputs)

    @model_validator(mode="after")
    def _check_search(self) -> "SamplingRequest":
        if self.searches and self.answers > (self.num_beams or 1):
            raise ValueError(
                f"n = {self.n}: a search with {self.num_beams} beams has no more results"
            )
        if self.searches and self.is_structured:
            raise ValueError("num_beams: beam search follows no grammar: leave it out")
        return self

    def options(self, vocab_size: int, **facts: Any) -> Options:
        """The options for the engine; `facts` are the endpoint's own.

        Raises `InputError` for the bias of a token beyond the vocabulary.
        """
        greedy = self.temperature == 0 or (self.num_beams == 1)
        kind = "beam" if self.searches else "greedy" if greedy else None
        return Options(
            decoding=kind,
            temperature=None if greedy else self.temperature,
            top_p=None if greedy else self.top_p,
            top_k=None if greedy or self.top_k in (None, -1, 0) else self.top_k,
            min_p=None if greedy else self.min_p,
            seed=None if self.seed is None else self.seed % SEEDS,
            beams=self.num_beams if self.searches else None,
            n_best=self.answers if self.searches else 1,
            length_penalty=self.length_penalty if self.searches else None,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=_biases(self.logit_bias or {}, vocab_size),
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            grammar_field=self.grammar_field,
            **facts,
        )


ID = re.compile(r"[0-9]{1,18}")
"""The id of a token, as the name of a field."""


def _biases(given: dict[str, float], vocab_size: int) -> dict[int, float]:
    """The biases by token id."""
    biases: dict[int, float] = {}
    for name, bias in given.items():
        if ID.fullmatch(name) is None or int(name) >= vocab_size:
            raise InputError(
                f"logit_bias: {in_json(name, 40)} is not an id from 0 to {vocab_size - 1}"
            )
        biases[int(name)] = bias
    return biases
