"""Keys of `tokenizer_config.json` next to `tokenizer.json`: ids and types of transformers."""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.contracts import combined
from tests.convert import vocabularies
from tokenizers import Tokenizer as Library
from transformers.models.auto.tokenization_auto import (
    MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
    TOKENIZER_MAPPING_NAMES,
)

from addnorm.convert.core.family import Family
from addnorm.convert.families import FAMILIES
from addnorm.convert.tokenizers.classes import GENERIC, OF_MODEL, OVERRULED
from addnorm.convert.tokenizers.files import load_tokenizers, save_tokenizer, special_ids
from addnorm.data.ids.framing import encode_pairs
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import IgnoredSettings, InputError

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]

Keys = dict[str, Any]
TEXTS = [
    "the cat sat on the Mat",
    "Äpfel, Éte\u0301 und Katze's, x\u0301y हिन्दी",
    "猫はマット wizards",
    " two  spaces\nand a line ",
    "a\u200bb x\x7fy 1234",
    "",
]
PAIRS = [("the cat", "on the Mat"), ("x", " Katze"), ("", "rose")]

KINDS: dict[str, tuple[str, str]] = {
    "bert": ("bert", "BertTokenizer"),
    "distilbert": ("distilbert", "DistilBertTokenizer"),
    "roberta": ("roberta", "RobertaTokenizer"),
    "bart": ("roberta", "BartTokenizer"),
    "gpt2": ("gpt2", "GPT2Tokenizer"),
    "opt": ("roberta", "GPT2Tokenizer"),
    "gpt_neox": ("gpt2", "GPTNeoXTokenizer"),
    "qwen2": ("gpt2", "Qwen2Tokenizer"),
    "qwen3": ("gpt2", "Qwen2Tokenizer"),
    "qwen3_5": ("gpt2", "Qwen3_5Tokenizer"),
    "llama": ("llama", "LlamaTokenizer"),
    "mistral": ("llama", "LlamaTokenizer"),
    "gemma2": ("llama", "GemmaTokenizer"),
    "t5": ("t5", "T5Tokenizer"),
    "xlm-roberta": ("xlm_roberta", "XLMRobertaTokenizer"),
    "camembert": ("camembert", "CamembertTokenizer"),
    "modernbert": ("gpt2", "PreTrainedTokenizerFast"),
    "whisper": ("gpt2", "WhisperTokenizer"),
}
"""Of each model type: whose vocabulary it has here, and the class that transformers saves."""

