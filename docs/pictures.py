"""The pictures of the documentation, each drawn by the code that it shows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import matplotlib as mpl

mpl.use("Agg")

import torch
from attention_pictures import canon, latent, sinks
from grounds import on_any_ground
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from measured_pictures import confusion, mixers, roofline, speed, window
from plan_pictures import plans
from residual_pictures import hyper_connections
from series_pictures import forecast, patches
from serving_pictures import pages
from torch import Tensor

import addnorm
from addnorm.data.batches.augmentation import (
    Augmentation,
    CropConfig,
    CutMixConfig,
    ErasingConfig,
    Examples,
    FlipConfig,
    MixupConfig,
)
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.batches.frames import SpecAugmentConfig
from addnorm.data.batches.randaugment import RandAugmentConfig
from addnorm.data.examples import Clip, Transcribed
from addnorm.data.readers.audio import log_mel
from addnorm.data.readers.dates import DatesConfig
from addnorm.data.readers.strings import StringsConfig
from addnorm.data.tokenizing.tokenizers import BPEConfig
from addnorm.inspect.curves import Curves, training_picture
from addnorm.inspect.look import look
from addnorm.inspect.overview import overview
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.hyper_connections import HyperConnectionsConfig, ManifoldConnectionsConfig
from addnorm.nn.masks import Blocks, Causal, Full, Mask, Padding, Prefix, Segments, Window
from addnorm.nn.positions import (
    ALiBiConfig,
    AxialRotaryConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    sinusoidal_encoding,
)
from addnorm.nn.positions.position import BuildContext
from addnorm.nn.residuals import (
    DeepNormConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    ResidualConfig,
    SandwichNormConfig,
)
from addnorm.parts import kind_of
from addnorm.training.optim import MuonConfig

LENGTH = 48
HEADS = 8
WIDTH = 32


def draw_all(folder: Path) -> None:
    """Every picture of the pages, as PNG files in `folder`."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(0)
    drawn = (
        positions,
        biases,
        rotary,
        axial_rotary,
        masks,
        norms,
        gradients,
        window,
        mixers,
        speed,
        roofline,
        curves,
    )
    others = (augmentation, masked, string, inside, patches, forecast, pages, plans)
    parts = (sinks, latent, canon, hyper_connections)
    for draw in (*drawn, *others, *parts):
        figure = on_any_ground(draw())
        figure.savefig(folder / f"{draw.__name__}.png", dpi=140, bbox_inches="tight")
        plt.close(figure)
    confusion(folder / "confusion.png")


