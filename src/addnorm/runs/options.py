"""Options for using, exporting and rewriting a model, declared once for Python and commands.

A command shows its options without torch, so this file imports nothing that needs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast, get_type_hints

from cyclopts import Parameter

from addnorm.arguments import check_types
from addnorm.errors import InputError

Form = Literal["hf", "onnx", "ctranslate2", "gguf", "web"]
"""A form in which a model is exported."""

ExportDtype = Literal["float32", "float16", "bfloat16"]
"""The type of the weights of an exported model."""

Split = Literal["valid", "test"]
"""A part of the data to measure on."""

Pooling = Literal["mean", "first", "last", "head"]
"""How hidden states are pooled into a text embedding."""

Weights = Literal["bfloat16", "int8"]
"""The types with fewer bits that weights can have in memory."""

CacheDtype = Literal["bfloat16"]
"""The types with fewer bits that cached keys and values can have in memory."""

SEVERAL = Parameter(consume_multiple=True, negative="", show_default=False)
"""An option with several values."""


class DecodingOptions(TypedDict, total=False):
    """How the next token is chosen."""

    beams: int | None
    """Beam search with so many beams; 1 is greedy. Where no option of this kind and no recipe says
    how to write, a language model samples and a translator searches with 5 beams.
    """
    n_best: int | None
    """How many results of a beam search to write for each input, best first; by default 1."""
    length_penalty: float | None
    """Beam search that divides log p by ((5 + length) / 6) ** this, or in Hugging Face folders by
    length ** this: larger ones favour longer texts, 0 leaves log p. As in the recipe where it is
    not given, or else 0.6; in Hugging Face folders 1.
    """
    early_stopping: Literal[True, False, "never"] | None
    """Beam search that ends as soon as enough texts have ended (true), when no other looks better
    (false), or when none can get better (never). As in the recipe where it is not given, or else
    never. A language model then searches with beams instead of drawing.
    """
    no_repeat_ngram: int | None
    """Write no sequence of so many tokens twice, 0 for any; as in the recipe where it is not given,
    or else 0.
    """
    forced_bos: str | int | None
    """Begin a translation with this token, by its id or by its name in the vocabulary, as models of
    several languages need it. As in the recipe where it is not given, or else none.
    """
    temperature: float | None
    """Sample, dividing the logits by this: 1 where other options ask for samples. 0 is greedy, as
    one beam is.
    """
    top_k: int | None
    """Sample from the k likeliest tokens; from all where it is not given."""
    top_p: float | None
    """Sample from the likeliest tokens that together have this probability; from all where it is
    not given.
    """
    min_p: float | None
    """Sample from the tokens at least this share as likely as the likeliest; from all where it is
    not given.
    """
    seed: int | None
    """The seed of the sampling; by default 0."""


class StopOptions(TypedDict, total=False):
    """When a text ends."""

    max_new_tokens: int | None
    """The most tokens to write: 256, or for a translation 50 more than the source has."""
    stop: Sequence[str]
    """End before this string; may be given several times."""


class GenerateOptions(DecodingOptions, StopOptions, total=False):
    """How the next token is chosen, and when a text ends."""


class ChatOptions(GenerateOptions, total=False):
    """How an answer is written, and which tools the assistant may call."""

    tools: Sequence[Mapping[str, Any]] | None
    """The functions that the assistant may call, as OpenAI's API and chat templates have them."""


class SpeechOptions(TypedDict, total=False):
    """How a sound is read, by Whisper and its relatives."""

    language: str | None
    """The language of the sound, by its code or its English name: `de`, `german`. As in the folder
    where it is not given, or else the likeliest one.
    """
    task: Literal["transcribe", "translate"] | None
    """Write the words of the sound (transcribe), or their English translation (translate). As in
    the folder where it is not given, or else the words.
    """
    timestamps: bool
    """Write the times of each segment before its text."""


class TranscribeOptions(DecodingOptions, SpeechOptions, total=False):
    """How a sound is read, and how the next token is chosen."""


def speech_of(options: TranscribeOptions) -> SpeechOptions:
    """Pop the sound options from the options; those of decoding remain."""
    names = [name for name in SpeechOptions.__annotations__ if name in options]
    return cast(SpeechOptions, {name: options.pop(name) for name in names})


class BatchOptions(TypedDict, total=False):
    """How many inputs are computed at a time."""

    batch_size: int
    """The inputs of a batch; by default 64."""
    first: int
    """The number of inputs before these, for messages about one of them; by default 0."""


class LabelOptions(TypedDict, total=False):
    """Which labels a text has."""

    threshold: float
    """The probability above which a line has a label, where it may have several; by default 0.5."""
    labels: Annotated[Sequence[str], SEVERAL]
    """Classes of your own to choose from, by a model of entailment, which has learnt what follows
    from what: `--labels politics sports`; of pictures, by a model that compares them with texts.
    """
    hypothesis: str | None
    """The sentence that a label is put in, at the {}; by default `This example is {}.`, and of a
    picture `This is a photo of {}.`.
    """


