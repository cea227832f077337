"""Every reader of a model, on models whose layers differ: right, or refused with the layer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.tiny import quiet, train_tiny

from addnorm.convert.exporters.web import TEMPLATE
from addnorm.errors import InputError
from addnorm.generate import BeamConfig, GreedyConfig
from addnorm.inspect.look import look
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.attention import SelfAttention
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal
from addnorm.nn.no_sublayer import NoMixer
from addnorm.prune.pruned_model import Pruning, keep_weights, smaller_config
from addnorm.prune.selection import gated, n_kept
from addnorm.prune.units import Units, feedforward_rows, head_groups
from addnorm.quantize import Int4Config, Int8Config, QuantizationConfig, quantize
from addnorm.quantize.layers import QuantizedLinear, QuantizedRecurrence
from addnorm.runs.description import describe_run
from addnorm.runs.export import WRITERS, export_run
from addnorm.runs.inference.text import write
from addnorm.runs.inference.writers import compiled
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run
from addnorm.training.adapters import LoRAConfig, adapt

WIDE = '{n_heads = 2, n_kv_heads = 1, d_head = 6, qk_norm = "rmsnorm", core = "eager"}'
PATTERNS = {
    "recurrence": '[{attention = "recurrent"}, {}]',
    "delta": '[{attention = {kind = "gated_delta", n_heads = 2, d_key = 4, d_value = 6}}, {}]',
    "heads": f'[{{pattern = {{kind = "window", size = 3}}}}, {{attention = {WIDE}}}]',
    "mixture": '[{}, {feedforward = {kind = "moe", n_experts = 2}}]',
    "feedforward": '[{}, {feedforward = {kind = "mlp", d_ff = 24, activation = "gelu_tanh"}}]',
    "absent": '[{feedforward = {kind = "none"}}, {attention = {kind = "none"}}]',
    "norms": '[{}, {norm = {kind = "rmsnorm", eps = 1e-5}}]',
}
"""Layers that differ in each of their parts, as a recipe has them."""

COMMON = {
    "model.n_layers": "2",
    "model.position": '"rotary"',
    "model.residual": '{kind = "pre"}',
    "model.feedforward": '{kind = "mlp", d_ff = 32, activation = "gelu_tanh"}',
    "model.max_len": "32",
    "train.steps": "2",
}
TEXT = "To be"


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a language model whose layers differ in this part."""

    def trained(name: str) -> Path:
        fields = {**COMMON, "model.layer_pattern": PATTERNS[name]}
        return train_tiny(tmp_path_factory.mktemp(name), "language", **fields)

    return cache(trained)


def logits(run: Run) -> torch.Tensor:
    assert run.text is not None
    with torch.no_grad():
        return run.model(torch.arange(9)[None] % 7)


def _opened(run: Run, out: Path) -> None:
    """What is trained is what is opened: the parts of each layer, and its outputs."""
    again = Run.open(run.folder)  # pyright: ignore[reportArgumentType]
    assert again.recipe.model == run.recipe.model
    assert logits(again).equal(logits(run))


def _described(run: Run, out: Path) -> None:
    from rich.console import Console

    assert run.folder is not None
    console = Console(record=True, width=200, file=quiet().file)
    console.print(describe_run(run.folder))
    shown = console.export_text()
    for layer in run.recipe.model.layer_pattern:
        for name in ("attention", "feedforward", "norm"):
            if (part := getattr(layer, name)) is not None:
                assert part.kind in shown


