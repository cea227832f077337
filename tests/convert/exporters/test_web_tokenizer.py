"""The page's tokenizers in JavaScript give the ids, texts and pieces of ours, or are refused."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from addnorm.convert.exporters.web_tokenizer import PORTED, ported_tokenizer
from addnorm.data.tokenizing.tokenizers import (
    BPEConfig,
    CharConfig,
    Tokenizer,
    TokenizerConfig,
    WordConfig,
    train_tokenizer,
)
from addnorm.errors import InputError

ROOT = Path(__file__).parents[3]

NUMBERS = [f"The {n}th day's {n * 37 % 1000} words; they've un{n}seen it!" for n in range(300)]
OTHERS = ["Größe, naïve Straße.", "你好，世界。", "Здравствуй, мир!", "ΣΟΦΟΣ ὁ σοφός", "ﬁ ½ Å é"]
TRAINED_ON = NUMBERS + OTHERS * 20

CHARACTERS = [
    *"aAbBzZ  \t\n019'\"’-_,.!?;:()[]{}<>|/\\@#$%^&*+=~`",
    *"äÖßſİıΣςσéÅﬁ½²³…—“”«»¿¡€№™世界こん한국हि",
    *("e\u0301", "\u00a0", "\u2003", "\ufeff", "\u0085", "\u200b", "\x00", "\x1f", "\u00ad"),
    *("👍🏽", "👨\u200d👩\u200d👧", "<unk>", "<eos>", "[SEP]", "##ing", "▁", "<0x41>", "<tool>"),
    *(" keep", "'s", "'LL", "n't", " the", " words", "\r\n"),
]


def texts(n: int) -> list[str]:
    """Sentences of the training text, and strings of anything."""
    rng = random.Random(0)
    drawn = ["".join(rng.choices(CHARACTERS, k=rng.randrange(30))) for _ in range(n - n // 3)]
    return ["", " ", "\ufeff", *rng.choices(TRAINED_ON, k=n // 3), *drawn]


def learnt(config: TokenizerConfig, lowercase: bool = False) -> Callable[[], Tokenizer]:
    return lambda: train_tokenizer(config, TRAINED_ON).lowercased(lowercase)


def bert() -> library.Tokenizer:
    inner = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    inner.train_from_iterator(TRAINED_ON, trainer)
    return inner


def unigram() -> library.Tokenizer:
    inner = library.Tokenizer(models.Unigram())
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, unk_token="<unk>", special_tokens=["<pad>", "<unk>"], show_progress=False
    )
    inner.train_from_iterator(TRAINED_ON, trainer)
    return inner


def llama() -> library.Tokenizer:
    """Whole texts with spaces as signs, and bytes for unknown characters."""
    inner = library.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    inner.train_from_iterator(TRAINED_ON, trainer)
    table = json.loads(inner.to_str())
    table["added_tokens"] = table["added_tokens"][:3]
    space = {"String": " "}
    table["pre_tokenizer"] = None
    table["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": space, "content": "▁"},
        ],
    }
    inner = library.Tokenizer.from_str(json.dumps(table))
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return inner


QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def qwen() -> library.Tokenizer:
    inner = library.Tokenizer(models.BPE())
    inner.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(library.Regex(QWEN), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TRAINED_ON, trainer)
    inner.add_tokens(["<tool>", library.AddedToken(" keep", lstrip=True, normalized=False)])
    return inner


def imported(make: Callable[[], library.Tokenizer]) -> Callable[[], Tokenizer]:
    return lambda: Tokenizer(make(), before=(), after=(), eos_ids=())


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bpe": learnt(BPEConfig(vocab_size=600)),
    "bpe in lower case": learnt(BPEConfig(vocab_size=600), lowercase=True),
    "characters": learnt(CharConfig()),
    "words": learnt(WordConfig()),
    "words of Kim": learnt(WordConfig(words="kim"), lowercase=True),
    "wordpiece": imported(bert),
    "unigram": imported(unigram),
    "bytes": imported(llama),
    "added": imported(qwen),
}


def in_javascript(tokenizer: Tokenizer, lines: Sequence[str]) -> list[Any]:
    if (node := shutil.which("node")) is None:
        pytest.skip("no node, in which the page's tokenizer is run")
    read = json.dumps([ported_tokenizer(tokenizer), lines, False])
    program = [node, ROOT / "tests" / "convert" / "exporters" / "tokenize.mjs"]
    done = subprocess.run(program, input=read, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("name", "n"),
    [("bpe", 200), *(pytest.param(name, 10_000, marks=pytest.mark.slow) for name in TOKENIZERS)],
)
def test_a_page_reads_and_writes_texts_as_the_run_does(name: str, n: int) -> None:
    tokenizer, lines = TOKENIZERS[name](), texts(n)
    found = in_javascript(tokenizer, lines)
    expected = tokenizer.codec.encode([tokenizer.prepared(line) for line in lines])
    for line, ids, one in zip(lines, expected, found, strict=True):
        assert one == [ids, tokenizer.decode(ids), tokenizer.pieces(ids)], repr(line)


@pytest.mark.long
def test_a_large_vocabulary_and_a_long_text_without_spaces() -> None:
    """Of sizes that no call has as arguments, nor a search over all pairs for each merge."""
    signs = "abcdefgh"
    pairs = [(a, b) for a in signs for b in signs if a != b]
    names = [*signs, *(a + b for a, b in pairs), *map(str, range(150_000))]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer = imported(lambda: library.Tokenizer(models.BPE(vocab=vocab, merges=pairs)))()
    text = "".join(random.Random(0).choices(signs, k=200_000))
    [[ids, _, _]] = in_javascript(tokenizer, [text])
    assert ids == tokenizer.inner.encode(text).ids


def changed(**changes: Any) -> Tokenizer:
    """A tokenizer of bytes with other parts."""
    table = json.loads(TOKENIZERS["bytes"]().inner.to_str()) | changes
    return Tokenizer(library.Tokenizer.from_str(json.dumps(table)), before=(), after=())


CTC = {"type": "CTC", "pad_token": "<unk>", "word_delimiter_token": "|", "cleanup": True}


def split_by(expression: str) -> dict[str, Any]:
    pattern = {"Regex": expression}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"normalizer": {"type": "Nmt"}}, "the normalizer Nmt"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]}},
            "the normalizer Nmt",
        ),
        ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "the pre-tokenizer UnicodeScripts"),
        ({"pre_tokenizer": split_by(r"\p{L}++|.")}, r"'\+\+' in the expression"),
        ({"pre_tokenizer": split_by(r"\h+|.")}, r"in the expression of the pre-tokenizer"),
        ({"decoder": CTC}, "the decoder CTC"),
    ],
)  # fmt: skip
def test_a_part_that_is_not_ported_is_refused_by_name(parts: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=f"a page does not have .*{named}"):
        ported_tokenizer(changed(**parts))


def test_every_part_that_is_accepted_is_ported() -> None:
    sources = (ROOT / "page" / "src" / "tokenizer").glob("*.js")
    code = "".join(source.read_text(encoding="utf-8") for source in sources)
    for names in PORTED.values():
        for name in names:
            assert f"  {name}: " in code or f" {name}: " in code, name
