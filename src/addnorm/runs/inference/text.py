"""Using a trained model on new text: generate, translate, classify, tag, embed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from addnorm.data.ids.framing import (
    Read,
    around,
    encode_for_task,
    encode_separately,
    encode_words,
    unframed,
)
from addnorm.data.readers.tables import reads_pairs
from addnorm.data.tokenizing.grammars import Grammar
from addnorm.data.tokenizing.sides import encode_prompts, loses_space, start_of_prompts
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.data.tokenizing.word_splitting import words_between_spaces
from addnorm.errors import InputError, TextError, check_choice, listed
from addnorm.generate import (
    DecodingConfig,
    Generated,
    TextDecoder,
    generate,
    stream,
    translate,
)
from addnorm.models import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.functional import at_least_float32
from addnorm.nn.heads import Transform
from addnorm.nn.masks import Full
from addnorm.nn.similarity import SimilarityHead
from addnorm.runs.inference.chat import Messages, chat_prompt, writer_of
from addnorm.runs.inference.decoding import later
from addnorm.runs.inference.denoiser import BLANK, restored
from addnorm.runs.inference.media import embedded_files, transcribed
from addnorm.runs.inference.predictions import ids_by_task
from addnorm.runs.inference.reranking import Judge, read_pairs
from addnorm.runs.inference.results import (
    Classified,
    LineAnswer,
    TextPair,
    check_threshold,
)
from addnorm.runs.inference.sentence_vectors import SentenceVectors, pooled
from addnorm.runs.inference.shortening import as_shortened, check_lengths, ids_as_shortened
from addnorm.runs.inference.writers import Compiled, continuation, translator
from addnorm.runs.inference.zero_shot import (
    HYPOTHESIS,
    classified_by,
    entailment_of,
    premises_and_hypotheses,
)
from addnorm.runs.options import GenerateOptions, Pooling
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.classification import Classification
from addnorm.tasks.hidden import Denoising
from addnorm.tasks.language import Language
from addnorm.tasks.multi_label import MultiLabel
from addnorm.tasks.registry import wrong_task
from addnorm.tasks.regression import Regression, numbers_line
from addnorm.tasks.tagging import Tagging, filled, tags_at
from addnorm.tasks.task import Task

Ids = Sequence[int]
"""A text by the ids of its tokens."""


def write(
    run: TrainedModel,
    texts: Sequence[str | Messages],
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
    first: int = 0,
    compiled: Compiled | None = None,
    grammar: Grammar | None = None,
) -> list[list[Generated]]:
    """Continue or translate each text; return several results for each, best first.

    The translation of a blank text is empty; a language model starts a new text; a denoiser fills
    the gaps of a text. `first` is the number of texts before these, an offset for messages and
    random seeds. `compiled` replaces the model, or has its exits or drafts. For a model
    that reads images or sound, texts are names of files. Each text of a language model follows the
    `grammar`, from its beginning. Raises `InputError` if the model writes no text, for early exits
    of a translator, and for a grammar of another model or of beams.
    """
    if grammar is not None:
        check_follows(run)
    strings = [text for text in texts if isinstance(text, str)]
    plain = not (stop or compiled)
    if len(strings) < len(texts) and not isinstance(run.model, DecoderModel):
        raise InputError(f"{run.name}: only a language model answers conversations: give texts")
    if run.reads_files:
        return transcribed(run, strings, decoding, max_new_tokens, plain=plain)
    if isinstance(run.task_value, Denoising):
        return restored(run, strings, decoding, max_new_tokens, plain=plain, first=first)
    target = run.tokenizers.target
    match run.model:
        case DecoderModel() as model:
            encoded = prompts(run, texts)
            drops = [drops_space(run, *pair) for pair in zip(texts, encoded, strict=True)]
            check_lengths(model, encoded, first)
            results = generate(
                continuation(model, compiled, target.never_ids),
                encoded,
                later(decoding, first),
                max_new_tokens=max_new_tokens,
                eos_id=target.eos_ids,
                start_id=target.bos_id,
                text_decoder=TextDecoder(
                    writer_of(run, texts), stop, continues(run, texts), grammar
                ),
            )
            results = [
                [replace(g, text=g.text.removeprefix(" " * drop)) for g in best]
                for drop, best in zip(drops, results, strict=True)
            ]
        case EncoderDecoderModel() as model:
            filled = [i for i, text in enumerate(strings) if text.strip()]
            encoded = ids_as_shortened(
                run, encode_for_task("translation", run.tokenizers.source, strings)
            )
            check_lengths(model, encoded, first)
            translated = translate(
                translator(model, compiled),
                [encoded[i] for i in filled],
                later(decoding, first),
                max_new_tokens=max_new_tokens,
                bos_id=target.bos_id,
                eos_id=target.eos_ids,
                text_decoder=TextDecoder(target, stop),
            )
            by_place = dict(zip(filled, translated, strict=True))
            results = [by_place.get(i, [BLANK]) for i in range(len(strings))]
        case _:
            raise wrong_task(run, "writes no text")
    return results


def write_as_it_comes(
    run: TrainedModel,
    text: str | Messages,
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    stop: Sequence[str] = (),
    compiled: Compiled | None = None,
    grammar: Grammar | None = None,
) -> Iterator[str]:
    """Yield the continuation of one text in pieces, each as soon as it is final.

    It follows the `grammar`, if there is one, from its beginning. Raises `InputError` if the model
    is not a language model, or cannot process the text, and for beams.
    """
    if not isinstance(run.model, DecoderModel):
        raise InputError(f"{run.name}: only a language model streams: this one is for {run.task}")
    if decoding.kind == "beam":
        raise InputError("beam search ends with all of a text at once: stream without beams")
    [prompt] = prompts(run, [text])
    target = run.tokenizers.target
    pieces = stream(
        continuation(run.model, compiled, target.never_ids),
        prompt,
        decoding,
        max_new_tokens=max_new_tokens,
        text_decoder=TextDecoder(writer_of(run, [text]), stop, continues(run, [text]), grammar),
        eos_id=target.eos_ids,
    )
    return _without_space(pieces) if drops_space(run, text, prompt) else pieces


def prompts(run: TrainedModel, texts: Sequence[str | Messages]) -> list[list[int]]:
    """Return the ids that a language model continues, from texts or from conversations.

    For a model that learnt to chat, a text is a user's message.
    """
    if run.chats:
        texts = [[{"role": "user", "content": x}] if isinstance(x, str) else x for x in texts]
    return [
        encode_prompts(run.tokenizers.source, [text])[0]
        if isinstance(text, str)
        else chat_prompt(run, text)
        for text in texts
    ]


def continues(run: TrainedModel, texts: Sequence[str | Messages]) -> bool:
    """Return whether the output continues the texts, as opposed to answering messages."""
    return not run.chats and all(isinstance(text, str) for text in texts)


def drops_space(run: TrainedModel, text: str | Messages, prompt: Sequence[int]) -> bool:
    """Return whether a prompt ends in white space that its ids do not represent."""
    if not (isinstance(text, str) and continues(run, [text])):
        return False
    return loses_space(run.tokenizers.source, text, prompt)


def _without_space(pieces: Iterator[str]) -> Iterator[str]:
    """Yield the pieces of a text without its leading space."""
    for first in pieces:
        yield from filter(None, [first.removeprefix(" ")])
        yield from pieces


def ends_of(options: GenerateOptions) -> tuple[int | None, list[str]]:
    """Pop the length limit and the stop strings from the options."""
    return options.pop("max_new_tokens", None), listed(options.pop("stop", ()), "stop")


def classify(
    run: TrainedModel,
    texts: Sequence[str] | Sequence[TextPair],
    batch_size: int = 64,
    first: int = 0,
    *,
    threshold: float = 0.5,
    labels: Sequence[str] = (),
    hypothesis: str | None = None,
) -> list[Classified]:
    """Return the class of each text or pair, or all labels with a probability above `threshold`.

    With `labels`, the class is one of these, by a model of entailment (see `zero_shot`). `first` is
    the number of texts before. Raises `InputError` as `tag` does, and for a threshold outside [0,
    1].
    """
    several = isinstance(run.task_value, MultiLabel)
    check_use(run, MultiLabel if several else Classification, "does not classify texts")
    check_threshold(threshold)
    if labels:
        entailment = entailment_of(run.name, run.labels)
        pairs = premises_and_hypotheses(texts, labels, hypothesis or HYPOTHESIS)
        logits = [y[:, entailment] for y in _of_texts(run, pairs, batch_size, first)]
        return classified_by(torch.cat(logits), labels) if logits else []
    if hypothesis is not None:
        raise InputError("`hypothesis` is the sentence that a label is put in: give `labels` too")
    batches = _of_texts(run, texts, batch_size, first)
    rows = [row for y in batches for row in (y.sigmoid() if several else y.softmax(-1)).tolist()]
    return [Classified.of(run.labels, row, threshold if several else None) for row in rows]


def predict(
    run: TrainedModel,
    texts: Sequence[str] | Sequence[TextPair],
    batch_size: int = 64,
    first: int = 0,
) -> Float[Tensor, "texts outputs"]:
    """Return the numbers of each text or pair; `first` is the number of texts before.

    A language model judges pairs (see `reranking`). Raises `InputError` as `tag` does.
    """
    if (judge := Judge.of(run)) is not None:
        return _judged(run, judge, texts, batch_size, first)
    check_use(run, Regression, "gives no numbers")
    none = torch.empty(0, len(run.labels), device=run.device)
    return torch.cat([none, *map(at_least_float32, _of_texts(run, texts, batch_size, first))])


@torch.inference_mode()
def _judged(
    run: TrainedModel,
    judge: Judge,
    texts: Sequence[str] | Sequence[TextPair],
    batch_size: int,
    first: int,
) -> Float[Tensor, "texts 1"]:
    """Return the score `z_yes - z_no` of each pair."""
    assert isinstance(run.model, DecoderModel)
    pairs = judge.checked(run.name, texts)
    scores = [torch.empty(0, 1, device=run.device)]
    for start in range(0, len(pairs), batch_size):
        ids = judge.pairs.encode(run.tokenizers.source, pairs[start : start + batch_size])
        check_lengths(run.model, ids, first + start)
        scores.append(judge.scores(run.model, *_batch(run, ids)))
    return torch.cat(scores)


def _of_texts(
    run: TrainedModel, texts: Sequence[str] | Sequence[TextPair], batch_size: int, first: int
) -> Iterator[Float[Tensor, "batch outputs"]]:
    """Yield the outputs for texts or pairs, in batches and in their order."""
    tokenizer = run.tokenizers.source
    for start in range(0, len(texts), batch_size):
        group = texts[start : start + batch_size]
        single = [text for text in group if isinstance(text, str)]
        pairs = [pair for pair in group if not isinstance(pair, str)]
        separate = isinstance(run.model.head, SimilarityHead)
        if single and (separate or reads_pairs(run.recipe.data)):
            how = "compares two texts" if separate else "reads two texts together"
            raise InputError(f"{run.name}: this model {how}: give pairs of them")
        if separate:
            ids = ids_as_shortened(run, encode_separately(tokenizer, pairs))
            yield batch_logits(run, ids, first + start)
            continue
        encoded = [*map(Read, encode_for_task(run.task, tokenizer, single))]
        encoded = as_shortened(run, [*encoded, *read_pairs(run, pairs)])
        types = [[*text.types] for text in encoded if text.types]
        yield batch_logits(run, [text.ids for text in encoded], first + start, types)


def tag(
    run: TrainedModel, sentences: Sequence[Sequence[str]], batch_size: int = 64, first: int = 0
) -> list[list[str]]:
    """Tag each word of each sentence; `first` is the number of sentences before, for messages.

    Raises `InputError` if the model is for another task, or a sentence is too long for it.
    """
    check_use(run, Tagging, "does not tag words")
    tokenizer = run.tokenizers.source
    n_after = len(around("tagging", tokenizer)[1])
    results: list[list[str]] = []
    for start in range(0, len(sentences), batch_size):
        group = sentences[start : start + batch_size]
        read = [encode_words(tokenizer, words) for words in group]
        ids = ids_as_shortened(run, [ids for ids, _ in read])
        logits = batch_logits(run, ids, first + start)
        places = [
            [i for i in of if i < len(row) - n_after]
            for row, (_, of) in zip(ids, read, strict=True)
        ]
        best = tags_at(run.model.head, logits, places)
        results += [
            filled([run.labels[tag] for tag in row], len(words))
            for row, words in zip(best, group, strict=True)
        ]
    return results


def classify_lines(
    run: TrainedModel,
    texts: Sequence[str] | Sequence[TextPair],
    first: int = 0,
    *,
    threshold: float = 0.5,
    labels: Sequence[str] = (),
    hypothesis: str | None = None,
) -> list[LineAnswer]:
    """Return the class, the labels, the numbers or the tags of each text or pair.

    `first` is the number of texts before. Raises `InputError` as `classify`, `predict` and `tag`
    do, and for a pair of texts to tag.
    """
    check_threshold(threshold)
    if labels or hypothesis is not None:
        results = classify(run, texts, first=first, labels=labels, hypothesis=hypothesis)
        return [LineAnswer(result.label, asdict(result)) for result in results]
    if isinstance(run.task_value, Tagging):
        sentences = [words_between_spaces(text) for text in texts if isinstance(text, str)]
        if len(sentences) < len(texts):
            raise InputError(f"{run.name}: a tagging model reads one sentence: give no pairs")
        tagged = zip(sentences, tag(run, sentences, first=first), strict=True)
        return [
            LineAnswer(" ".join(tags), {"tokens": words, "tags": tags}) for words, tags in tagged
        ]
    if isinstance(run.task_value, Regression) or Judge.of(run) is not None:
        rows, names = predict(run, texts, first=first).tolist(), run.labels or ("score",)
        return [LineAnswer(numbers_line(row), dict(zip(names, row, strict=True))) for row in rows]
    results = classify(run, texts, first=first, threshold=threshold)
    return [LineAnswer(",".join(result.labels), asdict(result)) for result in results]


def check_follows(run: TrainedModel) -> None:
    """Raise `InputError` unless the run can write texts that follow a grammar."""
    if not isinstance(run.task_value, Language):
        raise InputError(
            f"{run.name}: only a language model follows a grammar, and this one is for {run.task}"
        )


def check_use(run: TrainedModel, task: type[Task], cannot: str) -> None:
    """Raise `InputError` unless the run's model is of this task, and reads texts as it does."""
    if not isinstance(run.task_value, task):
        raise wrong_task(run, cannot)
    run.task_value.check_reads_texts(run.name)


