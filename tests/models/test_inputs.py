"""Inputs of all kinds: image to class, image to text, audio to text, series to text."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from tests.contracts import check_config, check_gradients, check_module, check_records
from torch import Tensor
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.generate import GreedyConfig, translate
from addnorm.models import EncoderConfig, EncoderDecoderConfig, EncoderDecoderModel, ModelConfig
from addnorm.models.inputs import InputConfig, TokenInputConfig, valid_positions
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig, TokenHeadConfig
from addnorm.nn.patches import PatchEmbeddingConfig, SeriesEmbeddingConfig
from addnorm.nn.positions import LearnedConfig, NoPositionConfig, RotaryConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.nn.waveform import WaveformEmbeddingConfig

VOCAB, LABELS = 11, 5
INPUTS = {
    "patches": PatchEmbeddingConfig(size=(4, 6), channels=2, patch=2),
    "convolutions": ConvolutionalEmbeddingConfig(size=(4, 6), channels=2, widths=(3,)),
    "log_mel": LogMelEmbeddingConfig(n_mels=3),
    "series": SeriesEmbeddingConfig(channels=2, patch=3, stride=2, norm="instance"),
    "waveform": WaveformEmbeddingConfig(
        channels=(3, 4), kernels=(3, 2), strides=(2, 1), layer_norms="every", position_kernel=3,
        position_groups=2,
    ),
}  # fmt: skip
READ = {
    "patches": (torch.randn(3, 2, 6, 4), None),
    "convolutions": (torch.randn(3, 2, 6, 4), None),
    "log_mel": (torch.randn(3, 3, 9), torch.arange(9) < torch.tensor([[9], [4], [7]])),
    "series": (torch.randn(3, 2, 9), torch.arange(9) < torch.tensor([[9], [4], [7]])),
    "waveform": (torch.randn(3, 1, 21), torch.arange(21) < torch.tensor([[21], [9], [14]])),
}
TARGET = torch.randint(1, VOCAB, (3, 6), generator=torch.Generator().manual_seed(0))
SMALL: dict[str, Any] = {
    "d_model": 8,
    "n_layers": 2,
    "attention": AttentionConfig(n_heads=2),
    "residual": PreNormConfig(),
    "dropout": 0.0,
}
every_input = pytest.mark.parametrize("kind", INPUTS)


def classifier(kind: str, **changes: Any) -> Any:
    torch.manual_seed(7)
    head = ClassificationHeadConfig(pooling="mean")
    shape = {**SMALL, "input": INPUTS[kind], "head": head, **changes}
    return EncoderConfig(**shape).build(n_labels=LABELS).eval()


def writer(kind: str, **changes: Any) -> EncoderDecoderModel:
    torch.manual_seed(7)
    return EncoderDecoderConfig(**{**SMALL, "input": INPUTS[kind], **changes}).build(VOCAB).eval()


def test_every_input_has_a_record() -> None:
    check_records(InputConfig, [TokenInputConfig(), *INPUTS.values()])


# An encoder of it, with a head.


@every_input
def test_contract(kind: str) -> None:
    config = EncoderConfig(input=INPUTS[kind], head=ClassificationHeadConfig())
    check_config(config, ModelConfig)
    inputs, valid = READ[kind]
    check_module(lambda: classifier(kind), lambda model, _: model(inputs, valid))
    assert classifier(kind)(inputs, valid).shape == (3, LABELS)


@every_input
def test_gradients(kind: str) -> None:
    _, valid = READ[kind]
    inputs = READ[kind][0].clone()
    model = classifier(kind, n_layers=1, d_model=4)
    check_gradients(model, lambda m, x: m(x, valid), inputs, twice=False)


@every_input
@pytest.mark.parametrize("position", [NoPositionConfig(), LearnedConfig(), RotaryConfig()])
def test_batch_mates_change_nothing(kind: str, position: Any) -> None:
    model, (inputs, valid) = classifier(kind, position=position), READ[kind]
    together = model(inputs, valid)
    for i in range(3):
        alone = inputs[i : i + 1] if valid is None else inputs[i : i + 1, :, valid[i]]
        assert_close(together[i], model(alone)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["log_mel", "series"])
def test_values_at_padding_change_no_bit(kind: str) -> None:
    model, (inputs, valid) = classifier(kind), READ[kind]
    assert valid is not None
    clean = model(torch.where(valid[:, None], inputs, 0.0), valid)
    for garbage in (math.nan, math.inf, 1e30):
        assert torch.equal(model(torch.where(valid[:, None], inputs, garbage), valid), clean)


def test_a_label_for_every_position() -> None:
    model = classifier("log_mel", head=TaggingHeadConfig())
    assert model(*READ["log_mel"]).shape == (3, 5, LABELS)


def test_a_vision_transformer_reads_other_resolutions() -> None:
    model = classifier("patches", head=ClassificationHeadConfig(pooling="first"))
    assert model(torch.randn(2, 2, 10, 8)).shape == (2, LABELS)
    with pytest.raises(InputError, match=r"9 × 8 .* 8 × 8"):
        model(torch.randn(2, 2, 9, 8))


def test_a_tied_head_needs_tokens() -> None:
    with pytest.raises(ValueError, match="a tied head shares the table of tokens, and patches"):
        EncoderConfig(**SMALL, input=INPUTS["patches"])
    head = TokenHeadConfig(tied=False)
    model = EncoderConfig(**SMALL, input=INPUTS["patches"], head=head).build(VOCAB)
    assert model(READ["patches"][0]).shape == (3, 7, VOCAB)


def test_tokens_need_a_vocabulary() -> None:
    with pytest.raises(ValueError, match="needs vocab_size"):
        EncoderConfig(**SMALL, head=ClassificationHeadConfig()).build(n_labels=2)


# Its output as the memory of a decoder.


@every_input
def test_contract_of_writers(kind: str) -> None:
    check_config(EncoderDecoderConfig(input=INPUTS[kind]), ModelConfig)
    inputs, valid = READ[kind]
    check_module(lambda: writer(kind), lambda model, _: model(inputs, TARGET, valid))
    assert writer(kind)(inputs, TARGET, valid).shape == (3, 6, VOCAB)


@every_input
def test_gradients_of_writers(kind: str) -> None:
    _, valid = READ[kind]
    model = writer(kind, n_layers=1, d_model=4)
    run = lambda m, x: m(x, TARGET[:, :2], valid)  # noqa: E731
    check_gradients(model, run, READ[kind][0].clone(), twice=False)


def written(model: EncoderDecoderModel, kind: str, *, cached: bool) -> Tensor:
    """Six tokens by greedy choice, the memory read once."""
    inputs, valid = READ[kind]
    memory, cache = model.encode(inputs, valid), model.new_cache() if cached else None
    tokens = TARGET[:, :1]
    for _ in range(6):
        new = tokens[:, -1:] if cached else tokens
        logits = model.decode(new, memory, valid, cache=cache)
        tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], dim=1)
    return tokens


@torch.no_grad()
@every_input
@pytest.mark.parametrize("position", [NoPositionConfig(), RotaryConfig()])
def test_the_cache_changes_nothing(kind: str, position: Any) -> None:
    model, (inputs, valid) = writer(kind, position=position), READ[kind]
    assert torch.equal(written(model, kind, cached=True), written(model, kind, cached=False))
    memory, cache = model.encode(inputs, valid), model.new_cache()
    parts = [model.decode(TARGET[:, i : i + 2], memory, valid, cache=cache) for i in (0, 2, 4)]
    assert_close(torch.cat(parts, dim=1), model(inputs, TARGET, valid), rtol=0, atol=1e-5)


@every_input
def test_the_memory_is_read(kind: str) -> None:
    model, (inputs, valid) = writer(kind), READ[kind]
    other = inputs.clone()
    other[:, :, 0] = other[:, :, 0].flip(1) + 1
    assert not torch.allclose(model(other, TARGET, valid), model(inputs, TARGET, valid), atol=1e-4)


@pytest.mark.parametrize("kind", ["log_mel", "series"])
def test_a_transcriber_encodes_each_clip_as_if_alone(kind: str) -> None:
    model, (inputs, valid) = writer(kind), READ[kind]
    assert valid is not None
    together = model(inputs, TARGET, valid)
    for i in range(3):
        alone = model(inputs[i : i + 1, :, valid[i]], TARGET[i : i + 1])
        assert_close(together[i], alone[0], rtol=0, atol=1e-5)
    memory = model.encode(inputs, valid)
    real = valid_positions(model.source_embed, valid)
    assert real is not None
    assert (memory[~real] == 0).all()


def test_two_inputs_share_no_table_and_target_tokens_are_enough() -> None:
    model = EncoderDecoderConfig(**SMALL, input=INPUTS["log_mel"]).build(0, VOCAB)
    assert model(*READ["log_mel"][:1], TARGET).shape == (3, 6, VOCAB)
    assert model.head.weight is model.target_embed.tokens.weight


def test_texts_are_refused_by_a_model_that_reads_none() -> None:
    with pytest.raises(InputError, match="prompt 1 is text, and this model reads none"):
        translate(writer("patches"), [[4, 5]], GreedyConfig())


def test_one_line_turns_a_translator_into_a_describer() -> None:
    text = EncoderDecoderConfig(**SMALL)
    model = dataclasses.replace(text, input=INPUTS["patches"]).build(VOCAB)
    assert model(READ["patches"][0], TARGET).shape == text.build(VOCAB)(TARGET, TARGET).shape


LENGTHS = [(n,) for n in range(1, 12)]
SIDES = [(4, 6), (2, 2), (8, 4), (6, 10)]


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("patches", SIDES),
        ("convolutions", [(4, 6), (8, 4), (5, 7), (9, 4)]),
        ("log_mel", LENGTHS),
        ("series", LENGTHS),
    ],
)
def test_the_number_of_positions_is_that_of_the_sequence(
    kind: str, sizes: list[tuple[int, ...]]
) -> None:
    model, n_channels = classifier(kind), READ[kind][0].shape[1]
    for size in sizes:
        x, _ = model.hidden(torch.zeros(1, n_channels, *size))
        assert INPUTS[kind].n_positions(size) == x.shape[1]
    assert TokenInputConfig().n_positions([5]) == 5
