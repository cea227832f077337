"""The web page that runs a trained model in a browser, and the facts that it needs."""

import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from addnorm.convert.exporters.onnx import check_exportable
from addnorm.convert.exporters.web import check_size, export_page
from addnorm.convert.exporters.web_tokenizer import ported_tokenizer
from addnorm.data import ImagesConfig, SeriesConfig
from addnorm.data.example import has_signals
from addnorm.data.examples import Example
from addnorm.data.ids.framing import around, encode_pairs
from addnorm.data.readers.tables import reads_pairs
from addnorm.data.readers.text_files import find
from addnorm.data.tokenizing.sides import MASKS, mask_id_of, start_of_prompts
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, SampleConfig
from addnorm.generate.decode import NEW_TOKENS
from addnorm.models import DecoderModel, EncoderConfig, EncoderDecoderModel, EncoderModel
from addnorm.models.inputs import Input
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig
from addnorm.nn.embed import Embedding, TokenEmbedding
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.similarity import SimilarityHead
from addnorm.nn.vectors import VectorHead
from addnorm.quantize import Int8Config, WeightsOnlyConfig, is_quantized, quantize
from addnorm.runs.files.weights import count_parameters
from addnorm.runs.inference.decoding import usual_decoding
from addnorm.runs.inference.denoiser import joins_spaces
from addnorm.runs.inference.forecast import read_like, window_of
from addnorm.runs.inference.sentence_vectors import giving_vectors
from addnorm.runs.inference.shortening import most_tokens
from addnorm.runs.trained_model import TrainedModel

Facts = dict[str, Any]

WRITING = ("continue", "translate")
"""The views of models that write texts, which a page does without beam search."""


def write_page(run: TrainedModel, out: Path) -> list[str]:
    """Write the page of a run; return a line for users. Errors are those of `check_page`."""
    facts = page_facts(run, examples=True)
    export_page(giving_vectors(run.model), run.recipe.model, facts, out)
    size = out.stat().st_size / 2**20
    lines = [f"{out}: a page of {size:.1f} MiB, with the model in it: open it in a browser"]
    decoding = usual_decoding(run.recipe)
    if facts["view"] in WRITING and isinstance(decoding, BeamConfig) and decoding.beams > 1:
        lines.append(
            f"{out}: writes the likeliest token each time; the run searches with "
            f"{decoding.beams} beams"
        )
    if facts["examples"] or facts["history"]:
        lines.append(f"{out}: shows examples of the run's data to whoever opens it")
    return lines


def in_int8(run: TrainedModel) -> TrainedModel:
    """Return the run with 8-bit weights, which the page converts to floats once."""
    if is_quantized(run.model):
        return run
    model = copy.deepcopy(run.model).float().cpu().eval()
    try:
        quantize(model, Int8Config(activations=WeightsOnlyConfig()))
    except InputError as error:
        raise InputError(f"{error}; or export the page with float32 weights") from error
    return replace(run, model=model)


def check_page(run: TrainedModel) -> None:
    """Raise `InputError` for a run without a page, naming its task or the part at fault."""
    page_facts(run)
    check_exportable(giving_vectors(run.model))
    check_size(run.model)


def page_facts(run: TrainedModel, *, examples: bool = False) -> Facts:
    """The facts for the page other than its graphs, with a few `examples` of the data on request.

    Raises `InputError` for a task without a page.
    """
    given = isinstance(run.model, EncoderModel) and isinstance(run.model.head, VectorHead)
    task, page = ("vectors", "vectors") if given else (run.task, run.task_value.page)
    view = VIEWS.get(page or "")
    if view is None:
        raise InputError(
            f"{run.name}: a model for {task.replace('_', ' ')} has no page: export it to ONNX"
        )
    dtypes = {weight.dtype for weight in run.weights.values()} & {torch.float16, torch.bfloat16}
    if dtypes:
        raise InputError("a page computes in float32: give that, or leave it out for int8 weights")
    model = run.recipe.model
    return {
        "name": "AddNorm" if run.folder is None else run.folder.resolve().name,
        "task": task,
        "weights": count_parameters(run.recipe, run.text, run.labels),
        "precision": "int8" if is_quantized(run.model) else "float32",
        "layers": model.n_layers,
        "d_model": model.d_model,
        **view(run),
        **(_examples(run) if examples else {}),
    }