@torch.inference_mode()
def embed(
    run: TrainedModel,
    texts: Sequence[str | Ids],
    pooling: Pooling | None = None,
    batch_size: int = 64,
    first: int = 0,
    prompt_name: str | None = None,
) -> Float[Tensor, "texts width"]:
    """Embed each text (see `Run.embed`); `first` is the number of texts before, for messages.

    A text may be given by its ids, with or without the special tokens at its beginning and end.
    Where the model reads images or sound alone, the texts are the names of files.
    """
    check_choice("pooling", pooling or "mean", get_args(Pooling))
    if prompt_name is not None:
        check_prompts(run, pooling)
    if run.reads_files and not run.compares:
        names = [text for text in texts if isinstance(text, str)]
        return embedded_files(run, names, pooling, batch_size)
    learnt = isinstance(run.model.head, SimilarityHead)
    folder = None if learnt or pooling is not None else SentenceVectors.of(*run.places)
    if folder is not None and prompt_name is not None:
        folder = folder.with_prompt(prompt_name)
    if not texts:
        return embed(run, [[]], pooling)[:0]
    vectors: list[Tensor] = []
    for start in range(0, len(texts), batch_size):
        x, ctx = _hidden(run, texts[start : start + batch_size], first + start, folder)
        if folder is None:
            vectors.append(pooled(run, x, ctx, pooling))
        else:
            assert ctx.valid is not None
            vectors.append(folder.vectors(at_least_float32(x), ctx.valid))
    return torch.cat(vectors)


