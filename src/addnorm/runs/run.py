"""Run: a trained model with its tokenizers and labels; loading, using and saving it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Unpack, overload

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.convert.core.modules import inner_places
from addnorm.data import Corpus, DataConfig, medium_of
from addnorm.data.encoding import Tokenizers
from addnorm.data.examples import Medium, Task
from addnorm.data.scaling import Scaling
from addnorm.errors import InputError, known_keywords
from addnorm.generate import DecodingConfig
from addnorm.models import DecoderConfig, Model
from addnorm.runs.consistency import MEDIA
from addnorm.runs.devices import device_named, dtype_named
from addnorm.runs.quantized import Quantization, check_float
from addnorm.runs.recipe import Recipe, task_of
from addnorm.runs.types import (
    ChatOptions,
    Classified,
    ClassifyOptions,
    DecodingOptions,
    FileName,
    Filled,
    Forecast,
    ForecastOptions,
    Pooling,
    Sentence,
    Several,
    Texts,
    TranslateOptions,
    listed,
    one_text,
    path_of,
    words_of,
)
from addnorm.train.average import weights_of


@dataclass(frozen=True, repr=False)
class Run:
    """A trained model with its tokenizers, labels and recipe.

    Methods take one text and return one result, or take a list and return a list in the same order,
    computed in batches. Results do not depend on the other texts in a batch.

    Attributes
    ----------
    folder
        Where it was opened or trained; None for one that is in memory alone.
    recipe
        Its model's configuration (`recipe.model`), and how it was trained.
    text
        The tokenizers, where the model has to do with text; `tokenizers` insists on them.
    labels
        The classes or tags, or the names of numbers, in the order of the model's outputs.
    model
        The model itself, an `nn.Module`.
    corpus
        The data, where they were given in Python and are in no file.
    quantization
        How its model was quantised, if it was.
    scaling
        The scaling of the series that it forecasts, by its training part.
    variables
        The names of the variables of the series that it reads whole.
    bases
        The folders of an adapter's base: they have what the adapter's folder has not.
    """

    folder: Path | None
    recipe: Recipe
    text: Tokenizers | None
    labels: tuple[str, ...]
    model: Model
    corpus: Corpus | None = None
    quantization: Quantization | None = None
    scaling: Scaling | None = None
    variables: tuple[str, ...] = ()
    bases: tuple[Path, ...] = ()

    @classmethod
    @known_keywords
    def open(
        cls,
        folder: FileName,
        overrides: Mapping[str, str] | None = None,
        *,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype | None = None,
        pickled: bool = False,
    ) -> "Run":
        """Load a finished run, with fields of its recipe replaced by `overrides`.

        By default `dtype` is that of the stored weights. A folder with an adapter, ours or PEFT's,
        is opened with its base as one plain model. `pickled` allows a `pytorch_model.bin` in a
        Hugging Face folder. Raises `InputError` if the folder is not a model folder or is
        damaged, or if training is unfinished.
        """
        folder, device = path_of(folder), device_named(device)
        dtype = None if dtype is None else dtype_named(dtype)
        from addnorm.runs.opening import open_run

        return open_run(folder, overrides, device=device, dtype=dtype, pickled=pickled)

    def __repr__(self) -> str:
        n = sum(weight.numel() for weight in self.weights.values())
        article = "an" if (kind := self.recipe.model.kind).startswith("encoder") else "a"
        return f"<Run of {article} {kind}: {n:,} weights, {self.name}>"

    @property
    def name(self) -> str:
        """The name for messages: the folder, if there is one."""
        return "this run" if self.folder is None else str(self.folder)

    @property
    def places(self) -> tuple[Path, ...]:
        """Where what is around the weights is looked up: in its folder, then in its base's."""
        return self.bases if self.folder is None else (*inner_places(self.folder), *self.bases)

    def written_to(self, folder: Path | None) -> "Run":
        """This run as it is in a folder that has all of it."""
        return replace(self, folder=folder, bases=())

    @property
    def task(self) -> Task:
        """The task of the model, such as "language", "translation" or "classification"."""
        return task_of(self.recipe)

    @property
    def medium(self) -> Medium | None:
        """What the model reads: that of its data, or of its input where it came without any."""
        data, model = self.recipe.data, self.recipe.model
        if data is not None or isinstance(model, DecoderConfig):
            return medium_of(data)
        return MEDIA.get(model.input.kind, "text")

    @property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises `InputError` if the model has none, such as an image model."""
        if self.text is None:
            known = self.medium in ("images", "audio", "series")
            why = f"reads {self.medium}, not text" if known else "has no tokenizer"
            raise InputError(f"{self.name}: this model {why}")
        return self.text

    @property
    def weights(self) -> dict[str, Tensor]:
        """All weights of the model by name, tied ones once."""
        return weights_of(self.model)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @known_keywords
    def to(
        self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> "Run":
        """Move the model to a device, or convert its weights to another dtype; return this run.

        `run.to("cuda")`, `run.to(dtype="bfloat16")`. Raises `InputError` for an unavailable device
        or an unknown dtype.
        """
        if device is not None:
            self.model.to(device_named(device))
        if dtype is not None:
            check_float(self, "has another dtype")
            self.model.to(dtype_named(dtype))
        return self

    # Using the model.

    @overload
    def generate(
        self,
        texts: str,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        decoding: DecodingConfig | None = None,
        **options: Unpack[DecodingOptions],
    ) -> str: ...
    @overload
    def generate(
        self,
        texts: Texts,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        decoding: DecodingConfig | None = None,
        **options: Unpack[DecodingOptions],
    ) -> list[str]: ...
    @known_keywords
    def generate(
        self,
        texts: str | Texts,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        decoding: DecodingConfig | None = None,
        **options: Unpack[DecodingOptions],
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
        from addnorm.runs import use

        stop = listed(stop, "stop")
        chosen = use.chosen_decoding(self, decoding, options)
        found = use.write(self, listed(texts), chosen, max_new_tokens=max_new_tokens, stop=stop)
        written = [best[0].text for best in found]
        return written[0] if isinstance(texts, str) else written

    @known_keywords
    def stream(
        self,
        text: str,
        *,
        max_new_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        decoding: DecodingConfig | None = None,
        **options: Unpack[DecodingOptions],
    ) -> Iterator[str]:
        """Continue one text, yielding it in pieces as soon as each piece is final.

        Joined, the pieces are what `generate` returns for the same options. Raises `InputError` as
        `generate` does, at the call, and for beam search or if this is not a language model.
        """
        from addnorm.runs import use

        stop = listed(stop, "stop")
        text, chosen = one_text(text), use.chosen_decoding(self, decoding, options)
        if chosen.kind == "beam":
            raise InputError("beam search ends with all of a text at once: stream without beams")
        return use.write_as_it_comes(self, text, chosen, max_new_tokens=max_new_tokens, stop=stop)

    @known_keywords
    def chat(self, messages: Sequence[Mapping[str, str]], **options: Unpack[ChatOptions]) -> str:
        """The answer to `[{"role": "user", "content": …}, …]`; options are those of `generate`.

        Raises `InputError` as it does, and for a model that has no chat template.
        """
        from addnorm.runs import chat

        return chat.answer(self, messages, **options)

    @overload
    def translate(self, texts: str, **options: Unpack[TranslateOptions]) -> str: ...
    @overload
    def translate(self, texts: Texts, **options: Unpack[TranslateOptions]) -> list[str]: ...
    @known_keywords
    def translate(self, texts: str | Texts, **options: Unpack[TranslateOptions]) -> str | list[str]:
        """Translate a text, or each text of a list, with the recipe's decoding settings.

        The default is beam search; `beams=1` is greedy search. The translation of a blank text is
        empty. Raises `InputError` if the model is not an encoder–decoder, and as `generate` does.
        """
        from addnorm.runs import use

        use.check_use(self, "translation", "does not translate")
        return self.generate(texts, **options)

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
        from addnorm.runs import use

        found = use.classify(self, listed(texts, pairs=True), **options)
        return found[0] if isinstance(texts, str) else found

    @known_keywords
    def predict(self, texts: str | Several, *, batch_size: int = 64) -> Float[Tensor, "*texts n"]:
        """The numbers of a text, or of each of a list of texts or pairs; `labels` names them.

        Raises `InputError` as `classify` does.
        """
        from addnorm.runs import use

        found = use.predict(self, listed(texts, pairs=True), batch_size)
        return found[0] if isinstance(texts, str) else found

    @overload
    def tag(self, sentences: str, *, batch_size: int = 64) -> list[str]: ...
    @overload
    def tag(
        self, sentences: list[Sentence] | tuple[Sentence, ...], *, batch_size: int = 64
    ) -> list[list[str]]: ...
    @known_keywords
    def tag(
        self,
        sentences: str | list[Sentence] | tuple[Sentence, ...],
        *,
        batch_size: int = 64,
    ) -> list[str] | list[list[str]]:
        """Tag each word of a sentence, or of each sentence in a list.

        A sentence is a string of words separated by spaces, or a list of words; a list of strings
        is several sentences. Raises `InputError` if the model does not tag, or a sentence is too
        long for it.
        """
        from addnorm.runs import use

        found = use.tag(self, words_of(sentences), batch_size)
        return found[0] if isinstance(sentences, str) else found

    @known_keywords
    def embed(
        self, texts: str | Texts, *, pooling: Pooling | None = None, batch_size: int = 64
    ) -> Float[Tensor, "*texts width"]:
        """Embed a text as a vector `[d_model]`, or each text of a list, `[texts, d_model]`.

        The vector is pooled from the final hidden states of all tokens (including bos and eos),
        after the final norm, if the placement has one; for an encoder–decoder, from the encoder's.
        By default `pooling` is given by the folder's `modules.json`, or else "mean":

        - "mean" of all tokens, without the padding;
        - "first" or "last" token: in a decoder, only the last has seen the whole text;
        - "head": what a pooler head says (BERT's tanh of the first token).

        Vectors are float32 (float64 for a float64 model), and normalised if the folder says so.
        Raises `InputError` if there is no such head, or a text is too long.
        """
        from addnorm.runs import use

        found = use.embed(self, listed(texts), pooling, batch_size)
        return found[0] if isinstance(texts, str) else found

    @known_keywords
    def fill(self, text: str, *, top_k: int = 5) -> Filled:
        """Fill the masks of a text such as "To be or [MASK] to be": `.text`, and all `.masks`.

        Raises `InputError` if no masked language model can fill it, or it has no mask.
        """
        from addnorm.runs.fill import fill

        return fill(self, [one_text(text)], top_k)[0]

    @known_keywords
    def forecast(self, history: FileName, **options: Unpack[ForecastOptions]) -> Forecast:
        """The next steps after a table; options and errors are those of `addnorm forecast`."""
        from addnorm.runs import forecasting

        return forecasting.forecast(self, path_of(history), **options)

    def hidden_states(self, text: str) -> Float[Tensor, "seq d_model"]:
        """The final hidden state of each token of one text, before pooling by `embed`."""
        from addnorm.runs import use

        return use.hidden_states(self, one_text(text))

    @known_keywords
    def evaluate(
        self,
        data: Corpus | DataConfig | None = None,
        *,
        split: Literal["valid", "test"] | None = None,
    ) -> dict[str, float]:
        """Evaluate the model on a split of the run's own data, or of other `data`.

        The default is the test split, or else the validation split; all examples of other `data`
        that have neither. Returns `examples`, `loss` (nats per target token) and the metrics of the
        task. Raises `InputError` if the data have no such split, or are for another task.
        """
        from addnorm.runs.evaluation import evaluate_on

        return evaluate_on(self, data, split)

    # Exporting and saving.

    @known_keywords
    def export(
        self,
        out: FileName,
        *,
        to: Literal["hf", "onnx", "ctranslate2", "gguf"] = "hf",
        family: str | None = None,
    ) -> Path:
        """Export the model to the format of another library; return the path.

        `hf` is a folder for `transformers`, of the first family that has all of the model's parts
        or the `family` named; `onnx` graphs for onnxruntime; `ctranslate2` a folder; `gguf` a file
        for llama.cpp. Raises `InputError`, without writing anything, if the other library lacks a
        part of the model.
        """
        from addnorm.runs.export import export_run

        out = path_of(out)
        export_run(self, out, to=to, family=family)
        return out

    def save(self, folder: FileName) -> "Run":
        """Save the run to a folder that `addnorm.load` and all commands can open; return it.

        Data passed in Python are not saved. Raises `InputError` if the folder is not empty, or if
        the model no longer matches its configuration.
        """
        from addnorm.runs.saving import save_run

        return save_run(self, path_of(folder))
