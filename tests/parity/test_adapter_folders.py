"""An adapter's folder is used as its base's is: beside PEFT and sentence-transformers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import tokenizers
import torch
import transformers
from tests.runs.tiny import CLASSIFICATION, train_text, write_corpora
from tokenizers import models, pre_tokenizers, processors
from torch.testing import assert_close

from addnorm.cli.main import status
from addnorm.convert.core.modules import places_of
from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.runs.inference.chat import chat_prompt
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*HfFolder|.*_check_is_size|.*:DeprecationWarning"),
]

SAID = "[PAD] [UNK] [CLS] [SEP] a the day night is fine wet cold : ? ! user bot query"
WORDS = {word: i for i, word in enumerate(SAID.split())}
TEXTS = ["a fine day", "The NIGHT is cold ! " * 8, "wet"]
ASKED = [{"role": "user", "content": "is the night wet ?"}]
TEMPLATE = "{% for m in messages %}{{ m.role }} : {{ m.content }} ! {% endfor %}"


def tokenizer(*, wrapped: bool) -> Any:
    inner = tokenizers.Tokenizer(models.WordLevel(WORDS, "[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if wrapped:
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if wrapped else {"bos_token": "[CLS]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[SEP]",
        model_max_length=64,
        **names,
    )


def sentences(folder: Path, *, inside: str = "") -> Path:
    """A folder of sentence-transformers: cls, Normalize, 16 tokens, lower case and a prompt."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
    )
    model = transformers.BertModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder / inside)
    tokenizer(wrapped=True).save_pretrained(folder / inside)
    kinds = [(inside, "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    trees: dict[str, Any] = {
        "modules.json": listed,
        "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_cls_token": True},
        f"{inside or '.'}/sentence_bert_config.json": {
            "max_seq_length": 16,
            "do_lower_case": True,
        },
        "config_sentence_transformers.json": {
            "prompts": {"q": "query : "},
            "default_prompt_name": "q",
        },
    }
    for name, tree in trees.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(tree))
    (folder / "2_Normalize").mkdir()
    return folder


def chats(folder: Path) -> Path:
    """A language model that chats, samples and ends in two ways."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(wrapped=False).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    generation = {"do_sample": True, "temperature": 0.5, "top_k": 3, "eos_token_id": [3, 14]}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def adapter_of(base: Path, folder: Path) -> Path:
    """An adapter of PEFT's that changes the outputs, whose folder has nothing else."""
    kind = (
        transformers.AutoModelForCausalLM
        if (base / "chat_template.jinja").exists()
        else transformers.AutoModel
    )
    targets = ["q_proj"] if kind is transformers.AutoModelForCausalLM else ["query", "value"]
    inner = base / "0_Transformer" if (base / "0_Transformer").is_dir() else base
    torch.manual_seed(1)
    model = peft.get_peft_model(
        kind.from_pretrained(inner),
        peft.LoraConfig(target_modules=targets, init_lora_weights=False),
    )
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(base)})
    )
    return folder


