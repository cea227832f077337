"""Streamed text: pieces join to the whole, characters never break, exact stop strings."""

import pytest
import tokenizers as library
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from addnorm.data.tokenizing.tokenizers import BPEConfig, Tokenizer, WordConfig
from addnorm.errors import InputError
from addnorm.generate import (
    BeamConfig,
    Continuation,
    GreedyConfig,
    SampleConfig,
    TextDecoder,
    generate,
    stream,
)
from addnorm.models import DecoderConfig, DecoderModel
from addnorm.nn.attention import AttentionConfig

pytestmark = pytest.mark.usefixtures("types_unchecked")

TEXT = st.text(alphabet="ab€😀 \n", max_size=12)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A few merges above single bytes, so that characters break across tokens."""
    return BPEConfig(vocab_size=270, min_frequency=1).train(["ab ab abab \n a b ab"] * 9)


@pytest.fixture(scope="module")
def model(tokenizer) -> DecoderModel:
    torch.manual_seed(0)
    config = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))
    return config.build(tokenizer.vocab_size).eval()


def cut(text: str, stop: list[str]) -> str:
    """The definition: `text` before the stop string whose last character comes first."""
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    return text[: min(ends)[1]] if ends else text


@given(text=TEXT, stop=st.lists(st.text(alphabet="ab€😀 \n", min_size=1, max_size=4), max_size=3))
@settings(max_examples=300)
def test_pieces_join_to_the_text_before_the_stop_string(tokenizer, text, stop) -> None:
    text_decoder = TextDecoder(tokenizer, stop)
    pieces, row = [], text_decoder.open()
    for token in tokenizer.encode(text):
        pieces.append(row.push(token))
        if row.stopped:
            break
    pieces.append(row.finish())
    assert "".join(pieces) == cut(text, stop) == text_decoder.write(tokenizer.encode(text))
    assert row.stopped == any(s in text for s in stop)
    assert not any("\ufffd" in piece for piece in pieces)


def test_text_is_returned_as_soon_as_it_is_final(tokenizer) -> None:
    row = TextDecoder(tokenizer, ["aab"]).open()
    shown = [row.push(token) for c in "xaaac€" for token in tokenizer.encode(c)]
    assert shown == ["x", "", "", "a", "aac", "", "", "€"]
    assert row.finish() == ""
    assert not row.stopped


def test_text_that_was_held_back_is_returned_at_the_end(tokenizer) -> None:
    row = TextDecoder(tokenizer, ["stop"]).open()
    assert "".join(row.push(token) for token in tokenizer.encode("xsto")) == "x"
    assert row.finish() == "sto"
    assert row.finish() == ""


def test_nothing_follows_a_stop_string(tokenizer) -> None:
    row = TextDecoder(tokenizer, ["."]).open()
    assert [row.push(token) for c in "a.b" for token in tokenizer.encode(c)] == ["a", "", ""]
    assert row.stopped
    assert row.finish() == ""


def test_a_character_that_never_completes_is_one_replacement(tokenizer) -> None:
    ids = tokenizer.encode("a€")[:-1]
    assert TextDecoder(tokenizer).write(ids) == tokenizer.decode(ids)


@settings(max_examples=25)
@given(
    prompt=st.lists(st.integers(4, 259), min_size=1, max_size=5),
    seed=st.integers(0, 99),
    stop=st.lists(st.sampled_from(["a", "b", "ab", " ", "e", "\n"]), max_size=2),
)
@pytest.mark.long
def test_streamed_and_generated_text_equal_the_decoding(
    model, tokenizer, prompt, seed, stop
) -> None:
    text_decoder, decoding = TextDecoder(tokenizer, stop), SampleConfig(seed=seed)
    [[g]] = generate(model, [prompt], decoding, max_new_tokens=25, text_decoder=text_decoder)
    pieces = stream(
        Continuation(model), prompt, decoding, max_new_tokens=25, text_decoder=text_decoder
    )
    assert "".join(pieces) == g.text == cut(tokenizer.decode(list(g.ids)), stop)
    if g.finished == "stop":
        assert any(s in tokenizer.decode(list(g.ids)) for s in stop)
        assert not any(s in tokenizer.decode(list(g.ids[:-1])) for s in stop)


def test_a_row_that_stops_does_not_change_the_others(model, tokenizer) -> None:
    prompts, decoding = [[70], [80, 81], [90]], SampleConfig(seed=1, temperature=2.0)
    free = generate(
        model, prompts, decoding, max_new_tokens=30, text_decoder=TextDecoder(tokenizer)
    )
    stop = next(c for c in free[0][0].text[5:] if c.isascii() and c.isprintable())
    text_decoder = TextDecoder(tokenizer, [stop])
    stopped = generate(model, prompts, decoding, max_new_tokens=30, text_decoder=text_decoder)
    assert stopped[0][0].finished == "stop"
    for [before], [after] in zip(free, stopped, strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert before.ids[: len(after.ids)] == after.ids


def test_an_abandoned_stream_leaves_the_mode_of_the_model(model, tokenizer) -> None:
    model.train()
    try:
        text_decoder = TextDecoder(tokenizer)
        pieces = stream(
            Continuation(model), [70], GreedyConfig(), max_new_tokens=9, text_decoder=text_decoder
        )
        next(pieces)
        assert model.training
        assert not torch.is_inference_mode_enabled()
        pieces.close()
    finally:
        model.eval()


def test_invalid_arguments_are_rejected_at_the_call(model, tokenizer) -> None:
    with pytest.raises(InputError, match="prompt 1 has 0 tokens"):
        stream(
            Continuation(model),
            [],
            GreedyConfig(),
            max_new_tokens=9,
            text_decoder=TextDecoder(tokenizer),
        )
    with pytest.raises(InputError, match="none empty"):
        TextDecoder(tokenizer, ["a", ""])
    with pytest.raises(InputError, match="stop must be a list"):
        TextDecoder(tokenizer, "ab")
    text_decoder = TextDecoder(tokenizer, ["a"])
    with pytest.raises(InputError, match="beams end at eos alone"):
        generate(model, [[70]], BeamConfig(), max_new_tokens=3, text_decoder=text_decoder)


def test_beams_have_text(model, tokenizer) -> None:
    config, text_decoder = BeamConfig(beams=3, n_best=3), TextDecoder(tokenizer)
    [best] = generate(model, [[70]], config, max_new_tokens=6, text_decoder=text_decoder)
    assert [g.text for g in best] == [tokenizer.decode(list(g.ids)) for g in best]


def llama_like(*, legacy: bool) -> Tokenizer:
    """A tokenizer with the two layouts of LLaMA's: spaces as `▁`, and bytes for the unknown."""
    letters = ["a", "b", "▁", "▁a", "▁ab", "ab"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("▁", "a"), ("a", "b"), ("▁", "ab")]
    vocab = {name: i for i, name in enumerate(names)}
    inner = library.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    if legacy:
        inner.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    inner.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner, bos_id=1, eos_ids=(2,), unk_id=0, before=(1,), after=())