SETTINGS: dict[str, Keys] = {
    "nothing": {},
    "lower": {"do_lower_case": True},
    "not lower": {"do_lower_case": False},
    "accents": {"do_lower_case": False, "strip_accents": True},
    "accents stay": {"strip_accents": False},
    "chinese": {"tokenize_chinese_chars": False},
    "space": {"add_prefix_space": True},
    "no space": {"add_prefix_space": False},
    "legacy": {"legacy": True},
    "not legacy": {"legacy": False},
    "start": {"add_bos_token": True},
    "both": {"add_bos_token": True, "add_eos_token": True},
    "neither": {"add_bos_token": False, "add_eos_token": False},
    "types": {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    "no types": {"model_input_names": ["input_ids", "attention_mask"]},
    "length": {"model_max_length": 5, "max_length": 4},
    "left": {"padding_side": "left", "truncation_side": "left"},
    "clean": {"clean_up_tokenization_spaces": True},
    "prompt": {"use_default_system_prompt": True, "errors": "strict", "trim_offsets": False},
    "names": {"eos_token": "q", "cls_token": "j", "sep_token": "q", "bos_token": "j"},
    "null": {"bos_token": None, "pad_token": None},
    "extra": {"additional_special_tokens": ["q"], "image_token": "j"},
}
NAMED = ("its own", "fast", "none", "generic", "another", "unknown")
OTHERS = {
    "bert": "ElectraTokenizerFast",
    "distilbert": "BertTokenizer",
    "roberta": "GPT2TokenizerFast",
    "bart": "GPT2Tokenizer",
    "gpt2": "Qwen2Tokenizer",
    "opt": "RobertaTokenizer",
    "gpt_neox": "GPT2Tokenizer",
    "qwen2": "GPT2Tokenizer",
    "qwen3": "GPTNeoXTokenizerFast",
    "qwen3_5": "Qwen2Tokenizer",
    "llama": "GemmaTokenizer",
    "mistral": "GemmaTokenizer",
    "gemma2": "LlamaTokenizerFast",
    "t5": "MT5TokenizerFast",
    "xlm-roberta": "CamembertTokenizerFast",
    "camembert": "XLMRobertaTokenizer",
    "modernbert": "GPT2Tokenizer",
    "whisper": "GPT2Tokenizer",
}


@cache
def _vocabulary(kind: str, root: Path) -> Path:
    """A folder with the first files of a kind, and `tokenizer.json` of these."""
    make = getattr(vocabularies, kind)
    folder = root / f"first-{kind}"
    make(folder) if kind in ("llama", "marian") else (folder.mkdir(), make(folder))
    loaded = load_tokenizers(folder, kind.replace("_", "-"), {})
    assert loaded is not None
    loaded.source.inner.encode_special_tokens = False
    loaded.source.inner.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


def write(folder: Path, root: Path, kind: str, named: str, settings: Keys) -> None:
    """A folder of a model type with `tokenizer.json` and these settings."""
    whose, usual = KINDS[kind]
    source = _vocabulary(whose, root) / "tokenizer.json"
    (folder / "tokenizer.json").write_bytes(source.read_bytes())
    classes = {
        "its own": usual,
        "fast": f"{usual}Fast",
        "generic": "PreTrainedTokenizerFast",
        "another": OTHERS[kind],
        "unknown": "OfAStrangerTokenizer",
    }
    known = {"tokenizer_class": classes[named]} if named in classes else {}
    vocabularies.write(folder, config={"model_type": kind}, tokenizer_config=known | settings)


def both(folder: Path) -> tuple[Tokenizers, Any]:
    config = json.loads((folder / "config.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredSettings)
        ours = load_tokenizers(folder, config["model_type"], config)
    assert ours is not None
    return ours, transformers.AutoTokenizer.from_pretrained(folder)


def check(ours: Tokenizers, theirs: Any) -> None:
    """Single texts, pairs with their types, and batches are the same."""
    one = ours.source
    plain = {"split_special_tokens": True}
    assert one.before is not None
    assert one.after is not None
    for text in TEXTS:
        ids = [*one.before, *one.encode(text), *one.after]
        assert ids == theirs(text, **plain)["input_ids"], text
    for pair, (ids, types, *_) in zip(PAIRS, encode_pairs(one, PAIRS), strict=True):
        if not pair[0]:  # an empty first text is read as a single one there
            continue
        found = theirs(*pair, **plain)
        assert ids == found["input_ids"], pair
        assert types == found.get("token_type_ids", [0] * len(ids)), pair


@pytest.mark.long
@pytest.mark.parametrize(("kind", "named"), combined(KINDS, NAMED))
def test_every_key_of_every_class(kind: str, named: str, tmp_path: Path, root: Path) -> None:
    if kind == "whisper" and named in ("its own", "fast", "none"):
        pytest.skip("its class needs the languages of Whisper")
    wrong: list[str] = []
    for name, settings in SETTINGS.items():
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        write(folder, root, kind, named, settings)
        try:
            ours, theirs = both(folder)
        except TypeError:  # a token that is null there, where its class needs one
            assert name == "null"
            continue
        try:
            check(ours, theirs)
            assert ours.source.names == theirs.special_tokens_map
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.model_type)
def test_every_family_is_read_by_the_class_of_transformers(family: Family) -> None:
    """Whatever class a folder names: a generic one where the type has a generic one."""
    kind = family.model_type
    registered = TOKENIZER_MAPPING_NAMES.get(kind)
    if registered is not None:
        assert OF_MODEL.get(kind, GENERIC) == registered.removesuffix("Fast")
    if OF_MODEL.get(kind, GENERIC) != GENERIC:
        assert (kind in OVERRULED) == (kind in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS)


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("bert", {"truncation_side": "left"}, "truncation_side = left (a text is shortened"),
        ("bert", {"padding_side": "left"}, "padding_side = left (padding has no effect"),
        ("gpt2", {"tokenizer_class": "AlbertTokenizer"}, "tokenizer_class = AlbertTokenizer ("),
        ("gpt2", {"tokenizer_class": "BertTokenizer"}, "tokenizer_class = BertTokenizer ("),
        ("t5", {"clean_up_tokenization_spaces": True}, "clean_up_tokenization_spaces = True ("),
        ("whisper", {"language": "de"}, "language = de (the file decides)"),
        (
            "gpt2",
            {"split_special_tokens": True, "chat_template": "x"},
            "split_special_tokens = True (those of a chat template are parsed)",
        ),
        ("bert", {"auto_map": {"AutoTokenizer": "x.y"}}, "auto_map = {"),
    ],
)
def test_ignored_settings_are_named(
    kind: str, settings: Keys, named: str, tmp_path: Path, root: Path
) -> None:
    write(tmp_path, root, kind, "none", settings)
    with pytest.warns(IgnoredSettings) as told:
        load_tokenizers(tmp_path, kind, {"model_type": kind})
    [message] = [str(one.message) for one in told]
    assert f"not followed: {named}" in message


