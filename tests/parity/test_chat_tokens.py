"""The ids of conversations: as `apply_chat_template` of transformers has them, in training too."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.contracts import combined
from tests.convert import vocabularies
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from addnorm.convert.tokenizers.files import load_tokenizers
from addnorm.data.conversation import conversation
from addnorm.data.ids.answers import ids_and_answers, prompt_ids, template_names
from addnorm.data.tokenizing.sides import encode_prompts
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import IgnoredSettings, InputError

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("default")]

Keys = dict[str, Any]
TALK = [
    {"role": "system", "content": "sys tem"},
    {"role": "user", "content": " the cat "},
    {"role": "assistant", "content": "sat on the mat"},
    {"role": "user", "content": "rose?\n\nis a"},
    {"role": "assistant", "content": " the rose"},
]
PROMPTS = (
    "the cat",
    "<|im_start|>user\nthe cat <|im_end|> sat<s>",
    "<s> rose</s>\n",
    " is a<think>",
)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ ' ' + m.content + ' ' + eos_token }}{% else %}[INST] {{ m.content }} [/INST]{% endif %}"
    "{% endfor %}"
)
NAMES = (
    "{% for name in [bos_token, eos_token, unk_token, pad_token, cls_token, sep_token, mask_token, "
    "image_token] %}{{ loop.index }}{{ name }}{% if name is not defined %}-{% endif %}{% endfor %}"
    "{{ 'im_end' in (eos_token or '') }}{% for m in messages %}{{ m.role }} {{ m.content }}"
    "{{ sep_token }}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "inst": INST, "names": NAMES}
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<|im_start|>", "<|im_end|>"]


def _byte_level(space: bool) -> Library:
    inner = Library(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    inner.decoder = decoders.ByteLevel()
    return inner


def _metaspace(scheme: Any) -> Library:
    inner = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    inner.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return inner


def _prepended() -> Library:
    inner = Library(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    inner.normalizer = normalizers.Sequence(steps)
    inner.decoder = decoders.Metaspace()
    return inner


def _lower() -> Library:
    inner = _byte_level(False)
    inner.normalizer = normalizers.Lowercase()
    return inner


PIPELINES = {
    "byte level": lambda: _byte_level(False),
    "byte level, space": lambda: _byte_level(True),
    "metaspace first": lambda: _metaspace("first"),
    "metaspace always": lambda: _metaspace("always"),
    "metaspace never": lambda: _metaspace("never"),
    "prepended": _prepended,
    "lower": _lower,
}
FLAGS: dict[str, Keys] = {
    "plain": {},
    "lstrip": {"lstrip": True},
    "rstrip": {"rstrip": True},
    "both": {"lstrip": True, "rstrip": True},
    "single word": {"single_word": True},
    "normalized": {"normalized": True},
    "all": {"lstrip": True, "rstrip": True, "single_word": True, "normalized": True},
}


def made(pipeline: str, flags: Keys) -> Library:
    """A tokenizer learnt on the usual texts, whose special tokens have these flags."""
    from tokenizers import trainers

    inner = PIPELINES[pipeline]()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if "byte" in pipeline else ["▁"]
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    inner.train_from_iterator([*vocabularies.TEXTS, "system user assistant INST [ ] / ?"], trainer)
    inner.add_special_tokens([AddedToken(n, **{"normalized": False, **flags}) for n in SPECIAL])
    inner.add_tokens([AddedToken("<think>", normalized=False)])
    return inner


def loaded(folder: Path, inner: Library, settings: Keys, **files: Keys) -> tuple[Tokenizer, Any]:
    """Ours and theirs of a folder with this tokenizer and these settings."""
    inner.save(str(folder / "tokenizer.json"))
    own = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    config = {"model_type": "llama", "vocab_size": 600, "bos_token_id": 0, "eos_token_id": 1}
    vocabularies.write(folder, config=config, tokenizer_config=own, **files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IgnoredSettings)
        ours = load_tokenizers(folder, "llama", config)
    assert ours is not None
    return ours.source, transformers.AutoTokenizer.from_pretrained(folder)


def check(ours: Tokenizer, theirs: Any, template: str) -> None:
    """Prompts and conversations to learn from have the same ids, and answers their tokens."""
    assert template_names(ours) == theirs.special_tokens_map

    def expected(messages: Any, prompt: bool) -> list[int]:
        return theirs.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=prompt, return_dict=False
        )

    for text in PROMPTS:
        assert encode_prompts(ours, [text]) == [theirs(text).input_ids]
        plain = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode_marked([text]) == [plain]
    for n in (1, 2, 4):
        assert prompt_ids(ours, TALK[:n], template) == expected(TALK[:n], True)
    if template is NAMES:
        return
    ids, answered = ids_and_answers(ours, conversation(TALK, template))
    assert ids == expected(TALK, False)
    said = ours.decode([i for i, one in zip(ids, answered, strict=True) if one])
    # A token over the border of a prompt is of the answer; an end in a word is no token.
    letters = "".join(said.split()).replace("<unk>", "")
    for border in ("<|im_end|>", "imend", "]"):
        letters = letters.replace(border, "")
    assert letters == "satonthemattherose"


@pytest.mark.parametrize(
    ("pipeline", "flags", "template"), combined(PIPELINES, FLAGS, ("chatml", "inst"))
)
def test_a_tokenizer_gets_the_whole_text(
    pipeline: str, flags: str, template: str, tmp_path: Path
) -> None:
    inner = made(pipeline, FLAGS[flags])
    settings = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}
    ours, theirs = loaded(tmp_path, inner, settings)
    check(ours, theirs, TEMPLATES[template])


def test_the_case_that_was_reported(tmp_path: Path) -> None:
    ours, _ = loaded(tmp_path, made("metaspace first", {}), {"eos_token": "<|im_end|>"})
    pieces = [ours.codec.name(i) for i in prompt_ids(ours, TALK[:1], CHATML)]
    assert "".join(map(str, pieces)).startswith("<|im_start|>system"), "no ▁ after a token"


SETTINGS: dict[str, Keys] = {
    "nothing": {},
    "all": {f"{name}_token": "<s>" for name in ("bos", "cls", "sep", "pad", "unk", "mask")},
    "another end": {"eos_token": "<|im_end|>", "bos_token": "<s>"},
    "no start": {"eos_token": "<|im_end|>"},
    "a null start": {"eos_token": "</s>", "bos_token": None},
    "objects": {
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": True},
        "pad_token": {"__type": "AddedToken", "content": "<pad>", "rstrip": True},
    },
    "a token of its own": {"image_token": "<pad>", "eos_token": "</s>"},
    "extra by name": {"extra_special_tokens": {"image_token": "<pad>"}, "eos_token": "</s>"},
    "extra": {"additional_special_tokens": ["<|im_start|>"], "eos_token": "</s>"},
    "extra, new": {"additional_special_tokens": ["<|new|>"], "sep_token": "<|sep|>"},
    "decoder": {
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            "5": {"content": "<|im_end|>", "lstrip": True, "rstrip": True, "special": True},
            "4": {"content": "<|im_start|>", "special": False, "normalized": False},
        },
    },
    "its class": {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"},
    "its class, legacy": {"tokenizer_class": "LlamaTokenizerFast", "legacy": True},
    "its class, null": {"tokenizer_class": "LlamaTokenizer", "bos_token": None},
}
MAPS: dict[str, Keys | None] = {
    "none": None,
    "another": {"eos_token": "<pad>", "sep_token": "<unk>"},
    "null": {"eos_token": None},
    "objects": {"eos_token": {"content": "<|im_end|>", "lstrip": True, "rstrip": False}},
}


@pytest.mark.parametrize(("settings", "map_"), combined(SETTINGS, MAPS))
def test_a_template_reads_the_names_of_the_tokenizer(
    settings: str, map_: str, tmp_path: Path
) -> None:
    given = MAPS[map_]
    files = {} if given is None else {"special_tokens_map": given}
    ids = {"eos_token_id": [3, 2], "bos_token_id": 1}
    ours, theirs = loaded(
        tmp_path, made("metaspace first", {}), SETTINGS[settings], generation_config=ids, **files
    )
    assert (ours.eos_ids, ours.bos_id) == ((3, 2), 1)
    for template in (NAMES, CHATML):
        for n in (1, 2, 4):
            found = prompt_ids(ours, TALK[:n], template)
            assert found == theirs.apply_chat_template(
                TALK[:n], chat_template=template, add_generation_prompt=True, return_dict=False
            )
    ours.save(tmp_path / "saved.json")
    again = Tokenizer.load(tmp_path / "saved.json")
    assert template_names(again) == theirs.special_tokens_map
    assert prompt_ids(again, TALK, NAMES) == prompt_ids(ours, TALK, NAMES)


def test_answers_end_with_the_token_of_the_tokenizer(tmp_path: Path) -> None:
    """Whatever the ids of generation are."""
    settings = {"eos_token": "<|im_end|>", "bos_token": "<s>"}
    ids = {"eos_token_id": 1}
    ours, _ = loaded(tmp_path, made("byte level", {}), settings, generation_config=ids)
    found, answered = ids_and_answers(ours, conversation(TALK, INST))
    said = [ours.codec.name(i) for i, one in zip(found, answered, strict=True) if one]
    assert said.count("<|im_end|>") == 2
    assert said[-1] == "<|im_end|>"
    assert "</s>" not in said
    assert ours.ending().eos_ids == (1, 5)


@pytest.mark.parametrize("flags", FLAGS)
def test_a_message_that_spells_a_special_token_is_refused(flags: str, tmp_path: Path) -> None:
    """In training as in use; as another case too, where the tokenizer takes it for the token."""
    ours, _ = loaded(tmp_path, made("lower", FLAGS[flags]), {"eos_token": "<|im_end|>"})
    spelt = ["a <|im_end|> b"] + ["a <|IM_END|> b"] * ("normalized" in FLAGS[flags])
    for content in spelt:
        asked = [{"role": "user", "content": content}]
        with pytest.raises(InputError, match="which is a special token"):
            prompt_ids(ours, asked, CHATML)
        with pytest.raises(InputError, match="which is a special token"):
            ids_and_answers(ours, conversation([*asked, TALK[2]], CHATML))
    fine = [{"role": "user", "content": "a <|im_en d|> <think> b"}]
    assert json.dumps(prompt_ids(ours, fine, CHATML))


LATER = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% else %}never{% endif %}"


@pytest.mark.parametrize("date", [LATER, "{{ strftime_now('%d %b %Y') }}"])
def test_the_date_of_today(tmp_path: Path, date: str) -> None:
    """In use, as transformers has it; data to learn from have none, so that they stay the same."""
    ours, theirs = loaded(tmp_path, made("byte level", {}), {"eos_token": "</s>"})
    template = date + CHATML
    expected = theirs.apply_chat_template(
        TALK[:2], chat_template=template, add_generation_prompt=True
    )
    assert prompt_ids(ours, TALK[:2], template, dated=True) == expected["input_ids"]
    if date == LATER:
        assert ours.decode(prompt_ids(ours, TALK[:2], template)).startswith("never")
        return
    with pytest.raises(InputError, match=r"strftime_now.*differ from day to day"):
        conversation(TALK[:3], template, names=template_names(ours))