Aggregation = Literal["simple", "first", "average", "max"]
"""How tokens get the tags of entities: each its own; or all of a word that of its first token, of
the mean of their probabilities, or of the token with the largest probability.
"""


class EntityOptions(TypedDict, total=False):
    """Whether and how the entities of a text are named."""

    aggregation: Aggregation | None
    """Name entities, of tokens as they are (simple), or of words, which are tagged by their first
    token, by the mean of their tokens or by the surest one (first, average, max).
    """


class LineOptions(LabelOptions, EntityOptions, total=False):
    """Which labels or entities a text has."""


class ClassifyOptions(LabelOptions, BatchOptions, total=False):
    """Which labels a text has, and how many texts are computed at a time."""


class PoolingOptions(TypedDict, total=False):
    """How hidden states become a vector."""

    pooling: Pooling | None
    """How hidden states become a vector, whatever the folder says."""


class PromptNameOptions(TypedDict, total=False):
    """The prompt before each text."""

    prompt_name: str | None
    """The name of a prompt of sentence-transformers to put before each text, such as `query`; by
    default the folder's own, if it names one.
    """


class EmbedOptions(PoolingOptions, PromptNameOptions, BatchOptions, total=False):
    """How a text becomes a vector, and how many texts are computed at a time."""


class FillOptions(TypedDict, total=False):
    """How many tokens are shown for a mask."""

    top_k: int
    """How many tokens to name for each mask; by default 5."""


class ForecastOptions(TypedDict, total=False):
    """Which steps are forecast."""

    horizon: int | None
    """Steps to forecast; by default as many as the model was trained for. Of more, it forecasts the
    later ones from the earlier.
    """
    until: str | None
    """Forecast from this date on, as if the history ended there; the rows after it are the truth.
    """
    truth: Path | None
    """A table with what really came, for the picture."""


class DistillOptions(TypedDict, total=False):
    """How a student learns from the outputs of a teacher."""

    temperature: float
    """The logits of both models are divided by it: above 1, unlikely tokens count for more. By
    default that of the recipe, or else 1.
    """
    weight: float
    """The share of the teacher's probabilities in the loss; the rest is that of the labels. By
    default that of the recipe, or else 0.5.
    """


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PruneOptions:
    """The parts to remove from a run, and the recovery afterwards.

    Raises `InputError` for a number out of range.
    """

    heads: float | None = None
    """The share of heads to remove in every layer; a key/value head leaves with its queries."""
    feedforward: Annotated[float | None, Parameter(name="--feed-forward")] = None
    """The share of the rows of every feed-forward to remove."""
    layers: Annotated[tuple[str, ...], SEVERAL] = ()
    """The layers to keep: `every:2`, or their numbers from 0, as `0 2 4`."""
    calibrate: int = 512
    """How many validation examples to measure importance on."""
    recover: int = 0
    """Train so many steps afterwards."""
    split: Split = "valid"
    """Which part of the data to measure on."""

    def __post_init__(self) -> None:
        check_types(get_type_hints(type(self)), vars(self))
        _check_at_least("recover", self.recover, 0)
        _check_at_least("calibrate", self.calibrate, 1)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """The data for calibration and measurement, and the layers to quantise.

    Raises `InputError` for a number out of range.
    """

    calibrate: int = 128
    """How many training examples a calibrated scheme sees."""
    keep: Annotated[tuple[str, ...], SEVERAL] = ()
    """Layers to leave as they are, by name; `*` stands for anything, as in `"*.down_proj"`."""
    include: Annotated[tuple[str, ...], SEVERAL] = ()
    """Linear and recurrent layers to quantise too, by name, such as those of modules of your own.
    """
    keep_worst: int = 0
    """Leave so many more as they are: those that raise the loss most when they alone are rounded.
    """
    split: Split = "valid"
    """Which part of the data to measure on."""

    def __post_init__(self) -> None:
        check_types(get_type_hints(type(self)), vars(self))
        _check_at_least("calibrate", self.calibrate, 1)
        _check_at_least("keep_worst", self.keep_worst, 0)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SwapOptions:
    """The parts to swap, and how to recover from it.

    Raises `InputError` for options that contradict, and for a number out of range.
    """

    sets: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = ()
    """A part and its value, as `position=rotary` or, for one layer, `layer_pattern.1.norm=rmsnorm`;
    may be given again.
    """
    layers: Annotated[tuple[int, ...], SEVERAL] = ()
    """Which of the old layers the new ones are, as `0 1 1 2`; by default chosen evenly."""
    recover: int = 0
    """Train so many steps afterwards."""
    distill: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Recover on the outputs of the old model, in place of the labels."""
    split: Split = "valid"
    """Which part of the data to measure on."""

    def __post_init__(self) -> None:
        check_types(get_type_hints(type(self)), vars(self))
        _check_at_least("recover", self.recover, 0)
        if self.distill and not self.recover:
            raise InputError(
                "`distill` chooses the targets of recovery: give `recover`, the number of steps"
            )


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"`{name} = {value}`: must be at least {least}")
