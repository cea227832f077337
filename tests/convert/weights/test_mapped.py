"""Weight files are memory-mapped, private, and never run a pickle."""

import json
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.convert.damage import NASTY, cut, dumped, flipped
from tests.convert.folders import Evil, Tree, entry, opened_files, packed, raw, same
from tests.parity.test_adapter_folders import adapter_of, chats
from tests.runs.tiny import LANGUAGE, train_text, write_corpora
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.cli.main import status
from addnorm.convert.weights import mapped as module
from addnorm.convert.weights.files import Weights
from addnorm.convert.weights.mapped import (
    DTYPES,
    READABLE,
    StoredTensor,
    check_readable,
    map_pickle,
    map_safetensors,
    one_dtype,
    parse_object,
    read_header,
)
from addnorm.errors import IgnoredSettings, InputError
from addnorm.quantize import Int8Config, WeightsOnlyConfig
from addnorm.runs.description import describe_run
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.run import Run


def read(stored: dict[str, StoredTensor]) -> dict[str, Tensor]:
    for one in stored.values():
        tensor = one.read()
        assert one.shape == tuple(tensor.shape)
        assert one.dtype == tensor.dtype
        assert one.nbytes == tensor.nbytes
    return {name: one.read() for name, one in stored.items()}


def write(file: Path, header: Tree, data: bytes) -> dict[str, StoredTensor]:
    file.write_bytes(packed(header, data))
    return map_safetensors(file)


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(tmp_path: Path, name: str) -> None:
    size = 6 * DTYPES[name].itemsize
    data = Random(0).randbytes(size) if name != "BOOL" else b"\0\1\1\0\0\1"
    header = {"a": entry(name, [2, 3], 0, size), "none": entry(name, [3, 0], size, size)}
    found = read(write(tmp_path / "x", header, data))
    assert found["a"].dtype == DTYPES[name]
    assert raw(found["a"]) == data
    assert found["none"].shape == (3, 0)


@pytest.mark.parametrize("pad", range(8))
def test_elements_are_aligned_wherever_they_lie(tmp_path: Path, pad: int) -> None:
    numbers = torch.randn(5, dtype=torch.float64)
    header = {"pad": entry("U8", [pad], 0, pad), "a": entry("F64", [5], pad, pad + 40)}
    found = read(write(tmp_path / "x", header, bytes(pad) + raw(numbers)))
    assert found["a"].equal(numbers)
    assert found["a"].data_ptr() % 8 == 0


def test_tensors_are_views_that_outlive_the_rest(tmp_path: Path) -> None:
    header = {"a": entry("F32", [1000], 0, 4000), "b": entry("F32", [], 4000, 4004)}
    stored = write(tmp_path / "x", header, raw(torch.randn(1001)))
    one, again, other = stored["a"].read(), stored["a"].read(), stored["b"].read()
    assert one.data_ptr() == again.data_ptr()
    assert other.data_ptr() == one.data_ptr() + 4000
    values = one.clone()
    (tmp_path / "x").unlink()
    del stored, again, other
    assert one.equal(values)


def test_writing_into_a_tensor_never_changes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x"
    header = {"a": entry("I64", [9], 0, 72), "b": entry("I64", [], 72, 80)}
    stored = write(file, header, bytes(80))
    content = file.read_bytes()
    stored["a"].read().fill_(7)
    stored["b"].read().fill_(7)
    assert stored["a"].read().tolist() == [7] * 9
    assert file.read_bytes() == content
    assert map_safetensors(file)["a"].read().tolist() == [0] * 9


def test_an_unreadable_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="x: cannot be read: No such file"):
        map_safetensors(tmp_path / "x")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        map_safetensors(tmp_path)