def vectors(folder: Path, adapter: Path | None = None) -> torch.Tensor:
    """What sentence-transformers gives, with PEFT's adapter in its first module."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu")
    if adapter is not None:
        first: Any = model[0]
        changed = peft.PeftModel.from_pretrained(first.auto_model, str(adapter))
        first.auto_model = changed.merge_and_unload()
    return model.encode(TEXTS, convert_to_tensor=True)


@pytest.mark.long
@pytest.mark.parametrize("inside", ["", "0_Transformer"])
def test_vectors_through_an_adapter(inside: str, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    base = sentences(tmp_path / "base", inside=inside)
    folder = adapter_of(base, tmp_path / "adapter")
    expected = vectors(base, folder)
    assert float((expected - vectors(base)).abs().max()) > 1e-2
    run = Run.open(folder)
    assert_close(run.embed(TEXTS), expected, rtol=0, atol=2e-6)
    assert_close(run.embed(TEXTS).norm(dim=-1), torch.ones(len(TEXTS)))
    assert_close(run.save(tmp_path / "saved").embed(TEXTS), expected, rtol=0, atol=2e-6)
    assert_close(Run.open(tmp_path / "saved").embed(TEXTS), expected, rtol=0, atol=2e-6)
    assert status(["merge", str(folder), "--out", str(tmp_path / "merged")]) == 0
    assert_close(Run.open(tmp_path / "merged").embed(TEXTS), expected, rtol=0, atol=2e-6)
    run.export(tmp_path / "hf")
    assert_close(vectors(tmp_path / "hf"), expected, rtol=0, atol=2e-6)
    assert_close(Run.open(tmp_path / "hf").embed(TEXTS), expected, rtol=0, atol=2e-6)


@pytest.mark.long
def test_vectors_of_a_run_that_began_with_them(tmp_path: Path) -> None:
    """Trained whole or by an adapter, saved or as training left it, in memory or in a folder."""
    base = sentences(tmp_path / "base")
    write_corpora(tmp_path)
    text = CLASSIFICATION.replace('[tokenizer]\nkind = "word"\n', "").replace("d_model = 16\n", "")
    text = text[: text.index("[model]")] + '[model]\nhead = { kind = "classification" }\n\n' + (
        text[text.index("[train]") :].replace("[train]", f'[train]\nstart = "{base}"')
    )  # fmt: skip
    for name, more in {"whole": "", "adapted": 'adapter = { kind = "lora", rank = 2 }\n'}.items():
        trained = train_text(tmp_path, name, text.replace("start =", f"{more}start ="))
        opened = Run.open(tmp_path / name)
        hidden = torch.stack(
            [opened.hidden_states(f"query : {t}".lower())[0] for t in ("wet", "a")]
        )
        expected = torch.nn.functional.normalize(hidden, dim=-1)
        for run in (trained, opened, opened.save(tmp_path / f"{name}-saved")):
            assert_close(run.embed(["WET", "A"]), expected, rtol=0, atol=1e-5)
        shutil.rmtree(tmp_path / name / "1_Pooling")
        (tmp_path / name / "modules.json").unlink()
        if more:  # as a folder of an earlier version, which has the base's files there alone
            assert_close(Run.open(tmp_path / name).embed(["WET", "A"]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("place", ["file", "settings"])
def test_chat_through_an_adapter(place: str, tmp_path: Path) -> None:
    base = chats(tmp_path / "base")
    folder = adapter_of(base, tmp_path / "adapter")
    if place == "settings":
        file = base / "tokenizer_config.json"
        (base / "chat_template.jinja").unlink()
        file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TEMPLATE}))
    theirs = transformers.AutoTokenizer.from_pretrained(base)
    expected = theirs.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    run = Run.open(folder)
    assert chat_prompt(run, ASKED) == expected
    assert run.recipe.eval.decoding == Run.open(base).recipe.eval.decoding
    assert run.tokenizers.source.eos_ids == (3, 14)
    assert run.save(tmp_path / "saved").chat(ASKED, beams=1) == run.chat(ASKED, beams=1)
    assert Run.open(tmp_path / "saved").chat(ASKED, beams=1) == run.chat(ASKED, beams=1)
    run.export(tmp_path / "hf")
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    found = exported.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    assert found == expected
    assert run.generate("a fine", beams=4) == Run.open(tmp_path / "hf").generate("a fine", beams=4)


def _rewritten(file: Path, base: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads((base / file.name).read_text()) | changes))


def _other_tokenizer(folder: Path, base: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"fine"', '"swap"').replace('"wet"', '"fine"'))


def _other_modules(folder: Path, base: Path) -> None:
    shutil.copytree(base / "1_Pooling", folder / "1_Pooling")
    listed = json.loads((base / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(listed[:2]))


OTHERS: dict[str, Callable[[Path, Path], object]] = {
    "a tokenizer": _other_tokenizer,
    "modules": _other_modules,
    "limits of texts": lambda folder, base: _rewritten(
        folder / "sentence_bert_config.json", base, max_seq_length=5
    ),
    "prompts": lambda folder, base: _rewritten(
        folder / "config_sentence_transformers.json", base, default_prompt_name=None
    ),
    "a template": lambda folder, base: (folder / "chat_template.jinja").write_text("a wet day"),
    "generation": lambda folder, base: _rewritten(
        folder / "generation_config.json", base, top_k=2, eos_token_id=14
    ),
}
OF_CHATS = ("a tokenizer", "a template", "generation")


@pytest.mark.long
@pytest.mark.parametrize("other", OTHERS)
def test_what_the_adapter_s_folder_has_comes_first(other: str, tmp_path: Path) -> None:
    """It is used as if the base had it, and the rest of the base stays as it is."""
    make = chats if other in OF_CHATS else sentences
    base = make(tmp_path / "base")
    folder, plain = (adapter_of(base, tmp_path / name) for name in ("adapter", "plain"))
    OTHERS[other](folder, base)
    found = used(Run.open(folder))
    assert found != used(Run.open(plain))
    skipped = shutil.ignore_patterns("adapter_*")
    shutil.copytree(folder, base, ignore=skipped, dirs_exist_ok=True)
    assert found == used(Run.open(plain))


def used(run: Run) -> object:
    """What comes of a run."""
    if isinstance(run.model, DecoderModel):
        chat = chat_prompt(run, ASKED)
        decoding, ends = run.recipe.eval.decoding, run.tokenizers.source.eos_ids
        return chat, decoding, ends, run.generate("a fine wet day", max_new_tokens=5)
    return run.embed(TEXTS).tolist()


@pytest.mark.long
def test_an_adapter_of_an_adapter(tmp_path: Path) -> None:
    """What is in neither folder is looked up in the base of the base."""
    base = chats(tmp_path / "base")
    inner = adapter_of(base, tmp_path / "inner")
    (tmp_path / "play.txt").write_text("a fine day\nthe night is wet\n" * 30)
    recipe = f"""
