"""Decoders of GGUF files: those that we write are opened equal, and every flaw is named."""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.convert.exporters.test_gguf import BPE, CHARS, MODELS, VOCAB, built

import addnorm
from addnorm.convert.core.readback import model_logits, sample_inputs
from addnorm.convert.exporters.gguf import export_gguf
from addnorm.convert.folder import load_gguf
from addnorm.convert.importers.gguf import describe_gguf
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import IgnoredSettings, InputError
from addnorm.nn.embed import EmbeddingConfig

gguf = pytest.importorskip("gguf")

BOTH = Tokenizers(BPE, BPE)
TEXTS = ("the 5th day of the year 3", "déjà vu, it's 日本!\n\n  two spaces", "")


def exported(file: Path, name: str, **options: Any) -> Any:
    model = built(MODELS[name])
    export_gguf(model, MODELS[name], BOTH, file, **options)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_written_model_is_opened_equal(name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    model = exported(file, name)
    opened = load_gguf(file)
    inputs = sample_inputs(model)
    expected, logits = model_logits(model, inputs), model_logits(opened, inputs)
    for ours, theirs in zip(logits, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=2e-5, atol=2e-5)
    again = tmp_path / "again.gguf"
    config = describe_gguf(file)[0].model
    if not name.endswith(("yarn", "llama3")):  # whose divisors are a list when they are opened
        export_gguf(opened, config, BOTH, again)  # pyright: ignore[reportArgumentType]
        second = load_gguf(again)
        for key, tensor in opened.state_dict().items():
            torch.testing.assert_close(second.state_dict()[key], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_type_is_that_of_the_matrices(dtype: Any, tmp_path: Path) -> None:
    config = replace(MODELS["llama"], embedding=EmbeddingConfig(scale="one"))
    model = built(config).to(torch.float16 if dtype == "f16" else torch.bfloat16)
    export_gguf(model, config, BOTH, tmp_path / "m.gguf", dtype)
    opened = load_gguf(tmp_path / "m.gguf")
    for name, tensor in model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name
    wide = load_gguf(tmp_path / "m.gguf", dtype=torch.float32)
    assert {tensor.dtype for tensor in wide.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("tokenizer", [BPE, CHARS], ids=["bpe", "char"])
def test_the_vocabulary_gives_the_same_ids(tokenizer: Any, tmp_path: Path) -> None:
    config = MODELS["llama"]
    model = built(config, tokenizer.vocab_size)
    export_gguf(model, config, Tokenizers(tokenizer, tokenizer), tmp_path / "m.gguf")
    _, text = describe_gguf(tmp_path / "m.gguf")
    opened = text.source
    for written in TEXTS:
        known = "".join(c for c in written if tokenizer is BPE or tokenizer.encode(c) != [1])
        assert opened.encode(known) == tokenizer.encode(known)
        assert opened.decode(tokenizer.encode(known)) == tokenizer.decode(tokenizer.encode(known))
    assert (opened.bos_id, opened.eos_ids, opened.pad_id) == (
        tokenizer.bos_id,
        tokenizer.eos_ids,
        tokenizer.pad_id,
    )
    assert opened.before == (tokenizer.bos_id,)


def rewritten(
    file: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], architecture: str = ""
) -> Path:
    """A copy of a file with its keys and tensors changed, written by the package."""
    reader = gguf.GGUFReader(file)
    keys = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    values = {
        name: (field.contents(), field.types)
        for name, field in keys.items()
        if name != "general.architecture"
    }
    tensors = {
        tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors
    }
    change(values, tensors)
    out = file.with_name("changed.gguf")
    own = keys["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture or own)
    for name, (value, types) in values.items():
        writer.add_key_value(name, value, types[0], types[1] if len(types) > 1 else None)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


UINT = ([gguf.GGUFValueType.UINT32],)
TEXT = ([gguf.GGUFValueType.STRING],)


def put(key: str, value: Any, types: Any = UINT) -> Callable[[Any, Any], None]:
    return lambda keys, tensors: keys.update({key: (value, *types)})


def drop(key: str) -> Callable[[Any, Any], None]:
    return lambda keys, tensors: keys.pop(key)


def without(name: str) -> Callable[[Any, Any], None]:
    return lambda keys, tensors: tensors.pop(name)


def more(name: str) -> Callable[[Any, Any], None]:
    return lambda keys, tensors: tensors.update({name: tensors["output_norm.weight"]})


FLAWS: dict[str, tuple[Callable[[Any, Any], None], str]] = {
    "no size": (drop("llama.block_count"), r"the key llama\.block_count is missing"),
    "no eps": (
        drop("llama.attention.layer_norm_rms_epsilon"),
        r"the key llama\.attention\.layer_norm_rms_epsilon is missing",
    ),
    "an unread key": (put("llama.expert_count", 8), r"llama\.expert_count = 8 is not supported"),
    "a size of nothing": (
        put("llama.block_count", 0),
        r"llama\.block_count = 0 must be from 1",
    ),
    "a text as a size": (
        put("llama.block_count", "2", TEXT),
        r"llama\.block_count = '2' must",
    ),
    "heads that do not fit": (put("llama.attention.head_count_kv", 3), "the keys of llama"),
    "another width": (put("llama.feed_forward_length", 32), r"blk\.0\.ffn_\w+\.weight has shape"),
    "another scaling": (
        put("llama.rope.scaling.type", "longrope", TEXT),
        r"llama\.rope\.scaling\.type = 'longrope' is not supported, only none, linear, yarn",
    ),
    "yarn without its factor": (
        put("llama.rope.scaling.type", "yarn", TEXT),
        r"the key llama\.rope\.scaling\.factor is missing",
    ),
    "a tensor less": (
        without("blk.1.attn_v.weight"),
        r"the tensor blk\.1\.attn_v\.weight is missing\. Did you mean 'blk",
    ),
    "a tensor more": (
        more("blk.1.attn_sinks.weight"),
        r"the tensor blk\.1\.attn_sinks\.weight is not",
    ),
    "another tokenizer": (
        put("tokenizer.ggml.model", "rwkv", TEXT),
        r"tokenizer\.ggml\.model = 'rwkv' is not supported.*gpt2",
    ),
    "another splitting": (
        put("tokenizer.ggml.pre", "qwen", TEXT),
        r"tokenizer\.ggml\.pre = 'qwen' is not supported\. Did you mean 'qwen2'",
    ),
    "no tokens": (drop("tokenizer.ggml.tokens"), r"tokenizer\.ggml\.tokens is missing"),
    "an end beyond": (
        put("tokenizer.ggml.eos_token_id", 999),
        r"tokenizer\.ggml\.eos_token_id = 999",
    ),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    exported(file, "llama")
    return file


@pytest.mark.parametrize(("change", "expected"), FLAWS.values(), ids=FLAWS)
def test_a_flaw_is_named(change: Any, expected: str, llama: Path) -> None:
    file = rewritten(llama, change)
    with pytest.raises(InputError, match=rf"changed\.gguf: {expected}"):
        describe_gguf(file)


def test_an_unknown_architecture_is_named(llama: Path) -> None:
    file = rewritten(llama, lambda keys, tensors: None, "qwen4")
    with pytest.raises(InputError, match=r"general\.architecture = 'qwen4' .*Did you mean 'qwen"):
        describe_gguf(file)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q5_1"])
def test_quantised_matrices_are_dequantised_and_a_warning_says_so(
    kind: str, tmp_path: Path
) -> None:
    from gguf.quants import dequantize, quantize

    config = replace(MODELS["gpt2"], d_model=64)
    model = built(config)
    file = tmp_path / "model.gguf"
    export_gguf(model, config, BOTH, file)
    of_kind = gguf.GGMLQuantizationType[kind]

    def change(keys: Any, tensors: Any) -> None:
        for name, (data, _) in tensors.items():
            if data.ndim > 1 and name != "position_embd.weight":
                tensors[name] = (quantize(data, of_kind), of_kind)

    changed = rewritten(file, change)
    with pytest.warns(IgnoredSettings, match=rf"stored as {kind}, and read as float32"):
        opened = load_gguf(changed)
    table = opened.state_dict()["embed.tokens.weight"]
    [raw] = [t for t in gguf.GGUFReader(changed).tensors if t.name == "token_embd.weight"]
    assert torch.equal(table, torch.from_numpy(dequantize(raw.data, of_kind)))
    assert table.shape[0] == VOCAB


def test_commands_take_a_file(llama: Path, tmp_path: Path) -> None:
    """Generating and exporting, whose folder begins its texts as the file does."""
    run = addnorm.load(llama)
    text = run.generate("the year", beams=1, max_new_tokens=5)
    run.export(tmp_path / "hf")
    assert addnorm.load(tmp_path / "hf").generate("the year", beams=1, max_new_tokens=5) == text
    run.save(tmp_path / "run")
    assert addnorm.load(tmp_path / "run").generate("the year", beams=1, max_new_tokens=5) == text
    assert "llama, of llama.cpp" in _described(llama)


def _described(file: Path) -> str:
    from rich.console import Console

    from addnorm.runs.description import describe

    console = Console(width=100, file=StringIO())
    with console.capture() as captured:
        console.print(describe(file))
    return captured.get()
