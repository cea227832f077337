"""Preparing one text for inspection: the model's inputs, and the loss to differentiate."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from addnorm.data.example import has_signals
from addnorm.data.ids.encoding import IGNORE
from addnorm.data.ids.framing import encode_for_task, encode_words
from addnorm.data.tokenizing.sides import encode_prompts
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.data.tokenizing.word_splitting import words_between_spaces
from addnorm.errors import InputError
from addnorm.generate import TextDecoder, translate
from addnorm.generate.next_token import positions_for
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn.heads import TokenHead
from addnorm.runs.inference.predictions import input_ids
from addnorm.runs.inference.shortening import ids_as_shortened
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.classification import Classification
from addnorm.tasks.multi_label import MultiLabel
from addnorm.tasks.registry import task_of_head
from addnorm.tasks.regression import Regression
from addnorm.tasks.tagging import Tagging
from addnorm.training.loss import HasLoss, loss_sum


@dataclass(frozen=True, kw_only=True)
class PreparedText:
    """One text as a model's inputs.

    Attributes
    ----------
    inputs
        What the model is called with, in their order.
    pieces
        The tokens that each stack reads, as people read them.
    produced
        The token after each one that the decoder reads, where there is a source.
    translation
        The translation, where there is one.
    targets
        What a model that writes was to say after each token, or None.
    """

    inputs: tuple[Int[Tensor, "1 _"], ...]
    pieces: Mapping[str, tuple[str, ...]]
    produced: tuple[str, ...] = ()
    translation: str | None = None
    targets: Int[Tensor, "1 _"] | None = None


def prepare_text(run: TrainedModel, text: str, target: str | None = None) -> PreparedText:
    """The text as the run's model reads it, with a translation, by default the model's own.

    Raises `InputError` for a blank text, for one that is too long for the model, for a target that
    nothing reads, and where the model reads no text.
    """
    if has_signals(run.medium):
        raise InputError(f"{run.name}: this model reads {run.medium}, not text")
    tokenizers, model = run.tokenizers, run.model
    if not text.strip():
        raise InputError("there is nothing to look at in a blank text: give a sentence")
    if isinstance(model, EncoderDecoderModel):
        return _prepare_pair(run, model, text, target)
    if target is not None:
        raise InputError(
            f"{run.name}: only an encoder–decoder reads a target: leave {target!r} out"
        )
    ids = _ids(run, text)
    positions_for(model.embed, 1, ids)
    tokens = torch.tensor([ids], device=run.device)
    writes = isinstance(model, DecoderModel)
    return PreparedText(
        inputs=(tokens,),
        pieces={"stack": _pieces(tokenizers.source, ids)},
        targets=torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=IGNORE) if writes else None,
    )


def _ids(run: TrainedModel, text: str) -> list[int]:
    tokenizer = run.tokenizers.source
    if isinstance(run.model, DecoderModel):
        return encode_prompts(tokenizer, [text])[0]
    if run.encodes_itself:
        return input_ids(run, text)
    if isinstance(task_of_head(run.recipe.model.head), Tagging):
        [ids] = ids_as_shortened(run, [encode_words(tokenizer, words_between_spaces(text))[0]])
        return ids
    [ids] = ids_as_shortened(run, encode_for_task("classification", tokenizer, [text]))
    return ids


def _prepare_pair(
    run: TrainedModel, model: EncoderDecoderModel, text: str, target: str | None
) -> PreparedText:
    source, writer = run.tokenizers.source, run.tokenizers.target
    [ids] = ids_as_shortened(run, encode_for_task("translation", source, [text]))
    positions_for(model.source_embed, 1, ids)
    if target is None:
        decoding = run.recipe.eval.decoding
        [[best, *_]] = translate(
            model,
            [ids],
            decoding,
            bos_id=writer.bos_id,
            eos_id=writer.eos_ids,
            text_decoder=TextDecoder(writer),
        )
        ended = best.finished == "eos" or not best.ids
        target, target_ids = best.text, [*best.ids, *(writer.eos_ids[:1] if ended else ())]
    else:
        [target_ids] = encode_for_task("translation", writer, [target])
    written = [writer.bos_id, *target_ids[:-1]]
    positions_for(model.target_embed, 1, written)
    return PreparedText(
        inputs=tuple(torch.tensor([row], device=run.device) for row in (ids, written)),
        pieces={"encoder": _pieces(source, ids), "decoder": _pieces(writer, written)},
        produced=_pieces(writer, target_ids),
        translation=target,
        targets=torch.tensor([target_ids], device=run.device),
    )


def _pieces(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    names = zip(ids, tokenizer.pieces(ids), strict=True)
    return tuple(piece or tokenizer.codec.name(i) or f"‹{i}›" for i, piece in names)


def loss_of(
    run: TrainedModel, prepared: PreparedText, outputs: Float[Tensor, "..."]
) -> tuple[Float[Tensor, ""] | None, str]:
    """Return the scalar to differentiate and its name, or None and the reason why there is none.

    Of a model that writes, the mean loss of the text's next tokens, or of the translation's. Of
    others, `-log p` of what they say themselves, tokens, tags, a class or labels; of numbers, their
    sum.
    """
    if prepared.targets is not None:
        n = int((prepared.targets != IGNORE).sum())
        if not n:
            return None, "no gradient: a text of one token has no next token"
        loss = loss_sum(outputs, prepared.targets) / n
        what = "text" if prepared.translation is None else "translation"
        return loss, f"loss of the {what}, {float(loss.detach()):.2f} nats a token"
    task = task_of_head(run.recipe.model.head)
    if isinstance(task, Regression):
        return outputs.sum(), "the numbers' sum"
    if isinstance(task, MultiLabel):
        return loss_sum(outputs, outputs.detach() > 0) / outputs.numel(), "−log p of its own labels"
    if isinstance(run.model.head, HasLoss):
        return None, "no gradient: the outputs of this head are chosen together"
    if isinstance(task, Classification | Tagging) or isinstance(run.model.head, TokenHead):
        best = outputs.detach().argmax(-1)
        name = "tags" if isinstance(task, Tagging) else "tokens"
        if isinstance(task, Classification):
            name = f"class, {run.labels[int(best)]}"
        return loss_sum(outputs, best) / best.numel(), f"−log p of its own {name}"
    return None, "no gradient: the model gives vectors, which have no loss"
