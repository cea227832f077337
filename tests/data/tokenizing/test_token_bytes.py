"""The bytes of tokens join to the bytes of the text."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from addnorm.data.tokenizing.token_bytes import token_bytes
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig, Tokenizer, WordConfig
from addnorm.errors import InputError

TEXT = "the cat sat on the mat, né 你好"


def unigram() -> Tokenizer:
    """A tokenizer as SentencePiece has them: `▁` begins words, bytes stand for the rest."""
    pieces = [
        "<unk>",
        "▁",
        "▁the",
        "▁c",
        "at",
        "▁s",
        "t",
        "a",
        "n",
        ",",
        *map("<0x{:02X}>".format, range(256)),
    ]
    inner = tokenizers.Tokenizer(
        models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], 0, True)
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(inner, pad_id=0, unk_id=0, bos_id=None, eos_ids=())


CHAR = CharConfig().train([TEXT])
ALL = {"bpe": BPEConfig(vocab_size=290).train([TEXT] * 3), "char": CHAR, "unigram": unigram()}


@pytest.mark.parametrize("name", ALL)
@given(st.text(st.sampled_from(TEXT)))
def test_bytes_of_tokens_join_to_the_text(name: str, text: str) -> None:
    tokenizer = ALL[name]
    content = token_bytes(tokenizer)
    ids = tokenizer.encode(text)
    joined = b"".join(content[i] for i in ids)
    if name == "unigram":  # a text begins with a space there, which decoding drops
        joined = joined.removeprefix(b" ")
    assert joined.decode() == tokenizer.decode(ids)
    assert [content[i] for i in tokenizer.special_ids] == [b""] * len(tokenizer.special_ids)


def test_tokenizers_whose_tokens_depend_on_their_neighbours_are_refused() -> None:
    words = WordConfig().train([TEXT])
    with pytest.raises(InputError, match="words, with a space between any two"):
        token_bytes(words)
    pieces = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}))
    pieces.decoder = decoders.WordPiece()
    with pytest.raises(InputError, match="decoder WordPiece changes tokens by their neighbours"):
        token_bytes(Tokenizer(pieces, unk_id=0))
