import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from addnorm.convert.exporters.onnx import export_onnx, output_name
from addnorm.errors import InputError
from addnorm.inspect.capture import attention_weights
from addnorm.models import (
    DecoderConfig,
    DecoderModel,
    EncoderConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    EncoderModel,
    Model,
    ModelConfig,
)
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BlocksPatternConfig,
    ScaledDotConfig,
    WindowPatternConfig,
)
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.convolutional_embedding import ConvolutionalEmbeddingConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import BatchNormConfig, LayerNormConfig, RMSNormConfig
from addnorm.nn.patches import PatchEmbeddingConfig, SeriesEmbeddingConfig
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.pooling import ConvolutionPoolingConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    DynamicScaling,
    LearnedConfig,
    NoPositionConfig,
    RotaryConfig,
    T5BiasConfig,
    TransformerXLConfig,
    YaRNScaling,
)
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import DeepNormConfig, ParallelConfig, PreNormConfig, SandwichNormConfig
from addnorm.quantize import Int8Config, WeightsOnlyConfig, quantize

VOCAB = 101
SMALL = {"d_model": 32, "n_layers": 2}
Arrays = dict[str, Any]


class Session:
    """A file run by onnxruntime."""

    def __init__(self, file: Path) -> None:
        ort = pytest.importorskip("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.disable_quant_qdq", "1")  # rounds no inputs
        self.inner = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.inputs = {i.name: i.shape for i in self.inner.get_inputs()}
        self.outputs = {i.name: i.shape for i in self.inner.get_outputs()}

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        asked = {name: tensor.numpy() for name, tensor in inputs.items()}
        found = self.inner.run(None, asked)
        return dict(zip(self.outputs, map(torch.from_numpy, found), strict=True))

    def empty_past(self, batch: int) -> dict[str, Tensor]:
        shapes = {name: shape for name, shape in self.inputs.items() if name.startswith("past")}
        return {name: torch.zeros(batch, s[1], 0, s[3]) for name, s in shapes.items()}


def _past(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.replace("present", "past"): tensor
        for name, tensor in outputs.items()
        if name.startswith("present")
    }


def _built(config: ModelConfig, **sizes: int) -> Model:
    """The model with every parameter away from where it starts."""
    model = config.build(VOCAB, **sizes).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def _lengths(longest: int, batch: int) -> Tensor:
    return torch.tensor([max(1, longest - 2 * row) for row in range(batch)])


def _grow(valid: Tensor) -> Tensor:
    return torch.cat([valid, torch.ones_like(valid[:, :1])], dim=1)


DECODERS = {
    "one layer": DecoderConfig(
        d_model=32,
        n_layers=1,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, pattern=WindowPatternConfig(size=3)),
        residual=PreNormConfig(),
    ),
    "llama": DecoderConfig(
        **SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, bias=False),
        feedforward=GatedFeedForwardConfig(d_ff=48),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
    ),
    "gpt2": DecoderConfig(
        **SMALL,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=4),
        feedforward=FeedForwardConfig(activation="gelu_tanh"),
        residual=PreNormConfig(),
        embedding=EmbeddingConfig(scale="one"),
    ),
    "moe": DecoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=2),
        feedforward=MixtureOfExpertsConfig(n_experts=4, expert=GatedFeedForwardConfig(d_ff=24)),
    ),
    "original": DecoderConfig(**SMALL, attention=AttentionConfig(n_heads=2)),
    "alibi, window, parallel": DecoderConfig(
        **SMALL,
        position=ALiBiConfig(),
        attention=AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=3)),
        residual=ParallelConfig(),
    ),
    "gemma": DecoderConfig(
        **SMALL,
        position=RotaryConfig(fraction=0.5, scaling=YaRNScaling(factor=2.0, original_max_len=8)),
        attention=AttentionConfig(
            n_heads=4,
            n_kv_heads=1,
            qk_norm=RMSNormConfig(),
            score=ScaledDotConfig(factor=0.3, softcap=2.0),
        ),
        residual=SandwichNormConfig(),
        head=TokenHeadConfig(softcap=5.0),
        layer_pattern=(LayerConfig(pattern=WindowPatternConfig(size=4)), LayerConfig()),
    ),
    "t5, additive, deepnorm": DecoderConfig(
        **SMALL,
        position=T5BiasConfig(buckets=8, max_distance=32),
        attention=AttentionConfig(n_heads=2, score=AdditiveConfig()),
        residual=DeepNormConfig(),
    ),
    "transformer-xl, batchnorm": DecoderConfig(
        **SMALL,
        position=TransformerXLConfig(),
        attention=AttentionConfig(n_heads=2),
        norm=BatchNormConfig(),
    ),
    "dynamic, blocks": DecoderConfig(
        d_model=32,
        n_layers=1,
        position=RotaryConfig(
            layout="interleaved", scaling=DynamicScaling(factor=2.0, original_max_len=6)
        ),
        attention=AttentionConfig(n_heads=4, pattern=BlocksPatternConfig(size=2, n_global=1)),
    ),
    "window of two": DecoderConfig(
        **SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        residual=PreNormConfig(),
        layer_pattern=(LayerConfig(pattern=WindowPatternConfig(size=2)), LayerConfig()),
    ),
    "keys, values and vectors of other layers": DecoderConfig(
        d_model=32,
        n_layers=3,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2, value_residual="learned"),
        embedding=EmbeddingConfig(per_layer=PerLayerEmbeddingConfig(width=4)),
        layer_pattern=(
            LayerConfig(),
            LayerConfig(),
            LayerConfig(attention=AttentionConfig(n_heads=4, n_kv_heads=2, kv_layers_back=2)),
        ),
    ),
    "no positions": DecoderConfig(
        **SMALL, position=NoPositionConfig(), attention=AttentionConfig(n_heads=2)
    ),
}