[data]
kind = "text"
train = "play.txt"
root = "{tmp_path}"

[train]
steps = 2
start = "{inner}"
adapter = {{ kind = "lora", rank = 2 }}
batching = {{ kind = "windows", batch_size = 2, seq_len = 8 }}
lr = 1e-2
"""
    run = train_text(tmp_path, "outer", recipe)
    opened = Run.open(tmp_path / "outer")
    assert all(torch.equal(w, run.weights[name]) for name, w in opened.weights.items())
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (tmp_path / "outer" / name).unlink(missing_ok=True)
    assert places_of(tmp_path / "outer") == (tmp_path / "outer", inner, base)
    for one in (run, opened):
        assert chat_prompt(one, ASKED) == chat_prompt(Run.open(base), ASKED)


def test_a_template_to_train_with_is_that_of_the_adapter_s_base(tmp_path: Path) -> None:
    folder = adapter_of(chats(tmp_path / "base"), tmp_path / "adapter")
    (tmp_path / "recipe.toml").write_text(f"""
[data]
kind = "chat"
train = "talk.jsonl"

[train]
steps = 2
start = "{folder}"
batching = {{ kind = "tokens", tokens = 400 }}
""")
    recipe = read_recipe(tmp_path / "recipe.toml")
    assert recipe.data is not None
    assert recipe.data.template == TEMPLATE


@pytest.mark.long
def test_a_base_that_is_missing_or_the_adapter_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = chats(tmp_path / "base")
    folder = adapter_of(base, tmp_path / "adapter")
    assert status(["info", str(folder)]) == 0
    assert f"adapter of  {base}".replace(" ", "") in "".join(capsys.readouterr().out.split())
    file = folder / "adapter_config.json"
    told = json.loads(file.read_text())
    for other, expected in {
        str(folder): "the base of this adapter leads back to it",
        str(tmp_path / "away"): "is not a folder",
    }.items():
        file.write_text(json.dumps(told | {"base_model_name_or_path": other}))
        with pytest.raises(InputError, match=expected):
            Run.open(folder)
        for command in (["info"], ["generate", "--prompt", "a"]):
            assert status([command[0], str(folder), *command[1:]]) == 2
            assert expected in capsys.readouterr().err