def check_prompts(run: TrainedModel, pooling: Pooling | None) -> None:
    """Raise `InputError` if `prompt_name` is given to a model without named prompts."""
    if pooling is not None:
        raise InputError("`pooling` ignores prompts of the folder: leave it or `prompt_name` out")
    learnt = run.reads_files or isinstance(run.model.head, SimilarityHead)
    if learnt or SentenceVectors.of(*run.places) is None:
        raise InputError(
            f"{run.name}: only a folder of sentence-transformers has prompts: leave `prompt_name` "
            "out"
        )


@torch.inference_mode()
def hidden_states(run: TrainedModel, text: str) -> Float[Tensor, "seq d_model"]:
    """Return the final hidden states of one text."""
    x, _ = _hidden(run, [text], 0)
    return at_least_float32(x[0])


def _hidden(
    run: TrainedModel,
    texts: Sequence[str | Ids],
    first: int,
    folder: SentenceVectors | None = None,
) -> tuple[Float[Tensor, "batch seq d_model"], Context]:
    """Return the final hidden states of the texts, and their context."""
    model, tokenizer = run.model, run.tokenizers.source
    if folder is not None:
        if isinstance(model, EncoderDecoderModel):
            raise InputError(
                f"{run.name}: its modules.json pools the decoder of an encoder–decoder, which is "
                "not supported: choose a pooling, which is then that of the encoder"
            )
        folder.check_width(run.recipe.model.d_model)
    by_task = folder is None and run.encodes_itself
    ids = ids_by_task(run, texts) if by_task else _ids_to_embed(run, texts, folder)
    if folder is None:
        ids = ids_as_shortened(run, ids)
    else:
        special = len(tokenizer.before or ()), len(tokenizer.after or ())
        ids = [folder.shortened(row, *special) for row in ids]
    check_lengths(model, ids, first)
    tokens, valid = _batch(run, ids)
    if not isinstance(model, EncoderDecoderModel):
        x, ctx = model.hidden(tokens, valid)
        return x if folder is None else _as_theirs(model, x), ctx
    return model.encode(tokens, valid), Context.over(tokens, Full(), valid=valid)