@pytest.mark.parametrize("kind", KINDS)
def test_usual_settings_give_no_warning(kind: str, tmp_path: Path, root: Path) -> None:
    usual = {
        "truncation_side": "right",
        "split_special_tokens": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "padding_side": "left" if kind in ("llama", "gemma2", "gpt2") else "right",
    }
    write(tmp_path, root, kind, "none", usual)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tokenizers(tmp_path, kind, {"model_type": kind})


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_keeps_the_names_of_the_tokenizer(kind: str, tmp_path: Path, root: Path) -> None:
    """And not the ids of generation under these names; read here and there as before."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    settings = {"eos_token": "q", "image_token": "j", "pad_token": None}
    write(folder, root, kind, "generic", settings)
    vocabularies.write(folder, generation_config={"eos_token_id": [5, 6], "bos_token_id": 7})
    ours, theirs = both(folder)
    vocabularies.write(out, config={"model_type": kind, **special_ids(ours, kind)})
    save_tokenizer(out, ours, model_type=kind, max_len=77)
    again, other = both(out)
    assert other.special_tokens_map == theirs.special_tokens_map == again.source.names
    assert again.source.eos_ids == ours.source.eos_ids == (5, 6)
    assert again.source.bos_id == ours.source.bos_id == 7
    assert again.source.end_id == ours.source.end_id == other.eos_token_id
    check(again, other)
    ours.source.save(tmp_path / "tokenizer.json")
    saved = Tokenizer.load(tmp_path / "tokenizer.json")
    for name in ("names", "end_id", "eos_ids", "bos_id"):
        assert getattr(saved, name) == getattr(ours.source, name), name


def test_a_class_that_changes_an_exported_tokenizer_is_named(tmp_path: Path, root: Path) -> None:
    """Transformers reads every Qwen2 folder by one class."""
    write(tmp_path, root, "gpt2", "none", {})
    ours, _ = both(tmp_path)
    with pytest.warns(IgnoredSettings, match=r"every qwen2 folder as Qwen2Tokenizer"):
        save_tokenizer(tmp_path / "qwen2", ours, model_type="qwen2", max_len=9)
    save_tokenizer(tmp_path / "qwen3", ours, model_type="qwen3", max_len=9)
    write(tmp_path, root, "qwen2", "none", {})
    ours, _ = both(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_tokenizer(tmp_path / "again", ours, model_type="qwen2", max_len=9)


@pytest.mark.parametrize("unknown", [None, "<unk>"])
def test_an_unknown_token_that_the_vocabulary_lacks(
    unknown: str | None, tmp_path: Path, root: Path
) -> None:
    """The file's own stays, whatever the settings name, and texts are read."""
    write(tmp_path, root, "bert", "its own", {"unk_token": unknown})
    config = {"model_type": "bert", "vocab_size": 400}
    ours = load_tokenizers(tmp_path, "bert", config)
    assert ours is not None
    assert ours.source.codec.name(ours.source.unk_id or 0) == "[UNK]"
    assert ours.source.encode("☃") == [ours.source.unk_id]


