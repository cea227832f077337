"""Drafting by a smaller model that guesses what a larger one will write."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from addnorm.errors import InputError
from addnorm.generate.next_token import maximum_length
from addnorm.models import DecoderModel
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.choosing import Answer, choose
from addnorm.serve.engine.decoder import Kernels, PagedDecoder
from addnorm.serve.engine.paged import bytes_per_token, why_not_paged
from addnorm.serve.engine.pages import OutOfPages, PagePool, PageTable
from addnorm.serve.engine.schedule import Step
from addnorm.serve.engine.sequence import Sequence

AHEAD = 8
"""The most tokens that are read as rows of one step; more are a chunk of their own."""

CHUNK = 256
"""The most tokens of a text that are read at once; the text has no draft until it is read."""


def check_drafts_for(draft: TrainedModel, run: TrainedModel) -> None:
    """Raise `InputError` for a model that cannot draft for another model."""
    name, model, target = f"draft {draft.name}", draft.model, run.model
    if not isinstance(model, DecoderModel) or not isinstance(target, DecoderModel):
        raise InputError(f"{name}: a decoder can draft for a decoder alone")
    if (why := why_not_paged(model)) is not None:
        raise InputError(f"{name}: its keys and values are not in pages: {why}")
    theirs, ours = draft.tokenizers.target, run.tokenizers.target
    for i in range(max(theirs.vocab_size, ours.vocab_size)):
        if (there := theirs.codec.name(i)) != (here := ours.codec.name(i)):
            raise InputError(
                f"{name}: its tokenizer is not that of {run.name}: token {i} is {there!r} there "
                f"and {here!r} here"
            )
    sizes = [each.embed.tokens.num_embeddings for each in (model, target)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"{name}: it writes {sizes[0]:,} tokens, and {run.name} writes {sizes[1]:,}"
        )


def memory_of_draft(memory: int, draft: TrainedModel, run: TrainedModel) -> int:
    """The draft model's share of a memory in which both models store equally many tokens."""
    assert isinstance(draft.model, DecoderModel)
    assert isinstance(run.model, DecoderModel)
    theirs, ours = bytes_per_token(draft.model), bytes_per_token(run.model)
    return memory * theirs // (theirs + ours)


@dataclass
class _Draft:
    """A text in the draft model's cache, with the answer that it predicts."""

    text: Sequence
    answer: Answer
    length: int
    """How many tokens are drafted."""


class DraftModel:
    """Drafts tokens by a model with the same tokenizer (Leviathan et al. 2023, §2.1).

    Its tokens are chosen by the options of the request and copies of its random numbers, so that a
    token is right as often as the two models would choose the same. Its keys and values are in
    pages of its own; a text for which there are none has no draft.
    """

    is_free = False

    def __init__(
        self, run: TrainedModel, memory: int, page_size: int = 16, kernels: Kernels = "in_place"
    ) -> None:
        model = run.model
        assert isinstance(model, DecoderModel)
        n_pages = max(memory // (bytes_per_token(model) * page_size) - 1, 1)
        self.memory, self.name = memory, f"{run.name} ({n_pages * page_size:,} tokens)"
        self._decoder = PagedDecoder(model, PagePool(n_pages, page_size), kernels)
        self._max_len = maximum_length(model.embed)
        self._texts: dict[Sequence, Sequence] = {}

    @property
    def n_pages_held(self) -> int:
        """The number of pages that hold texts."""
        return self._decoder.pool.held

    def propose(
        self, lengths: Mapping[Sequence, int], answers: Mapping[Sequence, Answer]
    ) -> dict[Sequence, tuple[int, ...]]:
        """The drafts for sequences, each at most of the given length."""
        drafts: dict[Sequence, _Draft] = {}
        for sequence, length in lengths.items():
            length = min(length, self._max_len - len(sequence.tokens))
            text = self._text(sequence)
            if length > 0 and self._caught_up(text, length):
                drafts[sequence] = _Draft(text, _copied(answers[sequence]), length)
        while active := [each for each in drafts.values() if each.length > 0]:
            self._extend(active)
        return {
            sequence: tuple(each.text.tokens[len(sequence.tokens) :])
            for sequence, each in drafts.items()
        }

    def _text(self, sequence: Sequence) -> Sequence:
        """A sequence's text in the draft model, without wrongly drafted tokens."""
        text = self._texts.get(sequence)
        if text is None:
            table = PageTable(self._decoder.pool)
            text = self._texts[sequence] = Sequence(sequence.request, sequence.index, table, [])
        pairs = zip(text.tokens[: text.computed], sequence.tokens, strict=False)
        text.computed = next(
            (i for i, (old, new) in enumerate(pairs) if old != new),
            min(text.computed, len(sequence.tokens) - 1),
        )
        text.tokens, text.draft = list(sequence.tokens), ()
        text.table.truncate(text.computed)
        return text

    def _caught_up(self, text: Sequence, length: int) -> bool:
        """Read the missing tokens of a text, at most a chunk; return whether few are left."""
        try:
            if text.missing > AHEAD:
                n = min(text.missing - 1, CHUNK)
                text.table.append(n)
                self._decoder.compute(Step(chunk=(text, n)))
                text.computed += n
            if text.missing > AHEAD:
                return False
            text.table.append(text.missing + length - 1)
        except OutOfPages:
            text.table.clear()
            text.computed = 0
            return False
        text.draft = tuple(text.tokens[text.computed + 1 :])
        return True

    def _extend(self, drafts: list[_Draft]) -> None:
        """Draft one more token of each text."""
        step = Step(decode=tuple(each.text for each in drafts))
        ends = torch.tensor([1 + len(each.text.draft) for each in drafts]).cumsum(0)
        logits = self._decoder.compute(step)[ends - 1]
        chosen = choose(logits, [each.answer for each in drafts])
        for i, (each, token) in enumerate(zip(drafts, chosen.tokens, strict=True)):
            each.text.computed, each.text.draft = len(each.text.tokens), ()
            each.length = 0 if i in chosen.failed else each.length - 1
            if i not in chosen.failed:
                each.text.tokens.append(token)
                each.answer = replace(each.answer, written=[*each.answer.written, token])

    def forget(self, sequence: Sequence) -> None:
        """Release the pages of a sequence that has ended."""
        if (text := self._texts.pop(sequence, None)) is not None:
            text.table.clear()


def _copied(answer: Answer) -> Answer:
    """A copy of an answer with its own random numbers, without a grammar."""
    chooser = answer.chooser
    copies = list[torch.Generator]()
    if chooser.generators:
        copies.append(torch.Generator())
        copies[0].set_state(answer.generator.get_state())
    alone = replace(chooser, generators=tuple(copies), grammars=())
    return replace(answer, chooser=alone, index=0)
