"""Choosing a decoding configuration from options, on top of the one in a run's recipe."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from pydantic import ValidationError

from addnorm.config import hints_of, problem_of
from addnorm.convert.folder import is_hf_folder
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, nearest
from addnorm.generate import BeamConfig, DecodingConfig, GreedyConfig, RulesConfig, SampleConfig
from addnorm.models import DecoderConfig
from addnorm.parts import members
from addnorm.runs.files.generation_config import HUGGING_FACE_SEARCH
from addnorm.runs.options import DecodingOptions
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.translation import SequenceToSequence

OPTION_OF = {"no_repeat_ngram_size": "no_repeat_ngram"}
"""The names in options of rules that have another name here."""

ALSO = {"temperature": ", or 0, which is greedy"}
"""What an option allows besides the range of its field."""

ENDS = ("length_penalty", "early_stopping")
"""The options of beam search about its end."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
"""The options that ask for sampling."""


def decoding_for(run: TrainedModel, **options: Unpack[DecodingOptions]) -> DecodingConfig:
    """The decoding that options ask for; without options the run's own, or else the default. What
    the options leave open is as in the run's own.

    `beams`, `n_best`, `length_penalty` and `early_stopping` ask for beam search, those of
    `SampleConfig` but the seed for sampling, the other two for neither. Raises `InputError` for an
    option out of its range, for a search that samples, and for an option that would do nothing.
    """
    given = _given(options)
    check_decodes(run, given)
    n_best, seed = given.pop("n_best", 1), given.pop("seed", 0)
    sampled = {name: given[name] for name in SAMPLING if name in given}
    search = {name: given[name] for name in ENDS if name in given}
    searched = {name: given[name] for name in ("beams",) if name in given}
    searched |= ({} if n_best == 1 else {"n_best": n_best}) | search
    _check_together(sampled, searched, search)
    own = usual_decoding(run.recipe)
    try:
        own = replace(own, rules=_rules(run, own.rules, given))
        if given.get("beams") == 1 == n_best:
            return GreedyConfig(rules=own.rules)
        if searched:
            named = own != BeamConfig(rules=own.rules)
            usual = own if isinstance(own, BeamConfig) and named else search_of(run)
            beams = given.get("beams", max(n_best, usual.beams))
            return replace(usual, rules=own.rules, beams=beams, n_best=n_best, **search)
        if sampled or isinstance(own, SampleConfig):
            usual = own if isinstance(own, SampleConfig) else SampleConfig(rules=own.rules)
            return replace(usual, seed=seed, **sampled)
    except ValidationError as error:
        raise _out_of_range(error) from error
    return own


def _given(options: DecodingOptions) -> dict[str, Any]:
    """The options that have a value; a temperature of 0 becomes greedy decoding."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if given.get("temperature") == 0 and given.get("beams", 1) == 1:
        given = {name: value for name, value in given.items() if name not in SAMPLING}
        given["beams"] = 1
    return given


def chosen_decoding(
    run: TrainedModel, decoding: DecodingConfig | None, options: DecodingOptions
) -> DecodingConfig:
    """The decoding given by a configuration or by options, or the default one.

    Raises `InputError` if both are given.
    """
    if decoding is None:
        return decoding_for(run, **options)
    if decoding != usual_decoding(run.recipe):
        check_decodes(run, ["decoding"])
    if options:
        raise InputError(f"give either `decoding` or {quoted(options)}, and not both")
    return decoding


def quoted(options: Iterable[str]) -> str:
    """Option names, each in backticks, joined with commas for a message."""
    return ", ".join(f"`{name}`" for name in options)


def check_decodes(run: TrainedModel, options: Iterable[str]) -> None:
    """Raise `InputError` for decoding options if the model writes its text without decoding."""
    given = quoted(options)
    if given and run.task_value.writes_text and not run.task_value.decodes:
        raise InputError(
            f"{run.name} reads its text off its outputs, without decoding: leave out {given}"
        )


def usual_decoding(recipe: Recipe) -> DecodingConfig:
    """Return the decoding used without options: by default sampling for a language model."""
    own = recipe.eval.decoding
    writes_on = isinstance(recipe.model, DecoderConfig)
    return SampleConfig() if writes_on and own == BeamConfig() else own


def search_of(run: TrainedModel) -> BeamConfig:
    """The default beam search; for a Hugging Face folder, that of `transformers`."""
    foreign = run.folder is not None and is_hf_folder(run.folder)
    return HUGGING_FACE_SEARCH if foreign else BeamConfig()


def _check_together(
    sampled: Mapping[str, Any], searched: Mapping[str, Any], search: Mapping[str, Any]
) -> None:
    """Raise `InputError` for options of two different decoding methods."""
    if searched and sampled:
        raise InputError(
            f"beam search does not sample: leave out {quoted(sampled)}, or {quoted(searched)}"
        )
    if searched.get("beams") == 1 and search:
        raise InputError(
            f"`beams = 1` is greedy decoding, without a choice: leave out {quoted(search)}"
        )


def _rules(run: TrainedModel, own: RulesConfig, given: Mapping[str, Any]) -> RulesConfig:
    """Return the run's rules, overridden by the given ones."""
    if "no_repeat_ngram" in given:
        own = replace(own, no_repeat_ngram_size=given["no_repeat_ngram"])
    if "forced_bos" not in given:
        return own
    forced_bos = given["forced_bos"]
    if not isinstance(run.task_value, SequenceToSequence):
        raise InputError(
            f"`forced_bos = {forced_bos}`: only a translation has a first token to force, and "
            f"{run.name} is for {run.task}: give it a prompt that begins so"
        )
    return replace(own, forced_bos_token_id=_id_of(run.tokenizers.target, forced_bos))


def _id_of(tokenizer: Tokenizer, token: str | int) -> int:
    """The id of a token by its number, or else by its name.

    Raises `InputError` with the nearest special token for one that the tokenizer does not have.
    """
    if str(token).isdecimal() and int(token) < tokenizer.vocab_size:
        return int(token)
    name = str(token)
    is_text = isinstance(token, str) and name.encode(errors="replace").decode() == name
    if is_text and (i := tokenizer.id_of(name)) is not None:
        return i
    special = tokenizer.pieces(sorted(tokenizer.special_ids))
    raise InputError(
        f"`forced_bos = {token}`: the tokenizer has no such token.{nearest(str(token), special)} "
        f"Valid: an id from 0 to {tokenizer.vocab_size - 1}, or a token by name."
    )


def _out_of_range(error: ValidationError) -> InputError:
    """The error for an option that a configuration refuses, under the name given by the user."""
    first = error.errors()[0]
    field = str(first["loc"][-1]) if first["loc"] else ""
    if not field:
        return InputError(problem_of(first))
    hints = (hints_of(part) for part in (*members(DecodingConfig), RulesConfig))
    annotation = next((types[field] for types in hints if field in types), None)
    name = OPTION_OF.get(field, field)
    problem = problem_of(first, annotation) + ALSO.get(name, "")
    return InputError(f"`{name} = {first['input']}`: {problem}")


def later(decoding: DecodingConfig, first: int) -> DecodingConfig:
    """Change the seed for later batches, so that their samples differ."""
    if isinstance(decoding, SampleConfig) and first:
        return replace(decoding, seed=decoding.seed + (first << 32))
    return decoding
