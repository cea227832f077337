"""Structured output: whatever the weights, a finished answer is a text of the grammar."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.engine.tiny import TINY, Answered, answered
from torch import nn

from addnorm.data.tokenizing.grammars import GrammarCompiler
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig, SampleConfig
from addnorm.models import DecoderModel
from addnorm.nn.positions import NoPositionConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.runs.inference.text import write
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.ngrams import PromptLookup
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.schedule import Limits
from addnorm.serve.engine.sequence import Request
from addnorm.serve.structured_output import ResponseFormat, StructuredOutputs, grammar_of
from addnorm.training.settings import TrainConfig

TEXT = '{"name": "Ann", "age": 31, "tags": ["a", "b"], "ok": true, "none": null, "x": -0.5e3}\n'
BPE = BPEConfig(vocab_size=300).train([TEXT] * 3)
CHAR = CharConfig().train([TEXT, "abcdefghijklmnopqrstuvwxyz0123456789"])


def run_with(tokenizer: Tokenizer, *, recurrent: bool = False) -> TrainedModel:
    """A random model of short answers: the end, quotes and brackets are likely."""
    config = TINY
    if recurrent:
        config = replace(TINY, position=NoPositionConfig(), attention=RecurrentConfig())
    torch.manual_seed(0)
    model = config.build(tokenizer.vocab_size).eval()
    with torch.no_grad():
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
    recipe = Recipe(model=config, train=TrainConfig(steps=1))
    return TrainedModel(None, recipe, Tokenizers(tokenizer, tokenizer), (), model)


RUNS = {"bpe": run_with(BPE), "char": run_with(CHAR), "recurrent": run_with(CHAR, recurrent=True)}
ENGINES = {name: Engine(run, memory=2**21, limits=Limits(rows=8)) for name, run in RUNS.items()}
SPECULATING = Engine(RUNS["bpe"], memory=2**21)
SPECULATING.speculate(PromptLookup())

CLOSING = {BPE.encode(sign)[0]: 20.0 for sign in '"]},0'} | {BPE.encode(" ")[0]: -100.0}


def schema_grammar(schema: Mapping[str, Any]) -> str:
    grammar = grammar_of(
        ResponseFormat.model_validate({"type": "json_schema", "schema": dict(schema)})
    )
    assert grammar is not None
    return grammar


def ask(
    engine: Engine, grammar: str, n: int = 1, limit: int = 90, **options: Any
) -> list[Answered]:
    """The answers to a request with this grammar, next to one without."""
    options = {"decoding": "sample", "seed": 1, **options}
    prompt = tuple(engine.run.tokenizers.source.encode("a: "))
    asked = Request(
        name="a", prompt=prompt, limit=limit, n=n, options=Options(grammar=grammar, **options)
    )
    other = Request(name="b", prompt=prompt, limit=9, options=Options(decoding="greedy"))
    answers = answered(engine, [asked, other])
    return [answers["a", i] for i in range(n)]


def text_of(engine: Engine, answer: Answered) -> str:
    tokens = answer.tokens[: -1 if answer.finished == "eos" else None]
    return engine.run.tokenizers.target.decode(tokens)


scalars = st.sampled_from(
    [
        {"type": "string", "maxLength": 5},
        {"type": "integer", "minimum": 0, "maximum": 99},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", "b", 3]},
        {"type": "number", "minimum": -1, "maximum": 1},
        {"type": "string", "pattern": "^[ab]{2,3}$"},
    ]
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.lists(st.sampled_from(["a", "b", "name"]), unique=True, min_size=1)
    objects = st.builds(
        lambda keys, values: {
            "type": "object",
            "properties": dict(zip(keys, values, strict=False)),
            "required": keys[: len(values)][:2],
            "additionalProperties": False,
        },
        names,
        st.lists(inner, min_size=3, max_size=3),
    )
    arrays = st.builds(
        lambda items, n: {"type": "array", "items": items, "maxItems": n}, inner, st.integers(0, 3)
    )
    either = st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
    return objects | arrays | either


schemas = st.recursive(scalars, composed, max_leaves=4)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(schemas, st.integers(0, 9), st.sampled_from([*ENGINES, "speculating"]))
def test_finished_answers_have_the_schema(schema: dict[str, Any], seed: int, name: str) -> None:
    engine = ENGINES.get(name, SPECULATING)
    bias = CLOSING if engine.run.tokenizers.target is BPE else {}
    for answer in ask(engine, schema_grammar(schema), n=2, seed=seed, logit_bias=bias):
        text = text_of(engine, answer)
        assert answer.finished in ("eos", "stop", "length"), answer.events[-1].error
        if answer.finished != "length":
            assert jsonschema_rs.is_valid(schema, json.loads(text)), text


def test_an_answer_ends_only_where_the_grammar_does() -> None:
    run = RUNS["char"]
    [end] = run.tokenizers.target.eos_ids
    for grammar, text, finished in (
        (schema_grammar({"const": {"a": 1}}), '{"a":1}', "stop"),
        (lark("[0-9]{3}"), None, "stop"),
        (lark("ab(a|b)*"), "ab", "eos"),
    ):
        bias = {end: 100.0, **dict.fromkeys(run.tokenizers.target.encode(" \n"), -100.0)}
        [answer] = ask(ENGINES["char"], grammar, logit_bias=bias)
        assert answer.finished == finished
        assert text in (None, text_of(ENGINES["char"], answer))
    [answer] = ask(ENGINES["char"], lark("a{9}"), limit=4)
    assert (text_of(ENGINES["char"], answer), answer.finished) == ("aaaa", "length")


def lark(regex: str) -> str:
    grammar = grammar_of(None, StructuredOutputs(regex=regex))
    assert grammar is not None
    return grammar


def test_without_end_tokens_a_whole_answer_ends() -> None:
    [answer] = ask(ENGINES["bpe"], lark("(yes|no)"), ignore_eos=True)
    assert text_of(ENGINES["bpe"], answer) in ("yes", "no")
    assert answer.finished == "stop"


def test_log_probabilities_are_the_models_own() -> None:
    [answer] = ask(ENGINES["bpe"], lark("[a-f]{6}"), log_probs=1)
    model = RUNS["bpe"].model
    assert isinstance(model, DecoderModel)
    prompt = BPE.encode("a: ")
    with torch.inference_mode():
        log_p = model(torch.tensor([[*prompt, *answer.tokens]]))[0].log_softmax(-1)
    rows = log_p[len(prompt) - 1 : -1]
    expected = rows.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer.log_probs), expected, atol=1e-5, rtol=0)


def test_choices_and_larks_are_followed() -> None:
    engine = ENGINES["bpe"]
    texts = ['say "a"', "b\nc", "né"]
    grammar = grammar_of(None, StructuredOutputs(choice=texts))
    assert grammar is not None
    for seed in range(5):
        [answer] = ask(engine, grammar, seed=seed)
        assert text_of(engine, answer) in texts
    grammar = grammar_of(None, StructuredOutputs(grammar='start: "a" NUMBER\nNUMBER: /[0-9]/'))
    assert grammar is not None
    assert text_of(engine, ask(engine, grammar)[0])[0] == "a"


def test_what_cannot_be_followed_is_refused() -> None:
    with pytest.raises(InputError, match="no token of the model continues"):
        ask(ENGINES["char"], lark("[B-Z]{3}Q"))
    [answer] = ask(ENGINES["char"], lark("aQ"))
    assert answer.finished == "failed"
    assert "no token of the model continues" in (answer.events[-1].error or "")
    assert (answer.events[-1].error or "").startswith("response_format: ")
    with pytest.raises(InputError, match=r"structured output: .*foo"):
        GrammarCompiler(BPE).start('{"grammars": [{"lark_grammar": "start: foo"}]}')
    with pytest.raises(InputError, match="beam search has no grammar"):
        ask(ENGINES["bpe"], lark("a"), decoding="beam", seed=None)


def test_a_grammar_that_grows_too_large_midway_ends_the_answer_before_a_wrong_token() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(a{1000}){1000}$"}},
        "required": ["a"],
    }
    grammar = schema_grammar(schema)
    [answer] = ask(ENGINES["char"], grammar, grammar_field="structured_outputs")
    assert answer.finished == "failed"
    assert re.fullmatch(r'\{\s*("a"\s*)?(:\s*)?"?', text_of(ENGINES["char"], answer))
    error = answer.events[-1].error or ""
    assert error.startswith("structured_outputs: the grammar is too large (")


@pytest.mark.filterwarnings("ignore:a text reached max_new_tokens")
@settings(max_examples=4, deadline=None)
@given(schemas, st.integers(0, 9), st.sampled_from(["bpe", "recurrent"]), st.booleans())
def test_generate_writes_the_same_of_ragged_prompts(
    schema: dict[str, Any], seed: int, name: str, sampled: bool
) -> None:
    engine = ENGINES[name]
    grammar = schema_grammar(schema)
    tokenizer = engine.run.tokenizers.target
    start = GrammarCompiler(tokenizer).start(grammar)
    texts = ["a: ", "", "ab a: tags"]
    decoding = SampleConfig(seed=seed) if sampled else GreedyConfig()
    together = write(engine.run, texts, decoding, max_new_tokens=30, grammar=start)
    for i, text in enumerate(texts):
        [[alone]] = write(engine.run, [text], decoding, max_new_tokens=30, grammar=start)
        if not sampled or i == 0:  # each prompt has random numbers of its own
            assert together[i][0].text == alone.text
        prompt = tuple(tokenizer.encode(text)) or (tokenizer.bos_id,)
        options = Options(grammar=grammar, decoding=decoding.kind, seed=seed)
        request = Request(name="a", prompt=prompt, limit=30, n=1, options=options)
        served = answered(engine, [request])["a", 0]
        assert (text_of(engine, served), served.finished) == (alone.text, alone.finished)
        if alone.finished != "length":
            assert jsonschema_rs.is_valid(schema, json.loads(alone.text))


def test_a_grammar_that_no_token_continues_ends_generate_with_the_reason() -> None:
    run = RUNS["char"]
    start = GrammarCompiler(CHAR).start(lark("aQ"), "--regex")
    with pytest.raises(InputError, match=r"^--regex: no token of the model continues"):
        write(run, ["a"], GreedyConfig(), grammar=start)
    compiler = GrammarCompiler(BPE)
    with pytest.raises(InputError, match="beam search follows no grammar"):
        write(RUNS["bpe"], ["a"], BeamConfig(), grammar=compiler.start(lark("a")))