def positions() -> Figure:
    """The sinusoidal encoding, and how alike any two positions are."""
    waves = sinusoidal_encoding(torch.arange(100), 64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    image = left.imshow(waves.T, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    left.set(xlabel="position", ylabel="feature", title="PE(p)")
    figure.colorbar(image, ax=left)
    image = right.imshow(waves @ waves.T, cmap="viridis")
    right.set(xlabel="position", ylabel="position", title="PE(p) · PE(q): the offset alone")
    figure.colorbar(image, ax=right)
    return figure


def biases() -> Figure:
    """What ALiBi adds to the scores of three heads, and how T5 sorts distances into buckets."""
    ctx = _context(LENGTH)
    q = torch.zeros(1, HEADS, LENGTH, WIDTH // 4)
    alibi = ALiBiConfig().build(_build_context()).score_bias(q, ctx)
    assert alibi is not None
    table = alibi(slice(None), slice(None))[0]
    figure, axes = plt.subplots(1, 4, figsize=(13, 3), layout="constrained")
    for axis, head in zip(axes, (0, 2, 5), strict=False):
        image = axis.imshow(table[head].tril(), cmap="magma")
        axis.set(title=f"ALiBi, head {head + 1} of {HEADS}", xlabel="key", ylabel="query")
        figure.colorbar(image, ax=axis, shrink=0.8)
    t5 = T5BiasConfig().build(_build_context())
    with torch.no_grad():
        t5.table.weight.copy_(torch.arange(32.0)[:, None].expand(-1, HEADS))
        long = _context(160)
        bias = t5.score_bias(torch.zeros(1, HEADS, 160, WIDTH // 4), long)
        assert bias is not None
        buckets = bias(slice(159, 160), slice(None))[0, 0, 0]
    axes[3].step(torch.arange(159, -1, -1), buckets)
    axes[3].set(title="T5: bucket by distance", xlabel="tokens back", ylabel="bucket")
    return figure


def rotary() -> Figure:
    """The score of one query and one key as the key moves away, for two bases."""
    figure, axis = plt.subplots(figsize=(6, 3))
    length, width = 400, 64
    for theta in (10_000.0, 500_000.0):
        context = BuildContext(
            d_model=width, max_len=length, n_heads=1, d_head=width, causal=True, scale=1.0
        )
        ones = torch.ones(1, 1, length, width)
        q, k = RotaryConfig(theta=theta).build(context).rotate(ones, ones, _context(length))
        axis.plot((q[0, 0, -1] @ k[0, 0].T).flip(0), label=f"θ = {theta:,.0f}")
    axis.set(xlabel="distance", ylabel="q·k of equal vectors", title="Rotary positions")
    axis.legend()
    return figure


def axial_rotary() -> Figure:
    """The score of a patch with equal vectors elsewhere, in pictures of two sizes and shapes."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.6))
    for axis, (rows, columns) in zip(axes, ((16, 16), (12, 30)), strict=True):
        sizes = BuildContext(
            d_model=64, max_len=1, n_heads=1, d_head=64, causal=False, scale=1.0, pictures=True
        )
        ones = torch.ones(1, 1, rows * columns, 64)
        context = replace(_context(rows * columns), grid=(rows, columns))
        q, k = AxialRotaryConfig().build(sizes).rotate(ones, ones, context)
        middle = rows // 2 * columns + columns // 2
        axis.imshow((k[0, 0] @ q[0, 0, middle]).view(rows, columns), cmap="viridis")
        axis.set(title=f"{rows} × {columns} patches", xticks=[], yticks=[])
    figure.suptitle("q·k of equal vectors, from the patch in the middle", y=1.06)
    return figure


MASKS: dict[str, Mask] = {
    "Causal()": Causal(),
    "Window(5)": Window(5),
    "Causal() & Window(5)": Causal() & Window(5),
    "Prefix(8)": Prefix(torch.tensor([8])),
    "Segments": Causal() & Segments((torch.arange(24) // 9)[None]),
    "Padding": Full() & Padding((torch.arange(24) >= 4)[None]),
    "Blocks(4)": Blocks(4),
    "Causal() & Blocks(4, 0, 1)": Causal() & Blocks(4, 0, 1),
}


def masks() -> Figure:
    """Which keys (across) each query (down) may look at."""
    figure, axes = plt.subplots(2, 4, figsize=(12, 6.4))
    slots = torch.arange(24)
    for axis, (name, mask) in zip(axes.flat, MASKS.items(), strict=True):
        axis.imshow(mask.dense(slots, slots, 1)[0, 0], cmap="Greens", vmin=0, vmax=1.3)
        axis.set(title=name, xticks=[], yticks=[])
    axes[0, 0].set(xlabel="key", ylabel="query")
    return figure


def norms() -> Figure:
    """What each norm averages over: tokens down, features across, two texts and some padding."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2))
    padding = torch.zeros(12, 10, dtype=torch.bool)
    padding[10:] = True  # the second text is two tokens shorter
    regions: dict[str, Callable[[Tensor], object]] = {
        "LayerNorm, RMSNorm: a token": lambda cells: cells[3].fill_(1),
        "BatchNorm: a feature": lambda cells: cells[:10, 4].fill_(1),
        "QK-norm: a head of a token": lambda cells: cells[3, :5].fill_(1),
    }
    for axis, (name, fill) in zip(axes, regions.items(), strict=True):
        cells = torch.zeros(12, 10)
        fill(cells)
        cells[padding] = 0.35
        axis.imshow(cells, cmap="Blues", vmin=0, vmax=1.4)
        axis.axhline(5.5, color="black", linewidth=1)
        axis.set(title=name, xlabel="feature", ylabel="token", xticks=[], yticks=[])
    figure.text(0.5, -0.04, "grey: padding, left out; the line parts two texts", ha="center")
    return figure


def gradients() -> Figure:
    """The gradient that reaches each of 24 layers at the start, per placement."""
    figure, axis = plt.subplots(figsize=(7, 3.4))
    placements: list[ResidualConfig] = [
        PostNormConfig(),
        PreNormConfig(),
        SandwichNormConfig(),
        DeepNormConfig(),
        ParallelConfig(),
        HyperConnectionsConfig(),
        ManifoldConnectionsConfig(),
    ]
    for residual in placements:
        _plot_gradients(axis, residual)
    axis.set(yscale="log", xlabel="layer", ylabel="‖∂loss/∂W‖ of down_proj")
    axis.set_title("Gradient by depth, at initialisation")
    axis.legend()
    return figure


def curves() -> Figure:
    """The loss, the learning rate and the gradient norm of two small decoders."""
    text = "".join(f"{i} and {i + 1} are {2 * i + 1}.\n" for i in range(400))
    with TemporaryDirectory() as name:
        folders = {"sinusoidal": SinusoidalConfig(), "rotary": RotaryConfig()}
        for folder, position in folders.items():
            config = DecoderConfig(
                d_model=32,
                n_layers=2,
                position=position,
                attention=AttentionConfig(n_heads=4),
                residual=PreNormConfig(),
            )
            addnorm.train(
                config,
                addnorm.text([text[:6000]], valid=[text[6000:]]),
                tokenizer="char",
                folder=Path(name) / folder,
                steps=120,
                validate_every=20,
                lr=5e-3,
                progress=False,
            )
        return training_picture([Curves.of(Path(name) / folder) for folder in folders])


def augmentation() -> Figure:
    """A picture, and what each kind of augmentation makes of it."""
    drawn = torch.stack([_landscape(sky=sky) for sky in (0.35, 0.7)])
    given = Examples(drawn, torch.eye(2))
    changes: list[tuple[str, Augmentation | None]] = [
        ("as it is", None),
        ("crop", CropConfig(padding=8)),
        ("flip", FlipConfig(probability=1.0)),
        ("randaugment", RandAugmentConfig()),
        ("erasing", ErasingConfig(probability=1.0)),
        ("mixup", MixupConfig(alpha=5.0)),
        ("cutmix", CutMixConfig(alpha=5.0)),
    ]
    figure, axes = plt.subplots(1, len(changes), figsize=(11, 2), layout="constrained")
    for axis, (name, change) in zip(axes, changes, strict=True):
        found = given if change is None else change(given, [Random(4), Random(5)])
        axis.imshow(found.images[0].movedim(0, -1) / 255)
        axis.set(title=name, xticks=[], yticks=[])
    return figure


def masked() -> Figure:
    """The log-mel features of two words made of tones, and the same with random masks."""
    whole = log_mel(torch.cat([_word(3), torch.zeros(1600), _word(8)]), 8000, 40)
    changed = SpecAugmentConfig(time_width=12, mel_width=8).masked(whole, 5)
    return _frames({"a clip": whole, "in training": changed})


def string() -> Figure:
    """A string of clips, as `data.strings` makes it, with the text that is to be written."""
    words = {str(n): log_mel(_word(n), 8000, 40) for n in (3, 1, 4)}
    joined = StringsConfig(pause=(8, 20)).joined(
        [Clip(frames, name) for name, frames in words.items()], Random(1)
    )
    assert isinstance(joined, Transcribed)
    return _frames({f'"{joined.text}"': joined.frames})


def _word(n: int) -> Tensor:
    """A third of a second of two tones that glide, another pair for each number."""
    times = torch.arange(2700) / 8000
    low, high = 250 + 60 * n, 900 + 220 * n
    swell = torch.sin(torch.pi * torch.arange(2700) / 2700)
    tones = torch.sin(2 * torch.pi * (low + 200 * times) * times)
    return swell * (tones + 0.4 * torch.sin(2 * torch.pi * (high - 300 * times) * times)) / 2


def _frames(clips: dict[str, Tensor]) -> Figure:
    figure, axes = plt.subplots(
        1, len(clips), figsize=(8, 2.2), layout="constrained", squeeze=False, sharey=True
    )
    for axis, (title, frames) in zip(axes[0], clips.items(), strict=True):
        axis.imshow(frames, origin="lower", aspect="auto", cmap="magma")
        axis.set(title=title, xlabel="frames, a hundredth of a second each", yticks=[])
    axes[0][0].set_ylabel("mel features")
    return figure


def _landscape(*, sky: float) -> Tensor:
    """A sun above a hill, 48 × 48 pixels; with another sky another time of the day."""
    rows, columns = torch.meshgrid(
        torch.linspace(0, 1, 48), torch.linspace(0, 1, 48), indexing="ij"
    )
    picture = torch.stack([sky + 0.2 * rows, 0.75 - 0.3 * sky * rows, 1 - sky * rows])
    sun = (rows - 0.25).hypot(columns - 0.7 * sky - 0.2) < 0.13
    picture = torch.where(sun, torch.tensor([1.0, 0.85, 0.2])[:, None, None], picture)
    hill = rows > 0.95 - 0.45 * torch.exp(-12 * (columns - 1 + sky).square())
    picture = torch.where(hill, torch.tensor([0.2, 0.55, 0.25])[:, None, None], picture)
    return 255 * picture


def inside() -> Figure:
    """A small translator of dates, and what it does with one."""
    config = EncoderDecoderConfig(
        d_model=64,
        n_layers=2,
        attention=AttentionConfig(n_heads=4, bias=False),
        residual=PreNormConfig(),
        dropout=0.0,
        init="zero_output",
    )
    run = addnorm.train(
        config,
        DatesConfig(to="de", n_train=4000, n_valid=0, n_test=0),
        tokenizer=BPEConfig(vocab_size=600),
        steps=200,
        batching=TokensConfig(tokens=800),
        lr=3e-3,
        optimizer=MuonConfig(lr=0.02),
        progress=False,
    )
    return overview(look(run, "Friday, November 20, 2026"))


def _plot_gradients(axis: Axes, residual: ResidualConfig) -> None:
    torch.manual_seed(1)
    config = DecoderConfig(
        d_model=64,
        n_layers=24,
        attention=AttentionConfig(n_heads=4),
        residual=residual,
        dropout=0.0,
    )
    model = config.build(50)
    tokens = torch.randint(50, (8, 32))
    logits = model(tokens)
    torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    ).backward()
    named = dict(model.named_parameters())
    gradients = [named[f"stack.blocks.{i}.feedforward.down_proj.weight"].grad for i in range(24)]
    sizes = [float(gradient.norm()) for gradient in gradients if gradient is not None]
    axis.plot(range(1, 25), sizes, marker=".", label=kind_of(residual))


def _build_context() -> BuildContext:
    return BuildContext(
        d_model=WIDTH * 2, max_len=512, n_heads=HEADS, d_head=WIDTH // 4, causal=True, scale=1.0
    )


def _context(length: int) -> Context:
    return Context.over(torch.zeros(1, length, dtype=torch.long), Causal())