def _ids_to_embed(
    run: TrainedModel, texts: Sequence[str | Ids], folder: SentenceVectors | None
) -> list[list[int]]:
    """Return the ids of texts to embed, with special tokens added where they are missing."""
    model, tokenizer = run.model, run.tokenizers.source
    is_prompt = isinstance(model, DecoderModel) and folder is None
    task = "translation" if isinstance(model, EncoderDecoderModel) else "classification"
    special = (start_of_prompts(tokenizer), ()) if is_prompt else around(task, tokenizer)
    if folder is not None and (folder.prompt or folder.lowercase):
        texts = folder.texts(
            [
                text if isinstance(text, str) else _text_of(tokenizer, unframed(text, *special))
                for text in texts
            ]
        )
    strings = [text for text in texts if isinstance(text, str)]
    encode = tokenizer.encode_marked if is_prompt else tokenizer.encode_batch
    encoded = iter(encode(strings))
    rows = (next(encoded) if isinstance(text, str) else unframed(text, *special) for text in texts)
    before, after = special
    return [[*before, *ids, *after] or [tokenizer.bos_id] for ids in rows]


def _text_of(tokenizer: Tokenizer, ids: Ids) -> str:
    """Decode ids to text. Raises `TextError` for ids that no text has."""
    text = tokenizer.decode(ids)
    if tokenizer.encode(text) != [*ids]:
        raise TextError(
            "input: these ids are not those of a text, and this model changes a text before it "
            "reads it: send the text"
        )
    return text