def _slow(names: Sequence[str], fast: str) -> list[Any]:
    marks = {name: () if name == fast else pytest.mark.slow for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.mark.long
@pytest.mark.parity
@pytest.mark.parametrize("name", _slow(list(DECODERS), "one layer"))
def test_a_decoder_continues_prompts_as_ours_does(name: str, tmp_path: Path) -> None:
    model = _built(DECODERS[name])
    assert isinstance(model, DecoderModel)
    [file] = export_onnx(model, DECODERS[name], tmp_path / "out")
    assert file == tmp_path / "out" / "decoder_model.onnx"
    session = Session(file)
    assert session.inputs["input_ids"] == ["batch", "sequence"]
    assert session.inputs["attention_mask"][0] == "batch"
    assert session.inputs["past_key.0"][2] == "past"
    assert session.outputs["logits"] == ["batch", "sequence", VOCAB]
    for batch, longest in ((3, 7), (1, 1), (2, 40)):
        for side in ("left", "right", "between"):
            _compare_steps(model, session, batch, longest, side)


@pytest.mark.slow
@pytest.mark.parity
def test_exports_in_threads_wait_for_one_another(tmp_path: Path) -> None:
    config = DECODERS["one layer"]
    model = _built(config)
    with ThreadPoolExecutor(3) as threads:
        files = threads.map(lambda i: export_onnx(model, config, tmp_path / str(i))[0], range(3))
        assert len({file.read_bytes() for file in files}) == 1


def _bytes(*modules: Any) -> int:
    """Of the parameters, those that are shared once."""
    found = {id(p): p.nbytes for module in modules for p in module.parameters()}
    return sum(found.values())


def _initialiser_bytes(file: Path) -> int:
    """Of all that a graph keeps, used or not."""
    onnx = pytest.importorskip("onnx")
    kept = onnx.load(file).graph.initializer
    return sum(onnx.numpy_helper.to_array(one).nbytes for one in kept)


def _padding(lengths: Tensor, longest: int, side: str) -> Tensor:
    """Which slots are real: padding on the left, on the right, or between the tokens."""
    if side == "between":
        places = torch.rand(len(lengths), longest).argsort(1)
    else:
        places = torch.arange(longest).expand(len(lengths), -1)
        places = places.flip(1) if side == "left" else places
    return places < lengths[:, None]


def _compare_steps(
    model: DecoderModel, session: Session, batch: int, longest: int, side: str
) -> None:
    """Ragged prompts, and ten greedy tokens after them."""
    new = torch.randint(VOCAB, (batch, longest))
    valid = _padding(_lengths(longest, batch), longest, side)
    past, cache = session.empty_past(batch), model.new_cache()
    for _ in range(11):
        with torch.inference_mode():
            ours = model(new, valid=valid, cache=cache)
        found = session(input_ids=new, attention_mask=valid.long(), **past)
        real = valid[:, -new.shape[1] :]
        assert torch.isfinite(found["logits"]).all()
        torch.testing.assert_close(found["logits"][real], ours[real], atol=1e-4, rtol=1e-4)
        new, last = ours[:, -1:].argmax(-1), real[:, -1]
        assert torch.equal(found["logits"][last, -1:].argmax(-1), new[last])
        past, valid = _past(found), _grow(valid)


@pytest.mark.slow
@pytest.mark.parity
def test_prompts_in_parts_give_the_logits_of_the_whole(tmp_path: Path) -> None:
    config = DECODERS["one layer"]
    model = _built(config)
    session = Session(export_onnx(model, config, tmp_path)[0])
    ids, ones = torch.randint(VOCAB, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    whole = session(input_ids=ids, attention_mask=ones, **session.empty_past(2))
    first = session(input_ids=ids[:, :4], attention_mask=ones[:, :4], **session.empty_past(2))
    second = session(input_ids=ids[:, 4:], attention_mask=ones, **_past(first))
    parts = torch.cat([first["logits"], second["logits"]], dim=1)
    torch.testing.assert_close(parts, whole["logits"], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parity
def test_a_position_past_a_learned_table_is_refused_by_the_runtime(tmp_path: Path) -> None:
    """The graph has no message for it, but never reads past the table; padding takes no row."""
    config = DecoderConfig(
        d_model=16,
        n_layers=1,
        max_len=9,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=2),
    )
    model = _built(config)
    assert isinstance(model, DecoderModel)
    session = Session(export_onnx(model, config, tmp_path)[0])
    ids = torch.randint(VOCAB, (1, 10))
    valid = torch.arange(10)[None] >= 1
    with torch.inference_mode():
        ours = model(ids, valid)
    found = session(input_ids=ids, attention_mask=valid.long(), **session.empty_past(1))
    torch.testing.assert_close(found["logits"][valid], ours[valid], atol=1e-4, rtol=1e-4)
    ones = torch.ones(1, 10, dtype=torch.long)
    with pytest.raises(Exception, match=r"out of (data )?bounds"):
        session(input_ids=ids, attention_mask=ones, **session.empty_past(1))
    with pytest.raises(InputError, match="position 9 is past the learned table"):
        model(ids)


ENCODERS = {
    "hidden": EncoderConfig(
        d_model=32,
        n_layers=1,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=4),
        embedding=EmbeddingConfig(scale="one", norm=LayerNormConfig(), n_types=2),
        head=HiddenHeadConfig(),
    ),
    "classification": EncoderConfig(
        **SMALL,
        position=T5BiasConfig(),
        attention=AttentionConfig(n_heads=4, pattern=BlocksPatternConfig(size=2)),
        residual=PreNormConfig(),
        head=ClassificationHeadConfig(pooling="first"),
    ),
    "pooler": EncoderConfig(
        d_model=32, n_layers=1, attention=AttentionConfig(n_heads=4), head=PoolerHeadConfig()
    ),
    "tagging": EncoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=2)),
        head=TaggingHeadConfig(),
    ),
    "token": EncoderConfig(**SMALL, position=RotaryConfig(), attention=AttentionConfig(n_heads=4)),
    "convolution over the texts": EncoderConfig(
        **SMALL,
        attention=AttentionConfig(n_heads=4),
        head=ClassificationHeadConfig(pooling=ConvolutionPoolingConfig(channels=5)),
    ),
}


