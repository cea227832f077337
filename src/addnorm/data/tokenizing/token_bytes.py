"""The bytes that each token adds to a text, for grammars over bytes."""

import json
from typing import Any

from addnorm.data.tokenizing.codecs import CustomCodec
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

JOINING = frozenset(
    {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Sequence", "Strip"}
)
"""The decoders of the library that join what each token adds, whatever its neighbours are.

Some drop the space at the beginning of a text (`Metaspace`, `Strip`).
"""


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes that each id adds within a text; none for a special token.

    Raises `InputError` for a tokenizer whose tokens have other texts next to other tokens, such as
    words, between which decoding puts spaces.
    """
    _check_joins(tokenizer)
    codec = tokenizer.codec
    ids = [i for i in range(tokenizer.vocab_size) if tokenizer.is_text(i)]
    begun = [next((i for i in ids if codec.alone([i])[0].isalnum()), ids[0])] if ids else []
    before = tokenizer.decode(begun)
    content = [b""] * tokenizer.vocab_size
    for i in ids:
        own_bytes = codec.bytes_of(i)
        text = "" if own_bytes else tokenizer.decode([*begun, i])
        content[i] = own_bytes or text.removeprefix(before).encode()
    return content


def _check_joins(tokenizer: Tokenizer) -> None:
    """Raise `InputError` for a tokenizer whose decoding does more than join tokens."""
    codec = tokenizer.codec
    if isinstance(codec, CustomCodec):
        raise InputError(
            f"structured output: the tokenizer is {codec.kind}, whose tokens are not known as bytes"
        )
    decoder: Any = codec.inner.decoder
    if decoder is None:
        raise InputError(
            "structured output: the tokenizer's tokens are words, with a space between any two: "
            "use a model with another one, such as bpe or char"
        )
    for table in _tables(json.loads(decoder.__getstate__())):
        strips = table["type"] == "Strip" and (table["start"] > 1 or table["stop"])
        if table["type"] not in JOINING or strips:
            raise InputError(
                f"structured output: the tokenizer's decoder {table['type']} changes tokens by "
                "their neighbours, so their bytes are not known: use a model with another tokenizer"
            )


def _tables(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """The settings of a decoder of the library, or of the decoders that it consists of."""
    return [decoder, *(each for part in decoder.get("decoders", ()) for each in _tables(part))]
