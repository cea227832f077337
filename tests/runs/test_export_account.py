"""What is around the weights is carried by an export, or named and written next to it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers
from tests.runs.every_kind import say_of_use
from tests.runs.recipes.test_starting_model import GPT2_PARTS
from tests.runs.tiny import train_tiny

from addnorm.data import AudioConfig, ImageFilesConfig
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.generate import SampleConfig
from addnorm.models import EncoderConfig
from addnorm.nn.heads import ClassificationHeadConfig
from addnorm.nn.patches import PatchEmbeddingConfig
from addnorm.nn.token_ahead import MultiTokenConfig
from addnorm.runs.export import export_run
from addnorm.runs.export_account import CARRIES, Form, exported_template, facts_of, rest_of
from addnorm.runs.files.folder import AROUND
from addnorm.runs.recipes.chat_template import naming
from addnorm.runs.run import Run

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SETTINGS = {"do_sample": True, "temperature": 0.5, "top_k": 3, "bad_words_ids": [[40]]}
FORMS: tuple[Form, ...] = ("hf", "gguf", "ctranslate2", "onnx")
ENDS = [2, 31, 32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model for transformers with all that may be around one."""
    folder = tmp_path_factory.mktemp("account")
    parts = {"model.feedforward": "{kind = 'mlp', d_ff = 32, activation = 'gelu_tanh'}"}
    bpe = {"tokenizer": "{kind = 'bpe', vocab_size = 300}", "model.d_model": "32"}
    run = Run.open(train_tiny(folder, "language", **GPT2_PARTS | parts | bpe))
    export_run(run, folder / "hf", to="hf")
    _change(folder / "hf" / "generation_config.json", eos_token_id=ENDS, **SETTINGS)
    _change(folder / "hf" / "tokenizer_config.json", split_special_tokens=False)
    (folder / "hf" / "chat_template.jinja").write_text(TEMPLATE)
    return folder / "hf"


def _change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def _hf(out: Path) -> dict[str, Any]:
    settings = transformers.GenerationConfig.from_pretrained(out)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    return {
        "start token": settings.bos_token_id,
        "end tokens": settings.eos_token_id,
        "padding token": settings.pad_token_id,
        "suppressed tokens": settings.bad_words_ids,
        "decoding": (settings.do_sample, settings.temperature, settings.top_k),
        "chat template": tokenizer.chat_template,
        "maximum length": transformers.AutoConfig.from_pretrained(out).max_position_embeddings,
        "tokenizer": tokenizer.decode(tokenizer("To be", add_special_tokens=False).input_ids),
    }


def _gguf(out: Path) -> dict[str, Any]:
    gguf = pytest.importorskip("gguf")
    fields = gguf.GGUFReader(out).fields
    ids = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    tokens = fields["tokenizer.ggml.tokens"].contents()
    return {
        "start token": fields["tokenizer.ggml.bos_token_id"].contents(),
        "end tokens": [fields[name].contents() for name in ids if name in fields],
        "padding token": fields["tokenizer.ggml.padding_token_id"].contents(),
        "chat template": fields["tokenizer.chat_template"].contents(),
        "maximum length": fields["gpt2.context_length"].contents(),
        "tokenizer": "To be" if "be" in tokens or "e" in tokens else "",
    }


def _ctranslate2(out: Path) -> dict[str, Any]:
    ctranslate2 = pytest.importorskip("ctranslate2")
    tokenizers = pytest.importorskip("tokenizers")
    ctranslate2.Generator(str(out))
    config = json.loads((out / "config.json").read_text())
    inner = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    return {
        "start token": inner.token_to_id(config["bos_token"]),
        "end tokens": inner.token_to_id(config["eos_token"]),
        "chat template": (out / "chat_template.jinja").read_text(),
        "tokenizer": inner.decode(inner.encode("To be").ids),
    }


READERS: dict[Form, Callable[[Path], dict[str, Any]]] = {
    "hf": _hf,
    "gguf": _gguf,
    "ctranslate2": _ctranslate2,
    "onnx": lambda out: {},
}