def test_new_tokens_have_the_ids_of_transformers(tmp_path: Path, root: Path) -> None:
    """They are added in the order of their roles, wherever the settings name them."""
    more = {"image_token": "<i>", "sep_token": "<sep>", "pad_token": "<p>", "bos_token": "<b>"}
    write(tmp_path, root, "llama", "generic", more | {"extra_special_tokens": ["<e>"]})
    vocabularies.write(tmp_path, config={"model_type": "llama", "vocab_size": 900})
    ours, theirs = both(tmp_path)
    names = [*more.values(), "<e>"]
    assert [ours.source.id_of(n) for n in names] == theirs.convert_tokens_to_ids(names)
    assert len({ours.source.id_of(n) for n in names}) == 5


def test_a_token_that_the_settings_do_not_list_is_named(tmp_path: Path, root: Path) -> None:
    """Classes that build their tokenizer take added tokens from the settings alone."""
    listed = {"0": {"content": "<|endoftext|>", "special": True}}
    write(tmp_path, root, "gpt2", "its own", {"added_tokens_decoder": listed})
    config = {"model_type": "gpt2"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tokenizers(tmp_path, "gpt2", config)
    file = tmp_path / "tokenizer.json"
    inner = Library.from_file(str(file))
    inner.add_tokens(["<new>"])
    inner.save(str(file))
    with pytest.warns(IgnoredSettings, match=r"added_tokens_decoder without <new>"):
        load_tokenizers(tmp_path, "gpt2", config)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_sentencepiece_model_alone(kind: str, tmp_path: Path) -> None:
    """Its names are those of its pieces; that a text begins with one, unlike there, is said."""
    vocabularies.llama(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    vocabularies.write(tmp_path, config={"model_type": kind})
    with pytest.warns(IgnoredSettings, match=r"add_bos_token is missing \(a text begins with <s>"):
        load_tokenizers(tmp_path, kind, {"model_type": kind})
    ours, theirs = both(tmp_path)
    assert dict(ours.source.names or {}) == theirs.special_tokens_map
    text = "the cat sat"
    assert ours.source.encode(text) == theirs(text)["input_ids"]
    assert theirs("a")["input_ids"][0] != 1 == (ours.source.before or (0,))[0]


@pytest.mark.parametrize("given", [{}, {"padding_side": "right"}], ids=["missing", "right"])
def test_padding_before_a_text_is_named_where_it_is_read(
    given: Keys, tmp_path: Path, root: Path
) -> None:
    """Texts of SigLIP are filled behind; the class of some folders pads before them."""
    write(tmp_path, root, "gemma2", "its own", given)
    config = {"model_type": "siglip"}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load_tokenizers(tmp_path, "siglip", config)
    assert [str(each.message).partition(": ")[2] for each in told] == (
        []
        if given
        else [
            "not followed: padding before a text, as GemmaTokenizer has it (this model reads it "
            "behind a text)"
        ]
    )


def test_siglip_is_that_of_transformers(tmp_path: Path) -> None:
    """Lower case, no punctuation and one space between words, before SentencePiece's own steps."""
    import sentencepiece

    corpus = iter(["a photo of two cats and many dogs", "the quick brown fox, it's 12 hello"] * 20)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=corpus,
        model_prefix=str(tmp_path / "first"),
        vocab_size=60,
        pad_id=-1,
        bos_id=-1,
        eos_id=1,
        unk_id=0,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    theirs = transformers.SiglipTokenizer(str(tmp_path / "first.model"))
    theirs.save_pretrained(tmp_path / "siglip")
    loaded = load_tokenizers(tmp_path / "siglip", "siglip", {})
    assert loaded is not None
    ours = loaded.source
    for text in (
        "A photo of  Two cats!",
        "it's (12) -- dogs_and\tcats.",
        " x ",
        "Ärger, 猫",
        "fox\n",
    ):
        ids = [*(ours.before or ()), *ours.encode(text), *(ours.after or ())]
        assert ids == theirs(text)["input_ids"], text
    assert ours.pad_id == theirs.pad_token_id == 1
    settings = tmp_path / "siglip" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": "left"}))
    with pytest.raises(InputError, match="this model reads the padding, which stands behind"):
        load_tokenizers(tmp_path / "siglip", "siglip", {})
