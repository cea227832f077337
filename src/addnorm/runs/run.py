"""Run: a trained model with its tokenizers and labels; loading, using and saving it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Unpack, cast, overload

import torch
from jaxtyping import Float
from rich.console import Console
from torch import Tensor

from addnorm.arguments import known_keywords
from addnorm.data import Corpus, DataConfig
from addnorm.data.conversation import Message
from addnorm.data.example import Example
from addnorm.data.tokenizing.grammars import Grammar, GrammarCompiler
from addnorm.errors import InputError, listed, one_text, path_of, refuse
from addnorm.generate import DecodingConfig, Generated
from addnorm.generate.early_exit import EarlyExit, exit_rule
from addnorm.models import DecoderModel
from addnorm.runs.evaluation import Evaluation, check_early, evaluate_on, evaluation_of
from addnorm.runs.export import export_run
from addnorm.runs.inference.chat import Messages, conversations, is_conversation, template_of
from addnorm.runs.inference.decoding import chosen_decoding
from addnorm.runs.inference.entities import answer_lines
from addnorm.runs.inference.forecast import forecast
from addnorm.runs.inference.labelled_pictures import classify_files
from addnorm.runs.inference.masked_tokens import check_fills, fill
from addnorm.runs.inference.media import embed_files, transcribe_files
from addnorm.runs.inference.predictions import Row, predict_rows, rows_of
from addnorm.runs.inference.replies import answer, reply
from addnorm.runs.inference.results import (
    Classified,
    FileName,
    Filled,
    Forecast,
    LineAnswer,
    Sentence,
    Several,
    Texts,
    words_of,
)
from addnorm.runs.inference.series import SeriesAnswer, answer_series
from addnorm.runs.inference.text import (
    check_follows,
    check_use,
    classify,
    embed,
    ends_of,
    hidden_states,
    predict,
    tag,
    write,
    write_as_it_comes,
)
from addnorm.runs.inference.writers import Compiled, compiled, speculation
from addnorm.runs.opening import open_model
from addnorm.runs.options import (
    BatchOptions,
    CacheDtype,
    ChatOptions,
    ClassifyOptions,
    DecodingOptions,
    EmbedOptions,
    ExportDtype,
    FillOptions,
    ForecastOptions,
    Form,
    GenerateOptions,
    LabelOptions,
    LineOptions,
    PoolingOptions,
    Split,
    TranscribeOptions,
    Weights,
    speech_of,
)
from addnorm.runs.saving import save_run
from addnorm.runs.trained_model import TrainedModel, device_named, dtype_named
from addnorm.tasks.task import Task
from addnorm.tasks.translation import SequenceToSequence


@dataclass(frozen=True, repr=False)
class Run(TrainedModel):
    """A trained model with its tokenizers, labels and recipe.

    Methods take one text and return one result, or take a list and return a list in the same order,
    computed in batches. Results do not depend on the other texts in a batch.
    """

    @classmethod
    @known_keywords
    def open(
        cls,
        folder: FileName,
        overrides: Mapping[str, str] | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | None = None,
        weights: Weights | None = None,
        pickled: bool = False,
    ) -> "Run":
        """Load a finished run, with fields of its recipe replaced by `overrides`.

        By default `dtype` is that of the stored weights; `weights` keeps them in fewer bits in
        memory, which is faster and slightly different. A folder with an adapter, ours or PEFT's,
        is opened with its base as one plain model. `pickled` allows a `pytorch_model.bin` in a
        Hugging Face folder. Raises `InputError` if the folder is not a model folder or is
        damaged, or if training is unfinished.
        """
        place, kind = device_named(device), None if dtype is None else dtype_named(dtype)
        opened = open_model(path_of(folder), overrides, device=place, dtype=kind, pickled=pickled)
        return cls.of(opened).to(weights=weights)

    @classmethod
    def of(cls, model: TrainedModel) -> "Run":
        """The run of a trained model: the same values, with the methods that use it."""
        return cls(**{field.name: getattr(model, field.name) for field in fields(model)})

    # Generating text.

    @overload
    def generate(
        self,
        texts: str,
        *,
        decoding: "DecodingConfig | None" = None,
        **options: Unpack[GenerateOptions],
    ) -> str: ...
    @overload
    def generate(
        self,
        texts: Texts,
        *,
        decoding: "DecodingConfig | None" = None,
        **options: Unpack[GenerateOptions],
    ) -> list[str]: ...
    @known_keywords
    def generate(
        self,
        texts: str | Texts,
        *,
        decoding: "DecodingConfig | None" = None,
        **options: Unpack[GenerateOptions],
    ) -> str | list[str]:
        """Continue a text with a language model, or translate it with an encoder–decoder.

        Returns what the model writes, without the text that it continues: a string for a string,
        a list for a list. `max_new_tokens` is by default 256, for a translation 50 more than the
        source has; a text ends earlier at its end token, and before a string in `stop`. Language
        models sample by default, the same numbers each time; `beams=1` is greedy. Other `options`
        are `temperature`, `top_k`, `top_p`, `min_p`, `seed`; `length_penalty`, `early_stopping`;
        `no_repeat_ngram`, `forced_bos`; or else a `decoding` such as `BeamConfig(beams=4)`.

        Raises `InputError` if the model does not generate text, a text is too long for it, or an
        option is unknown or out of range.
        """
        results = self.write(listed(texts), decoding, **options)
        written = [best[0].text for best in results]
        return written[0] if isinstance(texts, str) else written

    @known_keywords
    def write(
        self,
        texts: Sequence[str | Messages],
        decoding: "DecodingConfig | None" = None,
        *,
        first: int = 0,
        compiled: Compiled | None = None,
        grammar: Grammar | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[list[Generated]]:
        """As `generate`, with the score of each text, why it ended, and all of the `n_best`.

        Conversations are answered. `first` is the number of texts before these, for messages and
        seeds; `compiled` takes the place of the model, such as `run.compiled()` or
        `run.speculation()`. Each text follows the `grammar`. Raises `InputError` as `generate`.
        """
        most, stop = ends_of(options)
        chosen = chosen_decoding(self, decoding, options)
        given: dict[str, Any] = {"first": first, "compiled": compiled, "grammar": grammar}
        return write(self, texts, chosen, max_new_tokens=most, stop=stop, **given)

    @known_keywords
    def stream(
        self,
        text: str | Messages,
        *,
        decoding: "DecodingConfig | None" = None,
        compiled: Compiled | None = None,
        grammar: Grammar | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[str]:
        """Continue one text, or answer one conversation, in pieces as soon as each is final.

        Joined, the pieces are what `generate` returns for the same options. Raises `InputError` as
        `generate` does, at the call, and for beam search or if this is not a language model.
        """
        most, stop = ends_of(options)
        chosen = chosen_decoding(self, decoding, options)
        text = text if not isinstance(text, str) and is_conversation(text) else one_text(text)
        given: dict[str, Any] = {"compiled": compiled, "grammar": grammar}
        return write_as_it_comes(self, text, chosen, max_new_tokens=most, stop=stop, **given)

    @known_keywords
    def grammar(self, grammar: str, field: str = "grammar") -> Grammar:
        """The beginning of a text of a grammar in the form of llguidance, for `write` and `stream`.

        `data.tokenizing.grammar_forms` makes one of a JSON schema or an expression. Raises
        `InputError`, which begins with `field`, for one that no token of the model begins.
        """
        check_follows(self)
        return GrammarCompiler(self.tokenizers.target).start(grammar, field)

    @known_keywords
    def transcribe(
        self,
        files: Sequence[FileName],
        decoding: "DecodingConfig | None" = None,
        *,
        max_new_tokens: int | None = None,
        skipped: Callable[[InputError], None] = refuse,
        **options: Unpack[TranscribeOptions],
    ) -> Iterator[tuple[Path, list[Generated]]]:
        """The texts of each image or sound file, best first, in the order of the files.

        Whisper also takes `language`, `task` and `timestamps`, which gives each text its
        `segments`, and sound of any length. `skipped` takes the `InputError` of a file that cannot
        be read, which is then left out; by default it is raised, as for a model of another task.
        """
        speech = speech_of(options)
        paths, chosen = [*map(path_of, files)], chosen_decoding(self, decoding, options)
        return transcribe_files(
            self, paths, chosen, speech=speech, max_new_tokens=max_new_tokens, skipped=skipped
        )

    @known_keywords
    def decoding(self, **options: Unpack[DecodingOptions]) -> "DecodingConfig":
        """The decoding that options ask for, or the model's own. Raises `InputError` for others."""
        return chosen_decoding(self, None, options)

    @known_keywords
    def can_stream(self, decoding: "DecodingConfig") -> bool:
        """Whether `stream` writes with this decoding: a language model does, without beams."""
        return isinstance(self.model, DecoderModel) and decoding.kind != "beam"

    @known_keywords
    def compiled(
        self,
        decoding: "DecodingConfig | None" = None,
        *,
        several: bool = True,
        cache_dtype: CacheDtype | None = None,
    ) -> "Compiled":
        """The model as a compiled graph, for `write` and `stream`, by default of several texts.

        Its first steps take up to a minute; the graph is then kept on disk. Keys and values are
        rounded to a `cache_dtype`. Raises `InputError` for a model that writes no text.
        """
        return compiled(self, decoding or self.decoding(), several=several, cache_dtype=cache_dtype)

    @known_keywords
    def early_exit(self, rule: str) -> EarlyExit:
        """Early exits for `write`, `stream` and `evaluation`, which count the layers of each token.

        By `entropy:0.3` a token leaves at the first exit whose entropy is below 0.3 nats, by
        `confidence:0.9` where its two likeliest tokens are more than 0.9 apart. Raises `InputError`
        for another rule, and for a model without such exits.
        """
        exits = EarlyExit(exit_rule(rule))
        check_early(self)
        return exits

    def speculation(self) -> Compiled:
        """The model with its own drafts, for `write` and `stream`: faster, with the same texts.

        Raises `InputError` without multi-token prediction, or where a token cannot be forgotten.
        """
        return speculation(self)

    # Chat.

    @known_keywords
    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> str:
        """The answer to `[{"role": "user", "content": …}, …]`; options are those of `generate`.

        `tools` are functions that the assistant may call, as OpenAI's API has them. Raises
        `InputError` as `generate` does, without a chat template, and if it takes no tools.
        """
        return answer(self, messages, **options)

    @known_keywords
    def reply(self, messages: Messages, **options: Unpack[ChatOptions]) -> Message:
        """As `chat`, the message of the assistant, to be appended: with its `tool_calls`."""
        return reply(self, messages, **options)

    def check_chats(self) -> None:
        """Raise `InputError` for a model that has no chat template."""
        template_of(self)

    @known_keywords
    def conversations(
        self, file: FileName, encoding: str = "utf-8"
    ) -> Iterator[tuple[str, Messages | InputError]]:
        """Yield the conversations of a file with their places; see `addnorm generate --chat`.

        In place of one that cannot be read is its `InputError`.
        """
        return conversations(self, path_of(file), encoding)

    @overload
    def translate(
        self,
        texts: str,
        *,
        decoding: "DecodingConfig | None" = None,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> str: ...
    @overload
    def translate(
        self,
        texts: Texts,
        *,
        decoding: "DecodingConfig | None" = None,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...
    @known_keywords
    def translate(
        self,
        texts: str | Texts,
        *,
        decoding: "DecodingConfig | None" = None,
        max_new_tokens: int | None = None,
        **options: Unpack[DecodingOptions],
    ) -> str | list[str]:
        """Translate a text, or each text of a list, with the recipe's decoding settings.

        The default is beam search; `beams=1` is greedy search. The translation of a blank text is
        empty. Raises `InputError` if the model is not an encoder–decoder, and as `generate` does.
        """
        check_use(self, SequenceToSequence, "does not translate")
        return self.generate(texts, decoding=decoding, max_new_tokens=max_new_tokens, **options)

    # Predicting.

    @overload
    def classify(self, texts: str, **options: Unpack[ClassifyOptions]) -> Classified: ...
    @overload
    def classify(self, texts: Several, **options: Unpack[ClassifyOptions]) -> list[Classified]: ...
    @known_keywords
    def classify(
        self, texts: str | Several, **options: Unpack[ClassifyOptions]
    ) -> Classified | list[Classified]:
        """Classify a text: `.label`, all `.probabilities`, and the `.labels` above `threshold`.

        A pair is read as one. Raises `InputError` where it does not classify, or one is too long.
        """
        results = classify(self, listed(texts, pairs=True), **options)
        return results[0] if isinstance(texts, str) else results

    @known_keywords
    def classify_lines(
        self, texts: Several, *, first: int = 0, **options: Unpack[LineOptions]
    ) -> list[LineAnswer]:
        """The class, labels, numbers or tags of each text, as `addnorm classify` writes them."""
        return answer_lines(self, listed(texts, pairs=True), first, **options)

    @known_keywords
    def classify_files(
        self,
        files: Sequence[FileName],
        *,
        skipped: Callable[[InputError], None] = refuse,
        **options: Unpack[LabelOptions],
    ) -> Iterator[tuple[Path, Classified]]:
        """The class of each image or sound file, of `labels` by CLIP; `skipped` as `transcribe`."""
        return classify_files(self, [*map(path_of, files)], skipped=skipped, **options)

    @known_keywords
    def predict_series(
        self, files: Sequence[FileName], *, skipped: Callable[[InputError], None] = refuse
    ) -> Iterator[SeriesAnswer]:
        """Yield the class, or the numbers, of each series of each table; see `addnorm classify`.

        `skipped` takes the `InputError` of a table or a series that cannot be read.
        """
        return answer_series(self, [path_of(file) for file in files], skipped=skipped)

    @overload
    def predict(
        self, texts: str | Several, **options: Unpack[BatchOptions]
    ) -> Float[Tensor, "*texts n"]: ...
    @overload
    def predict(self, texts: Row | Example, **options: Unpack[BatchOptions]) -> Any: ...
    @overload
    def predict(
        self, texts: Sequence[Row | Example], **options: Unpack[BatchOptions]
    ) -> list[Any]: ...
    @known_keywords
    def predict(
        self,
        texts: str | Several | Row | Example | Sequence[Row | Example],
        **options: Unpack[BatchOptions],
    ) -> Any:
        """The numbers of a text, or of each of a list of texts or pairs; `labels` names them.

        Of a task without a method of its own, the results for rows, each the fields of an example
        without those to predict: `run.predict({"question": "Who?", "context": "Ada did."})`. Raises
        `InputError` as `classify` does.
        """
        if isinstance(texts, Mapping | Example):
            return predict_rows(self, [texts], **options)[0]
        are_rows = isinstance(texts, list | tuple) and (
            isinstance(texts[0], Mapping | Example) if texts else self.task_value.call == Task.call
        )
        if are_rows:
            return predict_rows(self, cast(Sequence[Row | Example], texts), **options)
        rows = predict(self, listed(texts, pairs=True), **options)
        return rows[0] if isinstance(texts, str) else rows

    @known_keywords
    def rows(
        self, file: FileName, encoding: str = "utf-8"
    ) -> Iterator[tuple[str, Row | InputError]]:
        """The rows of a table for `predict`, with their places; see `addnorm predict`.

        In place of a row that lacks an input is its `InputError`.
        """
        return rows_of(self, path_of(file), encoding)

    @overload
    def tag(self, sentences: str, **options: Unpack[BatchOptions]) -> list[str]: ...
    @overload
    def tag(
        self,
        sentences: list[Sentence] | tuple[Sentence, ...],
        **options: Unpack[BatchOptions],
    ) -> list[list[str]]: ...
    @known_keywords
    def tag(
        self,
        sentences: str | list[Sentence] | tuple[Sentence, ...],
        **options: Unpack[BatchOptions],
    ) -> list[str] | list[list[str]]:
        """Tag each word of a sentence, or of each sentence in a list.

        A sentence is a string of words separated by spaces, or a list of words; a list of strings
        is several sentences. Raises `InputError` for another model, and for too long a sentence.
        """
        tags = tag(self, words_of(sentences), **options)
        return tags[0] if isinstance(sentences, str) else tags

    @known_keywords
    def embed(
        self, texts: str | Texts, **options: Unpack[EmbedOptions]
    ) -> Float[Tensor, "*texts width"]:
        """Embed a text as a vector `[d_model]`, or each text of a list, `[texts, d_model]`.

        The vector is pooled from the final hidden states of all tokens (including bos and eos),
        after the final norm, if the placement has one; for an encoder–decoder, from the encoder's.
        By default `pooling` is given by the folder's `modules.json`, or else "mean":

        - "mean" of all tokens, without the padding;
        - "first" or "last" token: in a decoder, only the last has seen the whole text;
        - "head": the vector of a pooler head (BERT's tanh of the first token).

        Vectors are float32 (float64 for a float64 model), and normalised if the folder says so.
        Raises `InputError` if there is no such head, or a text is too long.
        """
        vectors = embed(self, listed(texts), **options)
        return vectors[0] if isinstance(texts, str) else vectors

    @known_keywords
    def embed_files(
        self,
        files: Sequence[FileName],
        *,
        skipped: Callable[[InputError], None] = refuse,
        **options: Unpack[PoolingOptions],
    ) -> Iterator[tuple[Path, Float[Tensor, " width"]]]:
        """The vector of each image or sound file; `skipped` is that of `transcribe`."""
        return embed_files(self, [*map(path_of, files)], skipped=skipped, **options)

    @overload
    def fill(self, text: str, *, first: int = 0, **options: Unpack[FillOptions]) -> Filled: ...
    @overload
    def fill(
        self, text: Texts, *, first: int = 0, **options: Unpack[FillOptions]
    ) -> list[Filled]: ...
    @known_keywords
    def fill(
        self, text: str | Texts, *, first: int = 0, **options: Unpack[FillOptions]
    ) -> Filled | list[Filled]:
        """Fill the masks of a text such as "To be or [MASK] to be": `.text`, and all `.masks`.

        Raises `InputError` if no masked language model can fill it, or it has no mask.
        """
        results = fill(self, listed(text, "text"), first=first, **options)
        return results[0] if isinstance(text, str) else results

    def check_fills(self) -> None:
        """Raise `InputError` for a model that fills no masks."""
        check_fills(self)

    @known_keywords
    def forecast(self, history: FileName, **options: Unpack[ForecastOptions]) -> Forecast:
        """The next steps after a table; options and errors are those of `addnorm forecast`."""
        return forecast(self, path_of(history), **options)

    @known_keywords
    def hidden_states(self, text: str) -> Float[Tensor, "seq d_model"]:
        """The final hidden state of each token of one text, before pooling by `embed`."""
        return hidden_states(self, one_text(text))

    @known_keywords
    def evaluate(
        self, data: "Corpus | DataConfig | None" = None, *, split: Split | None = None
    ) -> dict[str, float]:
        """Evaluate the model on a split of the run's own data, or of other `data`.

        The default is the test split, or else the validation split; all examples of other `data`
        that have neither. Returns `examples`, `loss` (nats per target token) and the metrics of the
        task. Raises `InputError` if the data have no such split, or are for another task.
        """
        return evaluate_on(self, data, split)

    @known_keywords
    def evaluation(
        self,
        split: Split | None = None,
        *,
        console: Console | None = None,
        early: EarlyExit | None = None,
    ) -> Evaluation:
        """As `evaluate` on the run's own data, with the `split` and the prediction of each example.

        What was skipped is reported on the `console`; with `early`, examples leave at early exits.
        """
        return evaluation_of(self, split, console, early=early)

    # Exporting and saving.

    @known_keywords
    def export(
        self,
        out: FileName,
        *,
        to: Form = "hf",
        family: str | None = None,
        dtype: ExportDtype | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> Path:
        """Export the model to the format of another library; return the path.

        `hf` is a folder for `transformers`, of the first family that has all of the model's parts
        or the `family` named; `onnx` graphs for onnxruntime; `ctranslate2` a folder; `gguf` a file
        for llama.cpp; `web` one HTML file that runs the model in a browser. `dtype` is the type of
        the weights, by default as they are, on a page int8. `say` is called with each line about
        the result. Raises `InputError`, without writing anything, if the other library lacks a part
        of the model.
        """
        out = path_of(out)
        for line in export_run(self, out, to=to, family=family, dtype=dtype):
            say(line)
        return out

    @known_keywords
    def save(self, folder: FileName) -> "Run":
        """Save the run to a folder that `addnorm.load` and all commands can open; return it.

        Data passed in Python are not saved; a folder that has this very run already is left as it
        is. Raises `InputError` if the folder has other content, or if the model no longer matches
        its configuration.
        """
        folder = path_of(folder)
        save_run(self, folder)
        return self.written_to(folder)


@known_keywords
def load(
    folder: FileName,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    weights: Weights | None = None,
    pickled: bool = False,
) -> Run:
    """Load a trained model from a run folder or a Hugging Face folder, with tokenizer and labels.

    `device` is for example "cuda". `dtype`, such as "bfloat16", is by default that of the stored
    weights; `weights = "int8"` keeps them in fewer bits in memory. `pickled` allows a
    `pytorch_model.bin`, read by torch's weights-only loader. Raises `InputError`, a `ValueError`,
    naming the file or key that is missing, damaged or not supported.
    """
    return Run.open(folder, device=device, dtype=dtype, weights=weights, pickled=pickled)
