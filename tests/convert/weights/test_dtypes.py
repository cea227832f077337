"""Weights of every type through every reader: read right, or refused in one message."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.parity.test_adapter_folders import adapter_of, chats
from tests.runs.tiny import LANGUAGE, train_text, write_corpora
from torch import Tensor
from torch.testing import assert_close

from addnorm.cli.main import status
from addnorm.convert.weights.dtypes import READABLE, check_readable, one_dtype
from addnorm.errors import IgnoredSettings, InputError
from addnorm.quantize import Int8Config, WeightsOnlyConfig
from addnorm.runs.description import describe_run
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.run import Run

TOKENS = torch.tensor([[4, 5, 6, 7, 8, 9, 10]])
FILE = "model.safetensors"
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


def test_mixed_weights_are_read_in_one_type() -> None:
    f64, f32, f16, bf16 = READABLE
    assert one_dtype("x", {}) == f32
    assert one_dtype("x", {"a": bf16, "b": bf16}, "float32") == bf16
    for kinds, named, expected in (
        ((bf16, f32), None, f32),
        ((bf16, f16), None, f32),
        ((f32, f64), "auto", f64),
        ((bf16, f32), "bfloat16", bf16),
        ((bf16, f32), "float64", f64),
        ((bf16, f32), "float8_e4m3fn", f32),
        ((bf16, f32), 7, f32),
    ):
        with pytest.warns(IgnoredSettings, match="x: weights of several types"):
            assert one_dtype("x", dict(zip("ab", kinds, strict=True)), named) == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn, torch.complex64])
def test_other_types_are_refused_as_weights(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match=r"here: head holds .*, which is not read as weights"):
        check_readable("here", "head", dtype)


# Hugging Face's folders, beside transformers.


def rewritten(folder: Path, change: Callable[[str, Tensor], Tensor], dtype: str | None) -> Path:
    """The folder with each tensor changed, and another `dtype` in its configuration."""
    found = {name: change(name, one) for name, one in load_file(folder / FILE).items()}
    save_file(found, folder / FILE, {"format": "pt"})
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.pop("dtype")
    file.write_text(json.dumps(config if dtype is None else config | {"dtype": dtype}))
    return folder


def mixed(*wide: str, narrow: torch.dtype = torch.bfloat16, to: torch.dtype = torch.float32) -> Any:
    """In `narrow`, but for the weights whose name has one of these parts."""
    return lambda name, one: one.to(to if any(part in name for part in wide) else narrow)


MIXTURES: dict[str, tuple[Any, str | None]] = {
    "the head": (mixed("lm_head"), "bfloat16"),
    "a layer": (mixed("layers.0"), "bfloat16"),
    "the norms": (mixed("norm"), "bfloat16"),
    "all but the norms": (mixed("norm", narrow=torch.float32, to=torch.bfloat16), "bfloat16"),
    "float16 beside bfloat16": (mixed("layers.1", to=torch.float16), "bfloat16"),
    "a head of float64": (mixed("lm_head", narrow=torch.float32, to=torch.float64), "float32"),
    "the head, and no dtype": (mixed("lm_head"), None),
}


@pytest.mark.long
@pytest.mark.parity
@pytest.mark.parametrize("case", MIXTURES)
def test_several_types_are_read_as_transformers_does(case: str, tmp_path: Path) -> None:
    import transformers

    change, dtype = MIXTURES[case]
    folder = rewritten(chats(tmp_path / "base"), change, dtype)
    wide = "float32" if dtype is None else dtype
    with pytest.warns(IgnoredSettings, match=f"of several types .* read in {wide}"):
        run = Run.open(folder)
    [found] = {str(one.dtype).removeprefix("torch.") for one in run.weights.values()}
    assert found == wide
    for given in (None, "float32", "float64"):
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, given or wide)
        )
        opened = run if given is None else Run.open(folder, dtype=given)
        with torch.no_grad():
            expected, ours = theirs(TOKENS).logits.double(), opened.model(TOKENS).double()
        allowed = {"bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-6}[given or wide]
        assert float((ours - expected).abs().max()) < allowed * float(expected.abs().max())


@pytest.mark.long
def test_every_reader_of_several_types(tmp_path: Path) -> None:
    folder = rewritten(chats(tmp_path / "base"), mixed("lm_head", "norm"), "bfloat16")
    expected = Run.open(folder, dtype="bfloat16").model(TOKENS)
    adapter = adapter_of(chats(tmp_path / "plain"), tmp_path / "adapter")
    file = adapter / "adapter_config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(folder)})
    )
    with pytest.warns(IgnoredSettings, match="several types"):
        describe_run(folder)
    with pytest.warns(IgnoredSettings, match="several types"):
        Run.open(folder).export(tmp_path / "hf")
    assert_close(Run.open(tmp_path / "hf").model(TOKENS), expected, rtol=0, atol=0)
    with pytest.warns(IgnoredSettings, match="several types"):
        Run.open(folder).save(tmp_path / "saved")
    assert_close(Run.open(tmp_path / "saved").model(TOKENS), expected, rtol=0, atol=0)
    with pytest.warns(IgnoredSettings, match="several types"):
        Run.open(adapter).save(tmp_path / "merged")
    whole = Run.open(folder, dtype="float32").weights
    changed = {
        name
        for name, one in Run.open(tmp_path / "merged").weights.items()
        if not torch.equal(one.float(), whole[name].bfloat16().float())
    }
    assert changed
    assert all("q_proj" in name for name in changed)
    scheme = Int8Config(activations=WeightsOnlyConfig())
    with pytest.warns(IgnoredSettings, match="several types"):
        quantize_run(Run.open(folder), tmp_path / "int8", scheme)
    assert Run.open(tmp_path / "int8").model(TOKENS).isfinite().all()
    (tmp_path / "play.txt").write_text("a fine day\n" * 40)
    recipe = f"""
