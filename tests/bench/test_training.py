"""FLOP counts match the models, and the data are the same for all implementations."""

from dataclasses import replace

import pytest
import torch

from addnorm.bench.ours import decoder_config, translator_config
from addnorm.bench.training import BASE, CHARACTERS, DECODER, TINY, random_tokens


def matrices(model: torch.nn.Module) -> int:
    """Weights of linear maps, and of the head, which is the table."""
    linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    return sum(m.weight.numel() for m in linear) + model.head.weight.numel()


@pytest.mark.parametrize("sizes", [CHARACTERS, DECODER])
def test_a_decoder_multiplies_by_what_it_has(sizes) -> None:
    model = decoder_config(sizes).build(sizes.vocab_size)
    assert sizes.matrices == matrices(model)
    attention = 12 * sizes.n_layers * sizes.d_model * sizes.length / 2
    assert sizes.training_flop == 6 * sizes.matrices + attention


@pytest.mark.parametrize("sizes", [TINY, BASE])
def test_a_translator_multiplies_by_what_it_has(sizes) -> None:
    model = translator_config(sizes).build(sizes.vocab_size)
    one = 12 * sizes.n_layers * sizes.d_model * sizes.length
    # The encoder's own attention and the look at it are whole, the decoder's own is half.
    assert sizes.training_flop == 6 * matrices(model) + one + one + one / 2


def test_targets_of_a_decoder_are_the_next_tokens() -> None:
    sizes = replace(CHARACTERS, batch=2, length=5)
    batches = sizes.batches()
    for read, labels in batches:
        assert read.shape == labels.shape == (2, 5)
        assert torch.equal(read[:, 1:], labels[:, :-1])
        assert read.is_contiguous()
        assert labels.is_contiguous()
    assert sizes.tokens == 10


def test_targets_of_a_translator_are_the_next_tokens() -> None:
    sizes = replace(TINY, batch=2, length=5)
    for source, target, labels in sizes.batches():
        assert source.shape == target.shape == labels.shape == (2, 5)
        assert torch.equal(target[:, 1:], labels[:, :-1])
        assert not torch.equal(source, target)


def test_tokens_are_the_same_each_time_and_none_is_special() -> None:
    tokens = random_tokens(9, 50, 40)
    assert torch.equal(tokens, random_tokens(9, 50, 40))
    assert (int(tokens.min()), int(tokens.max())) == (4, 8)