@pytest.mark.long
@pytest.mark.parity
@pytest.mark.parametrize("name", _slow(list(ENCODERS), "hidden"))
def test_an_encoder_gives_our_outputs(name: str, tmp_path: Path) -> None:
    config = ENCODERS[name]
    labelled = isinstance(config.head, ClassificationHeadConfig | TaggingHeadConfig)
    model = _built(config, **({"n_labels": 3} if labelled else {}))
    [file] = export_onnx(model, config, tmp_path)
    assert file.name == "model.onnx"
    session = Session(file)
    for batch, longest in ((3, 7), (1, 1), (2, 40)):
        ids = torch.randint(VOCAB, (batch, longest))
        valid = torch.arange(longest) < _lengths(longest, batch)[:, None]
        types = torch.randint(2, ids.shape) if "token_type_ids" in session.inputs else None
        with torch.inference_mode():
            ours = model(ids, valid, types)
        given = {} if types is None else {"token_type_ids": types}
        found = session(input_ids=ids, attention_mask=valid.long(), **given)[
            output_name(model.head)
        ]
        real = valid if ours.ndim == 3 else slice(None)
        torch.testing.assert_close(found[real], ours[real], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize(
    ("images", "head"),
    [
        (
            PatchEmbeddingConfig(size=(8, 12), channels=3, patch=4),
            ClassificationHeadConfig(pooling="first"),
        ),
        (
            ConvolutionalEmbeddingConfig(size=(8, 12), widths=(8,)),
            ClassificationHeadConfig(pooling="seqpool"),
        ),
    ],
    ids=["patches", "convolutions"],
)
def test_an_encoder_of_images_gives_our_outputs(
    images: PatchEmbeddingConfig | ConvolutionalEmbeddingConfig,
    head: ClassificationHeadConfig,
    tmp_path: Path,
) -> None:
    config = EncoderConfig(
        **SMALL,
        position=NoPositionConfig(),
        attention=AttentionConfig(n_heads=4),
        residual=PreNormConfig(),
        input=images,
        head=head,
    )
    model = _built(config, n_labels=3)
    session = Session(export_onnx(model, config, tmp_path)[0])
    for batch in (1, 4):
        pixels = torch.rand(batch, 3, 8, 12)
        with torch.inference_mode():
            ours = model(pixels)
        found = session(pixels=pixels)["logits"]
        torch.testing.assert_close(found, ours, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("variables", ["mixed", "independent"])
@pytest.mark.parametrize("int8", [False, True])
def test_a_forecaster_gives_our_outputs(
    variables: Literal["mixed", "independent"], int8: bool, tmp_path: Path
) -> None:
    config = EncoderConfig(
        **SMALL,
        position=LearnedConfig(),
        attention=AttentionConfig(n_heads=4),
        input=SeriesEmbeddingConfig(
            channels=3, patch=8, stride=4, norm="instance", variables=variables, look_back=30
        ),
        head=ForecastHeadConfig(horizon=7),
    )
    model = _built(config, n_labels=3)
    assert isinstance(model, EncoderModel)
    if int8:
        quantize(model, Int8Config(activations=WeightsOnlyConfig()))
    session = Session(export_onnx(model, config, tmp_path)[0])
    for batch in (1, 4):
        series = torch.randn(batch, 3, 30).cumsum(-1)
        with torch.inference_mode():
            ours = model(series)
        found = session(series=series)["prediction_outputs"]
        torch.testing.assert_close(found, ours, atol=1e-4, rtol=1e-4)


TRANSLATORS = {
    "original": EncoderDecoderConfig(
        d_model=32, n_layers=1, attention=AttentionConfig(n_heads=4), max_len=64
    ),
    "token types": EncoderDecoderConfig(
        d_model=32,
        n_layers=1,
        attention=AttentionConfig(n_heads=4),
        embedding=EmbeddingConfig(n_types=2),
    ),
    "rotary": EncoderDecoderConfig(
        **SMALL,
        n_decoder_layers=1,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        cross_attention=AttentionConfig(n_heads=2, qk_norm=RMSNormConfig()),
        feedforward=GatedFeedForwardConfig(),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
    ),
    "t5, parallel": EncoderDecoderConfig(
        **SMALL,
        position=T5BiasConfig(),
        attention=AttentionConfig(n_heads=4),
        residual=ParallelConfig(norms="each"),
    ),
}


@pytest.mark.long
@pytest.mark.parity
@pytest.mark.parametrize("name", _slow(list(TRANSLATORS), "original"))
def test_a_translator_continues_targets_as_ours_does(name: str, tmp_path: Path) -> None:
    model = _built(TRANSLATORS[name])
    assert isinstance(model, EncoderDecoderModel)
    files = export_onnx(model, TRANSLATORS[name], tmp_path)
    assert [file.name for file in files] == ["decoder_model.onnx", "encoder_model.onnx"]
    decoder, encoder = map(Session, files)
    read = _bytes(model.source_embed, model.encoder)
    written = _bytes(model.target_embed, model.decoder, model.head)
    assert sum(map(_initialiser_bytes, files)) == pytest.approx(read + written, rel=0.01)
    for batch, longest in ((3, 7), (1, 1)):
        source = torch.randint(VOCAB, (batch, longest))
        valid = torch.arange(longest) < _lengths(longest, batch)[:, None]
        encoded = encoder(input_ids=source, attention_mask=valid.long())
        with torch.inference_mode():
            memory = model.encode(source, valid)
        torch.testing.assert_close(encoded.pop("last_hidden_state"), memory, atol=1e-4, rtol=1e-4)
        new, cache, past = torch.full((batch, 1), 2), model.new_cache(), decoder.empty_past(batch)
        for _ in range(11):
            with torch.inference_mode():
                ours = model.decode(new, memory, source_valid=valid, cache=cache)
            found = decoder(input_ids=new, encoder_attention_mask=valid.long(), **encoded, **past)
            torch.testing.assert_close(found["logits"], ours, atol=1e-4, rtol=1e-4)
            new, past = ours[:, -1:].argmax(-1), _past(found)
            assert torch.equal(found["logits"][:, -1:].argmax(-1), new)


@pytest.mark.slow
@pytest.mark.parity
def test_images_are_captioned_as_by_ours(tmp_path: Path) -> None:
    config = EncoderDecoderConfig(
        **SMALL,
        position=NoPositionConfig(),
        attention=AttentionConfig(n_heads=4),
        input=PatchEmbeddingConfig(size=(8, 8), channels=1, patch=4),
    )
    model = _built(config)
    assert isinstance(model, EncoderDecoderModel)
    decoder, encoder = map(Session, export_onnx(model, config, tmp_path))
    pixels, target = torch.rand(2, 1, 8, 8), torch.randint(VOCAB, (2, 3))
    encoded = encoder(pixels=pixels)
    seen = torch.ones(encoded.pop("last_hidden_state").shape[:2], dtype=torch.long)
    past = decoder.empty_past(2)
    found = decoder(input_ids=target, encoder_attention_mask=seen, **encoded, **past)
    with torch.inference_mode():
        ours = model(pixels, target)
    torch.testing.assert_close(found["logits"], ours, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("name", ["original", "rotary"])
def test_the_attention_of_a_step_is_the_mean_over_layers_and_heads(
    name: str, tmp_path: Path
) -> None:
    config = TRANSLATORS[name]
    model = _built(config)
    assert isinstance(model, EncoderDecoderModel)
    decoder, encoder = map(Session, export_onnx(model, config, tmp_path, attention=True))
    source, target = torch.randint(VOCAB, (1, 6)), torch.randint(VOCAB, (1, 4))
    memory = encoder(input_ids=source, attention_mask=torch.ones_like(source))
    cross = {key: value for key, value in memory.items() if key.startswith("cross")}
    seen = torch.ones_like(source)
    inputs = {"encoder_attention_mask": seen, **cross, **decoder.empty_past(1)}
    found = decoder(input_ids=target, **inputs)["cross_attention"]
    with torch.inference_mode(), attention_weights(model) as weights:
        model(source, target)
    layers = [each for key, each in weights.items() if key.endswith("cross_attention")]
    torch.testing.assert_close(found, torch.stack(layers).mean((0, 2)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (DecoderConfig(**SMALL, attention=RecurrentConfig()), "use attention"),
        (DecoderConfig(**SMALL, attention=ConvolutionConfig()), "use attention"),
        (EncoderDecoderConfig(**SMALL, input=LogMelEmbeddingConfig(n_mels=8)), "log-mel"),
    ],
)
def test_parts_that_no_graph_can_hold_are_refused(
    config: ModelConfig, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        export_onnx(config.build(VOCAB), config, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_bfloat16_is_refused(tmp_path: Path) -> None:
    config = DECODERS["one layer"]
    with pytest.raises(InputError, match="float32 or float16"):
        export_onnx(config.build(VOCAB).bfloat16(), config, tmp_path)


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    config = DECODERS["llama"]
    with pytest.raises(InputError, match=r"pip install 'addnorm\[onnx\]'"):
        export_onnx(config.build(VOCAB), config, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parity
def test_finding_readers_leaves_the_model_unchanged(tmp_path: Path) -> None:
    config = DecoderConfig(d_model=32, n_layers=1, attention=AttentionConfig(n_heads=2))
    model = config.build(VOCAB).train()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_onnx(model, config, tmp_path)
    assert model.training
    assert type(model.stack.blocks[0].attention.core).__name__ == "SDPACore"
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