def _reader(run: TrainedModel, tokenizer: Tokenizer) -> Facts:
    """The tokenizer, and the special tokens around each text that the model reads."""
    before, after = around(run.task, tokenizer)
    is_prompt = isinstance(run.model, DecoderModel)
    return {
        "tokenizer": ported_tokenizer(tokenizer),
        "before": [*(start_of_prompts(tokenizer) if is_prompt else before)],
        "after": [*after],
        "marked": is_prompt and tokenizer.before is not None,
        "start": tokenizer.bos_id,
        "unknown": tokenizer.unk_id,
    }


def _writing(run: TrainedModel, embed: Input) -> Facts:
    """The facts about writing: the tokens that begin and end a text, the rules, the limits."""
    target = run.tokenizers.target
    decoding = usual_decoding(run.recipe)
    rules = replace(
        decoding.rules,
        suppress_tokens=(*decoding.rules.suppress_tokens, *target.never_ids),
    )
    return {
        "start": target.bos_id,
        "ends": [*target.eos_ids],
        "rules": asdict(rules),
        "positions": embed.position.max_len,
    }


def _continue(run: TrainedModel) -> Facts:
    model = run.model
    assert isinstance(model, DecoderModel)
    if run.chats:
        raise InputError(f"{run.name}: a model for conversations has no page: export it to GGUF")
    sampling = usual_decoding(run.recipe)
    drawn = isinstance(sampling, SampleConfig)
    return {
        "view": "continue",
        "source": _reader(run, run.tokenizers.source),
        **_writing(run, model.embed),
        "limit": sampling.rules.max_new_tokens or NEW_TOKENS,
        "temperature": sampling.temperature if drawn else 0.0,
        "top_k": sampling.top_k or 0 if drawn else 0,
        "top_p": sampling.top_p if drawn else 1.0,
        "min_p": sampling.min_p if drawn else 0.0,
    }


def _translate(run: TrainedModel) -> Facts:
    model, text = run.model, run.tokenizers
    assert isinstance(model, EncoderDecoderModel)
    if has_signals(run.medium):
        raise InputError(f"{run.name}: a model that writes texts from {run.medium} has no page")
    shared = text.target is text.source
    return {
        "view": "translate",
        "source": _reader(run, text.source),
        "target": None if shared else _reader(run, text.target),
        **_writing(run, model.target_embed),
        "source_positions": model.source_embed.position.max_len,
        "longest": most_tokens(run.recipe),
    }


def _classify(run: TrainedModel) -> Facts:
    model, config = run.model, run.recipe.model
    assert isinstance(model, EncoderModel)
    assert isinstance(config, EncoderConfig)
    if isinstance(config.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig):
        return _draw(run)
    if isinstance(model.head, SimilarityHead):
        return _compare(run)
    _check_reads_text(run)
    return {
        "view": "classify",
        "kind": run.task_value.page,
        "source": _reader(run, run.tokenizers.source),
        "pair": _pair(run, model) if reads_pairs(run.recipe.data) else None,
        "labels": [*run.labels],
        **_lengths(run, model),
    }


def _tag(run: TrainedModel) -> Facts:
    model, tokenizer = run.model, run.tokenizers.source
    assert isinstance(model, EncoderModel)
    return {
        "view": "tag",
        "source": _reader(run, tokenizer),
        "pad": tokenizer.pad_id,
        "labels": [*run.labels],
        **_lengths(run, model),
    }


def _fill(run: TrainedModel) -> Facts:
    model, tokenizer = run.model, run.tokenizers.source
    assert isinstance(model, EncoderModel)
    return {
        "view": "fill",
        "source": _reader(run, tokenizer),
        "mask": mask_id_of(tokenizer),
        "masks": [*MASKS],
        "joins": joins_spaces(tokenizer),
        **_lengths(run, model),
    }


def _compare(run: TrainedModel) -> Facts:
    model = run.model
    assert isinstance(model, EncoderModel)
    return {
        "view": "compare",
        "source": _reader(run, run.tokenizers.source),
        **_lengths(run, model),
    }


def _draw(run: TrainedModel) -> Facts:
    config, data = run.recipe.model, run.recipe.data
    assert isinstance(config, EncoderConfig)
    assert isinstance(config.input, PatchEmbeddingConfig | ConvolutionalEmbeddingConfig)
    if data is None and run.corpus is None:
        raise InputError(
            f"{run.name}: how its pictures are read is in another library's files, which a page "
            "does not follow: export it to ONNX"
        )
    height, width = config.input.size
    permuted = data if isinstance(data, ImagesConfig) else None
    return {
        "view": "draw",
        "channels": config.input.channels,
        "height": height,
        "width": width,
        "order": None if permuted is None else permuted.pixel_order(height * width),
        "labels": [*run.labels],
    }