SPACING = {
    "llama": llama_like(legacy=True),
    "llama, first": llama_like(legacy=False),
    "bpe": BPEConfig(vocab_size=270, min_frequency=1).train(["ab ab abab \n a b ab"] * 9),
    "word": WordConfig().train(["a b ab ba \n €"]),
}


@pytest.mark.parametrize("name", SPACING)
@given(prompt=st.text("ab ", max_size=8), text=st.text("ab€😀 ", max_size=8))
def test_a_continuation_keeps_its_first_space(name: str, prompt: str, text: str) -> None:
    """It is what the whole has beyond the prompt; an answer begins on its own."""
    tokenizer = SPACING[name]
    before, prompt_and_text = tokenizer.encode(prompt), tokenizer.encode(prompt + text)
    new = (
        prompt_and_text[len(before) :]
        if prompt_and_text[: len(before)] == before
        else tokenizer.encode(text)
    )
    ids = [*(tokenizer.before or ()), *before]
    whole = tokenizer.decode([*before, *new])
    continued = TextDecoder(tokenizer, continues=True).write(new, ids)
    assert tokenizer.decode(before) + continued == whole
    assert TextDecoder(tokenizer).write(new, ids) == tokenizer.decode(new)


@pytest.mark.parametrize("name", ["llama", "llama, first"])
@pytest.mark.parametrize("decoding", [GreedyConfig(), BeamConfig(beams=2), SampleConfig()])
def test_generated_and_streamed_text_keeps_its_first_space(name: str, decoding) -> None:
    tokenizer = SPACING[name]
    torch.manual_seed(0)
    config = DecoderConfig(d_model=16, n_layers=1, attention=AttentionConfig(n_heads=2))
    model = config.build(tokenizer.vocab_size).eval()
    word = tokenizer.id_of("▁ab")
    with torch.no_grad():  # a model that writes one word again and again
        model.head.bias = torch.nn.Parameter(torch.zeros(tokenizer.vocab_size))
        model.head.bias[word] = 50.0
    prompt = [1, *tokenizer.encode("ab")]
    options = {"max_new_tokens": 2, "text_decoder": TextDecoder(tokenizer, continues=True)}
    [[generated, *_]] = generate(model, [prompt], decoding, **options)
    assert generated.text == " ab ab"
    if not isinstance(decoding, BeamConfig):
        assert [*stream(Continuation(model), prompt, decoding, **options)] == [" ab", " ab"]