def _account(out: Path, form: Form) -> dict[str, Any]:
    file = out / "export_account.json"
    file = out.parent / f"{out.name}.export_account.json" if form == "gguf" else file
    return json.loads(file.read_text())["not_carried"] if file.exists() else {}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_every_fact_is_carried_or_named(form: Form, folder: Path, tmp_path: Path) -> None:
    run = Run.open(folder)
    facts = facts_of(run)
    assert facts.keys() == {
        *("start token", "end tokens", "padding token", "suppressed tokens"),
        *("chat template", "decoding", "tokenizer", "maximum length"),
    }
    expected = facts | {"decoding": (True, 0.5, 3), "tokenizer": "To be"}
    assert facts["end tokens"] == ENDS
    out = tmp_path / ("out.gguf" if form == "gguf" else "out")
    said, left = export_run(run, out, to=form), _account(out, form)
    read = READERS[form](out)
    assert read.keys() | left.keys() == facts.keys()
    for name, value in read.items():
        if name not in left:
            assert value == expected[name], name
    for name, value in left.items():
        assert json.loads(json.dumps(facts[name])) == value
        assert any(name in line for line in said)
    assert read.keys() == CARRIES[form] & facts.keys()
    if form == "ctranslate2":
        assert (read["end tokens"], left["end tokens"]) == (ENDS[0], ENDS)
    assert bool(left) == (form != "hf")
    export_run(replace(run), out, to=form)
    assert _account(out, form) == left


@pytest.mark.parametrize("form", FORMS)
def test_all_but_a_few_ends_are_left(form: Form) -> None:
    facts = {"end tokens": [1, 2, 3, 4]}
    assert rest_of(form, facts) == ({} if form == "hf" else facts)
    assert rest_of(form, {"end tokens": 1}) == ({"end tokens": 1} if form == "onnx" else {})


def test_an_account_that_says_nothing_is_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = Run.open(train_tiny(folder, "language", **GPT2_PARTS))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "export_account.json").write_text("{}")
    replaced, _ = export_run(run, tmp_path / "out", to="hf")
    assert "was there already" in replaced
    assert not (tmp_path / "out" / "export_account.json").exists()
    settings = SampleConfig(seed=3, temperature=0.5)
    recipe = replace(run.recipe, eval=replace(run.recipe.eval, decoding=settings))
    assert facts_of(replace(run, recipe=recipe))["decoding"]["temperature"] == 0.5