[data]
kind = "text"
train = "play.txt"
[train]
steps = 1
start = "{folder}"
batching = {{ kind = "windows", batch_size = 2, seq_len = 8 }}
"""
    with pytest.warns(IgnoredSettings, match="several types"):
        run = train_text(tmp_path, "further", recipe)
    assert {one.dtype for one in run.weights.values()} == {torch.float32}


def test_shards_of_several_types(tmp_path: Path) -> None:
    folder = rewritten(chats(tmp_path / "base"), mixed("lm_head"), "bfloat16")
    expected = Run.open(folder, dtype="float32").model(TOKENS)
    tensors = load_file(folder / FILE)
    names = sorted(tensors)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for shard in {*files.values()}:
        save_file({n: t for n, t in tensors.items() if files[n] == shard}, folder / shard)
    (folder / f"{FILE}.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / FILE).unlink()
    assert_close(Run.open(folder, dtype="float32").model(TOKENS), expected, rtol=0, atol=0)
    with pytest.warns(IgnoredSettings, match="several types"):
        Run.open(folder)


@pytest.mark.parametrize("same", [True, False])
def test_a_tied_head_that_is_stored_in_another_type(same: bool, tmp_path: Path) -> None:
    folder = chats(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / FILE)
    table = tensors["model.embed_tokens.weight"].bfloat16()
    tensors = {name: one.bfloat16() for name, one in tensors.items()}
    tensors["lm_head.weight"] = table.float() + (0.0 if same else 1.0)
    save_file(tensors, folder / FILE)
    if same:
        assert {one.dtype for one in Run.open(folder).weights.values()} == {torch.bfloat16}
        return
    with pytest.raises(InputError, match=r"ties lm_head.weight to .*, and they differ"):
        Run.open(folder)


UNREADABLE = {
    "float8": torch.float8_e4m3fn,
    "float8 of many exponents": torch.float8_e5m2,
    "int8": torch.int8,
    "packed": torch.uint8,
    "bool": torch.bool,
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_folder_without_weights_is_refused_by_every_reader(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = rewritten(
        chats(tmp_path / "base"),
        lambda name, one: one.to(UNREADABLE[case] if "lm_head" in name else one.dtype),
        "float32",
    )
    for dtype in (None, "float32", "bfloat16"):
        with pytest.raises(InputError, match=r"lm_head\.weight holds .*, which is not read"):
            Run.open(folder, dtype=dtype)
    for words in (["info", folder], ["export", folder, tmp_path / "x"]):
        assert status([*map(str, words)]) == 2
        assert "which is not read as weights" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_weights_ignored_by_the_model_are_of_any_type(tmp_path: Path) -> None:
    folder = chats(tmp_path / "base")
    expected = Run.open(folder).model(TOKENS)
    tensors = load_file(folder / FILE)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.arange(4)
    save_file(tensors, folder / FILE)
    assert_close(Run.open(folder).model(TOKENS), expected, rtol=0, atol=0)


# Adapters, and our own folders.


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, *UNREADABLE.values()]
)
def test_an_adapter_of_another_type_than_its_base(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = adapter_of(chats(tmp_path / "base"), tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    plain = Run.open(folder)
    save_file(
        {name: one.to(dtype) for name, one in tensors.items()}, folder / "adapter_model.safetensors"
    )
    if dtype not in READABLE:
        with pytest.raises(InputError, match=r"adapter_model.safetensors: .* which is not read"):
            Run.open(folder)
        return
    opened = Run.open(folder)
    assert_close(opened.model(TOKENS), plain.model(TOKENS), rtol=0, atol=2e-2)
    assert {one.dtype for one in opened.weights.values()} == {torch.float32}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ours")
    write_corpora(root)
    run = train_text(root, "run", LANGUAGE)
    return run.save(root / "copy").folder or root


def copied(ours: Path, folder: Path, change: Callable[[str, Tensor], Tensor]) -> Path:
    folder.mkdir()
    for file in ours.iterdir():
        if file.name != "digests.json":
            (folder / file.name).write_bytes(file.read_bytes())
    save_file({n: change(n, one) for n, one in load_file(ours / FILE).items()}, folder / FILE)
    return folder


@pytest.mark.parametrize("part", ["embed", "norm", "feedforward"])
def test_our_own_of_several_types_are_read_in_the_widest(
    ours: Path, part: str, tmp_path: Path
) -> None:
    folder = copied(ours, tmp_path / "run", mixed(part))
    with pytest.warns(IgnoredSettings, match="all are read in float32, the widest"):
        run = Run.open(folder)
    stored = load_file(folder / FILE)
    assert all(torch.equal(one, stored[name].float()) for name, one in run.weights.items())
    opened = Run.open(folder, dtype="bfloat16")
    assert {one.dtype for one in opened.weights.values()} == {torch.bfloat16}


def test_our_own_in_float64_keep_every_digit(ours: Path, tmp_path: Path) -> None:
    folder = copied(ours, tmp_path / "run", lambda name, one: one.double() + 1e-12)
    stored = load_file(folder / FILE)
    for name, one in Run.open(folder).weights.items():
        assert torch.equal(one, stored[name])


@pytest.mark.parametrize("case", UNREADABLE)
def test_our_own_of_other_types_are_refused(ours: Path, case: str, tmp_path: Path) -> None:
    folder = copied(ours, tmp_path / "run", lambda name, one: one.to(UNREADABLE[case]))
    for dtype in (None, "bfloat16"):
        with pytest.raises(InputError, match=r"model.safetensors: .* which is not read as weights"):
            Run.open(folder, dtype=dtype)