def _decoded(run: Run, out: Path) -> None:
    """With a cache and without, greedily and by beams."""
    assert isinstance(run.model, DecoderModel)
    tokens = torch.arange(8)[None] % 7
    memory = run.model.new_cache()
    parts = [run.model(part, cache=memory) for part in tokens.split([3, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), run.model(tokens), rtol=1e-5, atol=1e-5)
    for way in (GreedyConfig(), BeamConfig(beams=3)):
        assert write(run, [TEXT, "so"], way, max_new_tokens=5)


def _compiled(run: Run, out: Path) -> None:
    fast = compiled(run, GreedyConfig(), several=False)
    [[ours]] = write(run, [TEXT], GreedyConfig(), max_new_tokens=6)
    [[theirs]] = write(run, [TEXT], GreedyConfig(), max_new_tokens=6, compiled=fast)
    assert theirs.text == ours.text
    assert theirs.score == pytest.approx(ours.score, abs=1e-4)


def _looked(run: Run, out: Path) -> None:
    """Attention of the layers that have it, and a note on those that have none."""
    seen = look(run, TEXT)
    mixers = run.model.stack.mixers  # pyright: ignore[reportAttributeAccessIssue]
    attends = [i for i, mixer in enumerate(mixers) if isinstance(mixer, SelfAttention)]
    assert sorted({one.layer for one in seen.attention}) == attends
    for i in {0, 1} - {*attends}:
        kind = run.recipe.model.layer(i).attention.kind
        assert any(
            f"layer {i} has no attention to draw: the mixer is {kind}" in note
            for note in seen.notes
        )
        assert {*seen.mixer.split(" and ")} == {kind, "self-attention"}
    assert seen.positions[0].lines.keys() <= {f"layer {attends[0]}"}


def _quantized(scheme: QuantizationConfig) -> Callable[[Run, Path], None]:
    def check(run: Run, out: Path) -> None:
        expected = logits(run)
        quantize(run.model, scheme)
        kinds = QuantizedLinear | QuantizedRecurrence
        names = [name for name, part in run.model.named_modules() if isinstance(part, kinds)]
        assert {name.split(".")[2] for name in names} == {"0", "1"}
        assert (logits(run) - expected).norm() / expected.norm() < 0.5

    return check


def _pruned(option: str, units_of: Callable[[Any], list[Units]]) -> Callable[[Run, Path], None]:
    """Half of the units of every layer: what is left computes what masking them does."""

    def check(run: Run, out: Path) -> None:
        units = units_of(run.model)
        kept = {one.path: tuple(range(n_kept(one.n, 0.5, option))) for one in units}
        pruning = Pruning(**{option: 0.5}, units=kept, of={one.path: one.n for one in units})  # pyright: ignore[reportArgumentType]
        gates = {
            one.path: (torch.arange(one.n)[None] < len(kept[one.path])).float() for one in units
        }
        with gated(units, gates):
            expected = logits(run)
        torch.testing.assert_close(logits(_smaller(run, pruning)), expected, rtol=1e-4, atol=1e-5)

    return check


def _without_the_first_layer(run: Run, out: Path) -> None:
    """The layer that is left is the second, with its own parts."""
    new = _smaller(run, Pruning(layers={"stack": (1,)}))
    assert isinstance(run.model, DecoderModel)
    assert isinstance(new.model, DecoderModel)
    ctx = Context.over(tokens := torch.arange(9)[None] % 7, Causal())
    block, stack = run.model.stack.blocks[1], run.model.stack
    x = block(run.model.embed(tokens, ctx), ctx.restrict(stack.patterns[1]))
    expected = run.model.head(stack.norm(x, None), ctx)
    torch.testing.assert_close(logits(new), expected, rtol=1e-4, atol=1e-5)


def _smaller(run: Run, pruning: Pruning) -> Run:
    config = smaller_config(run.recipe.model, pruning)
    assert isinstance(config, DecoderConfig)
    assert run.text is not None
    model = config.build(run.text.source.vocab_size).eval()
    keep_weights(run.model, model, pruning)
    return replace(run, model=model)


def _swapped(*sets: str, same: bool = True, **options: Any) -> Callable[[Run, Path], None]:
    def check(run: Run, out: Path) -> None:
        assert run.folder is not None
        report = swap_run(run, out, SwapOptions(sets=sets, **options))
        new = Run.open(out)
        assert {origin.kind for origin in report.transfer.origins.values()} <= {"exact"}
        if same:
            assert report.transfer.changed == ()
            torch.testing.assert_close(logits(new), logits(run), rtol=1e-5, atol=1e-5)

    return check


def _layers_in_another_order(run: Run, out: Path) -> None:
    """Each layer takes its own parts along."""
    _swapped(same=False, layers=(1, 0, 1))(run, out)
    new = Run.open(out)
    blocks, old = new.model.stack.blocks, run.model.stack.blocks  # pyright: ignore[reportAttributeAccessIssue]
    for block, i in zip(blocks, (1, 0, 1), strict=True):
        for name, weight in old[i].state_dict().items():
            assert block.state_dict()[name].equal(weight), name


def _fewer_and_more_layers(run: Run, out: Path) -> None:
    """Layers that stay keep their parts, whichever those of the other layers are."""
    for number, layers in enumerate([(0,), (1,), (0, 0, 1, 1)]):
        _swapped(same=False, layers=layers)(run, out / str(number))
    _swapped("n_layers=1", same=False)(run, out / "one")


def _adapted(run: Run, out: Path) -> None:
    """LoRA stands in every layer's maps, and starts as the model that it is put into."""
    model = Run.open(run.folder).model  # pyright: ignore[reportArgumentType]
    expected = logits(run)
    adapted = adapt(model, LoRAConfig(rank=2))
    mixers = [block.attention for block in model.stack.blocks]  # pyright: ignore[reportAttributeAccessIssue]
    assert adapted.others == {
        type(mixer).__name__: f"stack.blocks.{i}.attention"
        for i, mixer in enumerate(mixers)
        if not isinstance(mixer, SelfAttention | NoMixer)
    }
    trained = {name.split(".")[2] for name, one in model.named_parameters() if one.requires_grad}
    assert {"0", "1"} <= trained
    with torch.no_grad():
        assert model(torch.arange(9)[None] % 7).equal(expected)


def _exported(form: str) -> Callable[[Run, Path], None]:
    """Exporters read back what they wrote, and compare the logits."""

    def check(run: Run, out: Path) -> None:
        export_run(run, out.with_suffix(".gguf") if form == "gguf" else out, to=form)  # pyright: ignore[reportArgumentType]

    return check


READERS: dict[str, Callable[[Run, Path], None]] = {
    "open": _opened,
    "info": _described,
    "decode": _decoded,
    "compile": _compiled,
    "look": _looked,
    "int8": _quantized(Int8Config()),
    "int4": _quantized(Int4Config()),
    "prune heads": _pruned("heads", head_groups),
    "prune feedforward": _pruned("feedforward", feedforward_rows),
    "prune layers": _without_the_first_layer,
    "swap a table": _swapped("head.tied=false"),
    "swap layers": _layers_in_another_order,
    "swap to other numbers of layers": _fewer_and_more_layers,
    "lora": _adapted,
    **{f"export {form}": _exported(form) for form in WRITERS},
}

REFUSALS: dict[tuple[str, str], str] = {
    ("compile", "recurrence"): r"layer 0 has a Recurrent",
    ("compile", "delta"): r"layer 0 has a GatedDelta",
    ("compile", "absent"): r"layer 1 has no attention",
    ("prune heads", "heads"): r"of 1 in stack\.blocks\.1\.attention: there is only one",
    ("prune feedforward", "mixture"): r"stack\.blocks\.1\.feedforward is MixtureOfExperts",
    **{("export hf", name): r"layer [01] has the" for name in PATTERNS},
    ("export hf", "delta"): r"no family can express this model",
    ("export hf", "absent"): r"layer [01] has the|no family can express this model",
    ("export hf", "heads"): r"layer_pattern\.1\.attention",
    ("export hf", "feedforward"): r"layer_pattern\.1\.feedforward",
    ("export hf", "mixture"): r"layer_pattern\.1\.feedforward",
    **{("export gguf", name): r"layer [01]" for name in PATTERNS},
    **{("export ctranslate2", name): r"layer [01]" for name in PATTERNS if name != "norms"},
    ("export onnx", "recurrence"): r"layer 0 has a Recurrent",
    ("export onnx", "delta"): r"layer 0 has a GatedDelta",
    ("export web", "recurrence"): r"layer 0 has a Recurrent",
    ("export web", "delta"): r"layer 0 has a GatedDelta",
    ("export onnx", "absent"): r"layer 1 has no attention",
    ("export web", "absent"): r"layer 1 has no attention",
}
"""What a reader refuses, by the part in which layers differ, and what the message names."""


def _cases() -> Iterator[Any]:
    """Every reader with every pattern; graphs that are made take long."""
    for reader, name in product(READERS, PATTERNS):
        graphs = ("compile", "export onnx", "export web")
        graph = reader in graphs and (reader, name) not in REFUSALS
        yield pytest.param(reader, name, marks=pytest.mark.slow if graph else pytest.mark.long)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("reader", "name"), [*_cases()])
def test_a_reader_reads_each_layer_or_names_the_one_it_cannot(
    reader: str, name: str, hybrid: Callable[[str], Path], tmp_path: Path
) -> None:
    if reader.startswith("export"):
        modules = {"gguf": "gguf", "ctranslate2": "ctranslate2", "onnx": "onnx", "web": "onnx"}
        pytest.importorskip(modules.get(reader.removeprefix("export "), "torch"))
    if reader == "export web" and not TEMPLATE.is_file():
        pytest.skip("the page is not built: `make page`")
    run, out = Run.open(hybrid(name)), tmp_path / "out"
    refusal = REFUSALS.get((reader, name))
    if refusal is None:
        READERS[reader](run, out)
        return
    with pytest.raises(InputError, match=refusal) as caught:
        READERS[reader](run, out)
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.iterdir()]