def resident(kind: str = "VmRSS") -> int:
    """Bytes of this process in memory: all, or only what no file backs (`RssAnon`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return 1024 * int(line.split()[1])
    raise AssertionError(kind)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("size", [2**26, pytest.param(2**30, marks=pytest.mark.slow)])
def test_loading_is_quick_and_takes_no_memory_of_its_own(tmp_path: Path, size: int) -> None:
    file = tmp_path / "x"
    each = size // 64
    header = {f"w{i}": entry("F32", [each // 4], i * each, (i + 1) * each) for i in range(64)}
    file.write_bytes(packed(header))
    with file.open("ab") as stream:
        for _ in range(64):
            stream.write(os.urandom(each))
    before, private = resident(), resident("RssAnon")
    seconds: list[float] = []
    for _ in range(3):
        start = perf_counter()
        tensors = [one.read() for one in map_safetensors(file).values()]
        opened = resident()
        most = max(int(tensor.view(torch.int32).max()) for tensor in tensors)
        seconds.append(perf_counter() - start)
        assert most
        assert opened - before < 2**22, "nothing is read before it is touched"
        assert resident("RssAnon") - private < 2**22, "nothing is copied"
        assert resident() - before < 1.15 * size
        del tensors
    assert min(seconds) < 2 * size / 2**30 + 0.2


# Pickles


def save(file: Path, content: Any, **settings: Any) -> Path:
    torch.save(content, file, **settings)
    return file


def test_a_pickle_of_tensors(tmp_path: Path) -> None:
    shared = torch.randn(4)
    content = {
        "a": torch.randn(3, 5),
        "turned": torch.randn(3, 5).T,
        "half": torch.randn(3).bfloat16(),
        "parameter": nn.Parameter(torch.randn(2)),
        "scalar": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "tied": shared,
        "tied too": shared,
    }
    file = save(tmp_path / "x.bin", content)
    found = read(map_pickle(file))
    same(found, content)
    assert type(found["parameter"]) is Tensor
    assert not found["parameter"].requires_grad
    before = file.read_bytes()
    found["a"].fill_(0)
    assert file.read_bytes() == before


def unlike(folder: Path) -> dict[str, Any]:
    """What a pickle may hold that is no dictionary of plain tensors."""
    return {
        "evil": {"w": torch.ones(1), "x": Evil(folder / "canary")},
        "evil alone": Evil(folder / "canary"),
        "module": nn.Linear(1, 1),
        "list": [torch.ones(1)],
        "tensor": torch.ones(1),
        "number": {"step": 3},
        "nested": {"state_dict": {"w": torch.ones(1)}},
        "unnamed": {3: torch.ones(1)},
        "sparse": {"w": torch.eye(3).to_sparse()},
        "meta": {"w": torch.ones(3, device="meta")},
    }


@pytest.mark.parametrize("what", unlike(Path()))
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_anything_else_is_refused_and_not_run(
    tmp_path: Path, what: str, zipped: bool
) -> None:
    content = unlike(tmp_path)[what]
    file = save(tmp_path / "x.bin", content, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"x\.bin") as caught:
        map_pickle(file)
    assert "weights_only" not in str(caught.value), "torch's advice is to run it"
    assert not (tmp_path / "canary").exists()


def test_a_compressed_pickle_is_refused(tmp_path: Path) -> None:
    """It may unfold to any size."""
    plain, packed_file = save(tmp_path / "x.bin", {"w": torch.zeros(9)}), tmp_path / "y.bin"
    with (
        zipfile.ZipFile(plain) as old,
        zipfile.ZipFile(packed_file, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    with pytest.raises(InputError, match=r"y\.bin: .*compressed"):
        map_pickle(packed_file)


def test_a_damaged_pickle_is_refused_or_loads(tmp_path: Path) -> None:
    file = save(tmp_path / "x.bin", {"w": torch.arange(300.0), "b": torch.ones(3)})
    whole, rng = file.read_bytes(), Random(0)
    loaded, messages = 0, set[str]()
    for _ in range(300):
        place = rng.randrange(len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << rng.randrange(8)
        file.write_bytes(changed if rng.random() < 0.5 else whole[:place])
        try:
            read(map_pickle(file))
            loaded += 1
        except InputError as error:
            messages.add(str(error).split(": ")[0])
    assert 0 < loaded < 300
    assert messages == {str(file)}


GOOD = {"a": entry("F32", [2, 3], 0, 24), "b": entry("I64", [], 24, 32)}
DATA = bytes(range(32))
HUGE = 2**63


def refused(folder: Path, content: bytes) -> str:
    file = folder / "x.safetensors"
    file.write_bytes(content)
    with file.open("rb") as stream, pytest.raises(InputError) as caught:
        read_header(stream, file)
    assert str(file) in str(caught.value)
    return str(caught.value)


def test_a_valid_header_is_read(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    header = {"__metadata__": {"format": "pt"}, **GOOD, "none": entry("BF16", [0, 5], 32, 32)}
    file.write_bytes(packed(header, DATA))
    with file.open("rb") as stream:
        found = read_header(stream, file)
    start = file.stat().st_size - 32
    assert list(found) == ["a", "b", "none"]
    assert found["a"] == module.Entry(torch.float32, (2, 3), start, start + 24)
    assert found["b"] == module.Entry(torch.int64, (), start + 24, start + 32)
    assert found["none"] == module.Entry(torch.bfloat16, (0, 5), start + 32, start + 32)


def test_every_dtype_has_the_size_that_its_name_says() -> None:
    bits = {
        name: int("".join(c for c in name.split("_")[0] if c.isdigit()) or 8) for name in DTYPES
    }
    assert {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()} == bits


def test_a_file_truncated_anywhere_is_refused_with_both_sizes(tmp_path: Path) -> None:
    whole = packed(GOOD, DATA)
    for size in range(len(whole)):
        message = refused(tmp_path, whole[:size])
        assert "truncated" in message
        assert f"has {size}" in message
        assert size < 8 or "expected" in message
        if size >= len(whole) - len(DATA):
            assert f"expected {len(whole)} bytes, has {size}" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\xff" * 20, "a header of 18446744073709551615 bytes, at most 32000000"),
        ((32_000_001).to_bytes(8, "little") + b"{}", "a header of 32000001 bytes"),
        (packed(b""), "expected a JSON object, got b''"),
        (packed(b" {}"), "expected a JSON object"),
        (packed(b"[]"), "expected a JSON object"),
        (packed(b"{}x"), "damaged: Extra data"),
        (packed(b'{"a":1,"a":1}'), "'a' is there twice"),
        (packed(b'{"a":{"b":1,"b":1}}'), "'b' is there twice"),
        (packed(b'{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' is there twice"),
        (packed(b'{"a":NaN}'), "NaN is not JSON"),
        (packed(b'{"a":-Infinity}'), "-Infinity is not JSON"),
        (packed(b'{"\\ud800":1}'), "surrogates not allowed"),
        (packed(b'{"a":"\\udc00"}'), "surrogates not allowed"),
        (packed(b'{"\xff":1}'), "can't decode byte 0xff"),
        (packed(b'{"a":' + b"[" * 100_000), "damaged: "),
        (packed(b'{"a":' + b"9" * 5000 + b"}"), "digits"),
        (packed(b'{"a":[' + b"{}," * 1_000_000 + b"0]}"), "more in it than 200000 tensors"),
        (packed({"__metadata__": {"a": 1}}), "__metadata__ is not of text alone"),
        (packed({"__metadata__": []}), "__metadata__ is not of text alone"),
        (packed(GOOD, DATA + b"!"), "its tensors end at byte"),
        (packed({}, b"!"), "its tensors end at byte 16, but it has 17"),
    ],
)
def test_a_damaged_header_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    assert message in refused(tmp_path, content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "F33"}, "unknown dtype 'F33'. Did you mean 'F3"),
        ({"dtype": "F4"}, "unknown dtype 'F4'"),
        ({"dtype": 32}, "no dtype"),
        ({"dtype": None}, "no dtype"),
        ({"more": 1}, "unknown fields: ['more']"),
        ({"shape": 6}, "no dtype, shape"),
        ({"shape": {}}, "no dtype, shape"),
        ({"shape": [2, 4]}, "F32 of shape [2, 4] takes 32 bytes, its data_offsets [0, 24] span 24"),
        ({"shape": []}, "takes 4 bytes"),
        ({"shape": [0, 3]}, "takes 0 bytes"),
        ({"shape": [-2, -3]}, "a shape is"),
        ({"shape": [2.0, 3]}, "a shape is"),
        ({"shape": [True, 6]}, "a shape is"),
        ({"shape": ["2", 3]}, "a shape is"),
        ({"shape": [None]}, "a shape is"),
        ({"shape": [HUGE]}, "a shape is"),
        ({"shape": [1] * 65}, "a shape is 64 sizes at most"),
        ({"shape": [HUGE // 2, 4]}, "is too large"),
        ({"shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}, "is too large"),
        ({"data_offsets": [0]}, "two data_offsets"),
        ({"data_offsets": [0, 24, 24]}, "two data_offsets"),
        ({"data_offsets": "24"}, "two data_offsets"),
        ({"data_offsets": [24, 0]}, "not a span"),
        ({"data_offsets": [-24, 0]}, "not a span"),
        ({"data_offsets": [0.0, 24.0]}, "not a span"),
        ({"data_offsets": [False, 24]}, "not a span"),
        ({"data_offsets": [HUGE, HUGE + 24]}, "not a span"),
        ({"data_offsets": [4, 28]}, "follows 4 unused: it begins at byte"),
        ({"shape": [1], "data_offsets": [24, 28]}, "follows 24 unused"),
    ],
)
def test_a_damaged_entry_is_refused_with_the_reason(
    tmp_path: Path, changes: Tree, message: str
) -> None:
    text = refused(tmp_path, packed({**GOOD, "a": {**GOOD["a"], **changes}}, DATA))
    assert message in text
    assert "tensor 'a'" in text


def test_overlaps_and_holes_are_refused(tmp_path: Path) -> None:
    twice = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [4], 8, 12)}
    assert "tensor 'b' overlaps another" in refused(tmp_path, packed(twice, DATA))
    equal = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [32], 0, 32)}
    assert "overlaps another" in refused(tmp_path, packed(equal, DATA))
    inside = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [0], 8, 8)}
    assert "overlaps another" in refused(tmp_path, packed(inside, DATA))
    hole = {"a": entry("U8", [8], 0, 8), "b": entry("U8", [16], 16, 32)}
    assert "tensor 'b' follows 8 unused" in refused(tmp_path, packed(hole, DATA))
    beyond = {"a": entry("U8", [32], 0, 32), "b": entry("U8", [0], 99, 99)}
    assert "truncated" in refused(tmp_path, packed(beyond, DATA))


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, {"dtype": "F32"}])
def test_an_entry_of_another_type_is_refused(tmp_path: Path, value: Any) -> None:
    assert "tensor 'a': no dtype" in refused(tmp_path, packed({"a": value}))


def test_too_many_names_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TENSORS", 3)
    parse_object(b'{"a":1,"b":1,"c":1}', tmp_path)
    with pytest.raises(InputError, match="4 names in one object, at most 3"):
        parse_object(b'{"a":1,"b":1,"c":1,"d":1}', tmp_path)


def test_a_long_name_is_not_repeated_in_full(tmp_path: Path) -> None:
    assert len(refused(tmp_path, packed({"x" * 10**6: {"y" * 10**6: 1}}))) < 500


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in refused(tmp_path, packed({"\x1b[2J": 1}))


def stretched(content: bytes, rng: Random, upto: int) -> bytes:
    length = rng.choice([0, 1, upto - 9, upto - 7, 10**8 + 1, 2**32, 2**63, 2**64 - 1])
    return length.to_bytes(8, "little") + content[8:]


def shuffled(content: bytes, rng: Random, upto: int) -> bytes:
    """A part of the header in the place of another."""
    a, b = sorted(rng.randrange(8, upto) for _ in range(2))
    at = rng.randrange(8, upto)
    text = content[8:at] + content[a:b] + content[at:upto]
    return packed(text, content[upto:])


def edited(content: bytes, rng: Random, upto: int) -> bytes:
    tree = json.loads(content[8:upto])
    for _ in range(rng.randrange(1, 3)):
        edit(tree, rng)
    return packed(dumped(tree, rng), content[upto:])


def edit(tree: Tree, rng: Random) -> None:
    name = rng.choice(list(tree))
    inner = tree[name]
    match rng.randrange(6):
        case 0:
            tree[name] = rng.choice(NASTY)
        case 1:
            tree[str(rng.choice(NASTY))] = tree.pop(name)
        case 2:
            tree[f"{name}2"] = tree[name]
        case 3 if isinstance(inner, dict) and inner:
            del inner[rng.choice(list(inner))]
        case 4 if isinstance(inner, dict) and inner:
            inner[rng.choice(list(inner))] = rng.choice(NASTY)
        case _ if isinstance(inner, dict):
            field = inner.get(rng.choice(["shape", "data_offsets"]))
            if isinstance(field, list) and field:
                numbers = [*NASTY, *(number + rng.randrange(-9, 9) for number in (0, 8, 24, 32))]
                field[rng.randrange(len(field))] = rng.choice(numbers)


MUTATIONS: list[Callable[[bytes, Random, int], bytes]] = [flipped, cut, stretched, shuffled, edited]


def mutate_headers(folder: Path, n: int) -> tuple[int, int]:
    """Open `n` damaged files; how many of them loaded, and how many were refused."""
    header = {"__metadata__": {"format": "pt"}, **GOOD, "c": entry("BOOL", [0], 32, 32)}
    whole = packed(header, DATA)
    upto = len(whole) - len(DATA)
    file = folder / "model.safetensors"
    loaded = 0
    for seed in range(n):
        rng = Random(seed)
        mutation = rng.choice([*MUTATIONS, edited, edited])
        file.write_bytes(mutation(whole, rng, upto))
        try:
            with opened_files() as opened:
                weights = Weights.open(folder)
        except InputError as error:
            message = str(error)
        else:
            same(weights, load_file(file))
            message = str(file)
            loaded += 1
        assert str(file) in message
        assert len(message) < 1000 + len(str(file))
        assert set(opened) <= {str(file)}
    return loaded, n - loaded


@pytest.mark.parametrize("n", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_headers_are_refused_or_mean_what_they_say(tmp_path: Path, n: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loaded, not_loaded = mutate_headers(tmp_path, n)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert loaded > n // 100, "some mutations are harmless"
    assert not_loaded > n // 2
    assert grown < 100 * 1024, f"{grown} KiB"


def test_any_bytes_are_refused_with_an_input_error(tmp_path: Path) -> None:
    rng = Random(0)
    for _ in range(200):
        refused(tmp_path, rng.randbytes(rng.randrange(100)))
        refused(tmp_path, packed(rng.randbytes(rng.randrange(100))))


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