def _forecast(run: TrainedModel) -> Facts:
    assert run.scaling is not None
    look_back, horizon = window_of(run)
    return {
        "view": "forecast",
        "look_back": look_back,
        "horizon": horizon,
        "labels": [*run.labels],
        "mean": [*run.scaling.mean],
        "deviation": [*run.scaling.deviation],
    }


def _examples(run: TrainedModel) -> Facts:
    """The examples of the run's data that a page shows: a few texts, or a window of a series."""
    return {"examples": _texts(run), **_history(run)}


def _history(run: TrainedModel) -> Facts:
    """The last complete window of the run's table, and the steps after it; None without one."""
    none: Facts = {"history": None, "truth": None}
    data = run.recipe.data
    if not isinstance(data, SeriesConfig):
        return none
    look_back, horizon = window_of(run)
    try:
        values = read_like(run, find(data.file, data.root)).values
    except (InputError, OSError):
        return none
    window = values[:, -look_back - horizon :]
    if window.shape[1] < look_back + horizon or bool(window.isnan().any()):
        return none
    return {"history": window[:, :look_back].tolist(), "truth": window[:, look_back:].tolist()}


def _check_reads_text(run: TrainedModel) -> None:
    if run.text is None or has_signals(run.medium):
        raise InputError(
            f"{run.name}: a model for {run.task.replace('_', ' ')} of {run.medium} has no page: "
            "export it to ONNX"
        )


def _lengths(run: TrainedModel, model: EncoderModel) -> Facts:
    """How many tokens an encoder reads, and to what length training shortened its texts."""
    embed = model.embed
    assert isinstance(embed, TokenEmbedding)
    return {"positions": embed.position.max_len, "longest": most_tokens(run.recipe)}


def _pair(run: TrainedModel, model: EncoderModel) -> Facts:
    """The special tokens before, between and after two texts, each with its type."""
    [read] = encode_pairs(run.tokenizers.source, [("a", "b")])
    spans = [(read.spans[0], read.spans[1]), (read.spans[2], read.spans[3])]
    order = sorted((0, 1), key=lambda side: spans[side])
    stops = [0, *(spans[side][1] for side in order)]
    starts = [*(spans[side][0] for side in order), len(read.ids)]
    table = model.embed.types if isinstance(model.embed, Embedding) else None
    typed = table is not None and table.num_embeddings > 1
    types = [*read.types] if typed else [0] * len(read.ids)
    pieces = list(zip(stops, starts, strict=True))
    return {
        "special": [[read.ids[i:j], types[i:j]] for i, j in pieces],
        "types": [types[spans[side][0]] for side in (0, 1)],
        "order": order,
    }


# Examples of the data.

N_EXAMPLES, SHORTEST, LONGEST = 3, 12, 120
"""How many texts of the data a page proposes, and their fewest and most characters."""


def _texts(run: TrainedModel) -> list[Any]:
    """A few short texts of the data, unseen ones first; none if the data cannot be read."""
    if has_signals(run.medium):
        return []
    try:
        corpus = run.corpus or (None if run.recipe.data is None else run.recipe.data.load())
    except (InputError, OSError):
        return []
    if corpus is None:
        return []
    examples = (corpus.valid or corpus.test or corpus.train)[:1000]
    if run.task_value.plain_texts:
        lines = (
            line.strip() for each in examples for line in each.source_text()[:4000].split("\n")
        )
        texts: list[Any] = [line for line in lines if SHORTEST <= len(line) <= LONGEST]
    else:
        texts = [_example(each) for each in examples]
    short = [text for text in texts if 0 < len("".join(text)) <= LONGEST]
    if isinstance(run.model.head, SimilarityHead):  # which compares texts, and has no pairs
        short = [text for pair in short for text in pair]
    return [text for i, text in enumerate(short) if text not in short[:i]][:N_EXAMPLES]


def _example(example: Example) -> str | list[str]:
    second = example.second_text()
    return [example.source_text(), second] if second else example.source_text()


VIEWS: dict[str, Callable[[TrainedModel], Facts]] = {
    "continue": _continue,
    "translate": _translate,
    "classes": _classify,
    "labels": _classify,
    "numbers": _classify,
    "tags": _tag,
    "masks": _fill,
    "forecast": _forecast,
    "vectors": _compare,
}
"""What the page of each task knows."""