def _as_theirs(model: Model, x: Tensor) -> Tensor:
    """Return the hidden states as `transformers` does: OPT's have its embedding's width."""
    transform = getattr(model.head, "transform", None)
    if not (isinstance(model, DecoderModel) and isinstance(transform, Transform)):
        return x
    return x if transform.proj.out_features == x.shape[-1] else transform(x)


@torch.inference_mode()
def batch_logits(
    run: TrainedModel, ids: Sequence[list[int]], first: int, types: Sequence[list[int]] = ()
) -> Tensor:
    """Return the outputs for ids, with the `types` of pairs if the model has sentence types."""
    check_lengths(run.model, ids, first)
    tokens, valid = _batch(run, ids)
    embed = run.model.embed if isinstance(run.model, EncoderModel) else None
    table = embed.types if isinstance(embed, Embedding) else None
    if not types or table is None or table.num_embeddings == 1:
        return run.model(tokens, valid)
    padded = [row + [0] * (tokens.shape[1] - len(row)) for row in types]
    return run.model(tokens, valid, torch.tensor(padded, device=run.device))


def _batch(
    run: TrainedModel, ids: Sequence[list[int]]
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]]:
    """Return a batch of ids padded on the right, and its mask, on the model's device."""
    width = max(len(row) for row in ids)
    pad = run.tokenizers.source.pad_id
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in ids])
    lengths = torch.tensor([len(row) for row in ids])
    valid = torch.arange(width) < lengths[:, None]
    return tokens.to(run.device), valid.to(run.device)