def test_a_folder_without_a_tokenizer_keeps_its_ids(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (bare / name).write_bytes((folder / name).read_bytes())
    _change(bare / "generation_config.json", bos_token_id=5, pad_token_id=7)
    run = Run.open(bare)
    assert run.text is None
    export_run(run, tmp_path / "out", to="hf")
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (theirs.bos_token_id, theirs.pad_token_id, theirs.eos_token_id) == (5, 7, ENDS)
    assert (theirs.temperature, theirs.bad_words_ids) == (0.5, [[40]])
    for form in ("gguf", "ctranslate2"):
        with pytest.raises(InputError):
            export_run(run, tmp_path / form, to=form)  # type: ignore[arg-type]


def test_classes_and_scales_are_in_the_account(tmp_path: Path) -> None:
    """A graph gives numbers: what they mean is next to it."""
    run = Run.open(train_tiny(tmp_path, "classification"))
    scaling = Scaling(mean=(1.0,), deviation=(2.0,))
    facts = facts_of(replace(run, scaling=scaling, variables=("load",)))
    assert facts["labels"] == list(run.labels)
    rest = json.loads(json.dumps(rest_of("onnx", facts)))
    assert rest.keys() == {"labels", "scaling", "variables", "tokenizer", "maximum length"}
    assert rest_of("hf", facts).keys() == {"scaling", "variables"}


def test_parts_outside_a_forward_pass_are_in_the_account(tmp_path: Path) -> None:
    run = Run.open(train_tiny(tmp_path, "language"))
    for field, fact, value in (
        ({"mtp": MultiTokenConfig(depth=2)}, "multi-token prediction", 2),
        ({"exits": (1,), "n_layers": 2}, "early exits", [1]),
    ):
        model = replace(run.recipe.model, **field)
        facts = facts_of(replace(run, recipe=replace(run.recipe, model=model)))
        for form in FORMS:
            assert rest_of(form, facts).get(fact) == (None if form == "hf" else value)


FACTS = {
    "*tokenizer.json": "tokenizer",
    "*tokenizer.ids.json": "tokenizer",
    "*tokenizer.sample.json": "tokenizer",
    "labels.json": "labels",
    "scaling.json": "scaling",
    "variables.json": "variables",
    "chat_template.jinja": "chat template",
    "modules.json": "sentence-transformers modules",
    "sentence_bert_config.json": "reading of sentences",
    "config_sentence_transformers.json": "prompts",
    "tokenizer_config.json": "reading of sentences",
    "preprocessor_config.json": "preprocessing",
    "processor_config.json": "preprocessing",
    "generation_config.json": "language and task",
}
"""The fact that each file around the weights becomes; of the others, the weights themselves."""


def test_every_file_around_the_weights_is_a_fact_of_the_account() -> None:
    assert FACTS.keys() == {*AROUND} - {"config.json", "quantization.json"}


def test_how_texts_become_vectors_is_in_the_account(tmp_path: Path) -> None:
    """A graph of hidden states: how they are pooled, and where texts are cut, is next to it."""
    folder = train_tiny(tmp_path, "classification")
    say_of_use(folder)
    (folder / "digests.json").unlink()
    facts = facts_of(Run.open(folder))
    assert facts["sentence-transformers modules"][1]["config"]["pooling_mode"] == "cls"
    assert facts["reading of sentences"] == {
        "model_max_length": 3,
        "max_seq_length": 3,
        "do_lower_case": True,
    }
    assert facts["prompts"]["prompts"] == {"q": "a day "}
    assert rest_of("onnx", facts) == facts
    assert rest_of("hf", facts) == {}


def test_how_our_own_data_are_read_is_in_the_account(tmp_path: Path) -> None:
    """A graph of pictures takes numbers from -1 to 1, and one of sound the features of frames."""
    plain = Run.open(train_tiny(tmp_path, "classification"))
    patches = PatchEmbeddingConfig(size=(8, 8), channels=1, patch=4)
    model = EncoderConfig(d_model=8, n_layers=1, input=patches, head=ClassificationHeadConfig())
    pictures = ImageFilesConfig(train="train", image_size=(8, 8), channels=1)
    sound = AudioConfig(train="train", n_mels=20, sample_rate=8000)
    for data, keys in (
        (pictures, {"image_size": (8, 8), "channels": 1, "image_mean": 0.5, "image_std": 0.5}),
        (sound, {"sample_rate": 8000, "n_mels": 20}),
    ):
        run = replace(plain, recipe=replace(plain.recipe, data=data, model=model), text=None)
        facts = facts_of(run)
        assert keys.items() <= facts["preprocessing of the data"].items()
        for form in FORMS:
            assert "preprocessing of the data" in rest_of(form, facts)


NAMING = "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}"


@pytest.mark.long
@pytest.mark.parametrize("start", ["", "\n", "\n\n", "  "])
@pytest.mark.parametrize(
    "names",
    [
        {"bos_token": "<bos>", "eos_token": "<eos>"},
        {"bos_token": "<bos>", "eos_token": 'é"'},
        {"eos_token": "<|end|>", "pad_token": "<pad>"},
        {},
    ],
)
def test_a_template_keeps_the_names_of_the_tokenizer(
    start: str, names: dict[str, str], folder: Path
) -> None:
    """A runtime that has only ids of generation renders what the tokenizer's names render."""
    jinja = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    text = Run.open(folder).tokenizers
    named = Tokenizers(text.source, text.target.named(names, None))
    ids = {"bos_token": text.target.bos_id, "eos_token": ENDS[0]}
    theirs = {key: text.target.codec.name(i) for key, i in ids.items()}
    told = [{"role": "user", "content": "To be"}]
    expected = jinja.from_string(start + NAMING).render(messages=told, **names)
    found = jinja.from_string(naming(start + NAMING, named)).render(messages=told, **theirs)
    assert found == expected
    assert naming("{{ messages }}", named) == "{{ messages }}"


@pytest.mark.long
def test_a_template_says_what_transformers_says(folder: Path, tmp_path: Path) -> None:
    """The end of generation is another token than the tokenizer's."""
    hf = tmp_path / "hf"
    shutil.copytree(folder, hf)
    (hf / "chat_template.jinja").write_text(NAMING)
    told = [{"role": "user", "content": "To be"}]
    run = Run.open(hf)
    theirs = transformers.AutoTokenizer.from_pretrained(hf)
    found = exported_template(run)
    assert found is not None
    name = run.tokenizers.target.codec.name
    ids = {"bos_token": name(run.tokenizers.target.bos_id), "eos_token": name(ENDS[0])}
    rendered = jinja2.Template(found).render(messages=told, **ids)
    assert rendered == theirs.apply_chat_template(told, tokenize=False) == "<bos>To be<eos>"
    pytest.importorskip("gguf")
    export_run(run, tmp_path / "out.gguf", to="gguf")
    assert _gguf(tmp_path / "out.gguf")["chat template"] == found
