"""Which file decides about generation, key by key: as transformers reads the same folder."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.contracts import combined
from tests.convert import vocabularies

import addnorm
from addnorm.convert.tokenizers.files import load_tokenizers
from addnorm.generate import RulesConfig
from addnorm.runs.files.generation_config import decoding_of

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:.*not followed")]

Keys = dict[str, Any]
ABSENT: Any = object()
SMALL: dict[str, Keys] = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
    "bart": {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 64,
        "is_encoder_decoder": True,
    },
}
CLASSES = {"gpt2": "GPT2LMHeadModel", "bart": "BartForConditionalGeneration"}
IDS: dict[str, Keys] = {
    "gpt2": {"bos_token_id": 0, "eos_token_id": 2},
    "bart": {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "pad_token_id": 1},
}
VALUES: dict[str, tuple[Any, Any]] = {
    "eos_token_id": (7, [8, 9]),
    "bos_token_id": (5, 6),
    "decoder_start_token_id": (0, 5),
    "bad_words_ids": ([[7]], [[8], [9]]),
    "forced_bos_token_id": (7, 8),
    "forced_eos_token_id": (2, 7),
    "suppress_tokens": ([7], [8, 9]),
    "begin_suppress_tokens": ([7], [8, 9]),
    "max_length": (9, 12),
    "max_new_tokens": (5, 7),
    "min_length": (4, 6),
    "min_new_tokens": (3, 5),
    "no_repeat_ngram_size": (2, 3),
    "repetition_penalty": (1.5, 2.0),
    "num_beams": (2, 3),
    "length_penalty": (0.5, 2.0),
    "early_stopping": (True, "never"),
    "do_sample": (True, False),
    "temperature": (0.5, 2.0),
    "top_k": (3, 5),
    "top_p": (0.5, 0.9),
}
"""Of each key, what `config.json` has and what `generation_config.json` has."""
PLACES = {
    "config alone": (0, None),
    "generation alone": (ABSENT, 1),
    "both": (0, 1),
    "generation lacks it": (0, ABSENT),
    "generation has null": (0, "null"),
    "config has null": ("null", None),
    "nobody": (ABSENT, None),
}
"""What stands in `config.json`, and in `generation_config.json`, which may be missing (None)."""
SAMPLE = ("temperature", "top_k", "top_p")


def without(keys: Keys) -> Keys:
    return {key: value for key, value in keys.items() if value is not ABSENT}


def placed(folder: Path, kind: str, key: str, place: str) -> Path:
    """A folder of which the two files say this, and beside that the usual ids."""

    def value(which: Any) -> Any:
        return None if which == "null" else VALUES[key][which] if which in (0, 1) else which

    here, there = PLACES[place]
    method = {"num_beams": 4} if key in ("length_penalty", "early_stopping") else {}
    method = {"do_sample": True} if key in SAMPLE else method
    said = IDS[kind] | method
    config = {"model_type": kind, **SMALL[kind], "vocab_size": 400}
    vocabularies.write(folder, config=without(config | said | {key: value(here)}))
    if there is not None:
        keys = without(said | {key: value(there)})
        vocabularies.write(folder, generation_config=keys)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, Any]]:
    """A folder of each kind with a tokenizer, and its random model of theirs."""
    found: dict[str, tuple[Path, Any]] = {}
    for kind in SMALL:
        folder = tmp_path_factory.mktemp(kind)
        vocabularies.byte_pairs(folder, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
        config = transformers.AutoConfig.for_model(kind, **SMALL[kind], vocab_size=400, **IDS[kind])
        torch.manual_seed(0)
        theirs = getattr(transformers, CLASSES[kind])(config)
        with torch.no_grad():
            for weight in theirs.parameters():
                weight.mul_(8)
        theirs.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        found[kind] = (folder, theirs)
    return found


def theirs_of(folder: Path) -> Any:
    """Their generation configuration of a folder, found as `from_pretrained` finds it."""
    try:
        return transformers.GenerationConfig.from_pretrained(folder)
    except OSError:
        return transformers.GenerationConfig.from_pretrained(
            folder, config_file_name="config.json", _from_model_config=True
        )


@pytest.mark.parametrize(("kind", "key", "place"), combined(SMALL, VALUES, PLACES))
def test_each_key_comes_from_the_file_that_transformers_reads(
    kind: str, key: str, place: str, tmp_path: Path, made: Mapping[str, tuple[Path, Any]]
) -> None:
    folder = placed(tmp_path, kind, key, place)
    for name in ("vocab.json", "merges.txt"):
        (folder / name).symlink_to(made[kind][0] / name)
    theirs = theirs_of(folder)
    config = json.loads((folder / "config.json").read_text())
    tokenizers = load_tokenizers(folder, kind, config)
    assert tokenizers is not None
    target = tokenizers.target
    ends = theirs.eos_token_id
    assert [*target.eos_ids] == (ends if isinstance(ends, list) else [] if ends is None else [ends])
    start = theirs.decoder_start_token_id if kind == "bart" else None
    start = theirs.bos_token_id if start is None else start
    if start is not None:
        assert target.bos_id == start
    assert [[i] for i in target.never_ids] == (theirs.bad_words_ids or [])
    tree = decoding_of(folder, "target" if kind == "bart" else "continuation", 400) or {}
    rules = {
        key: list(v) if isinstance(v, tuple) else v for key, v in (tree.get("rules") or {}).items()
    }
    for field in fields(RulesConfig):  # pyright: ignore[reportArgumentType]
        expected, usual = getattr(theirs, field.name, None), getattr(RulesConfig(), field.name)
        usual = list(usual) if isinstance(usual, tuple) else usual
        assert rules.get(field.name, usual) == (usual if expected is None else expected), field.name
    if (theirs.num_beams or 1) > 1:
        assert tree["beams"] == theirs.num_beams
        assert tree["length_penalty"] == (theirs.length_penalty or 1.0)
        assert tree["early_stopping"] == (theirs.early_stopping or False)
    elif theirs.do_sample:
        assert tree["kind"] == "sample"
        for name in SAMPLE:
            usual = 50 if name == "top_k" else 1.0
            expected = getattr(theirs, name)
            assert tree[name] == (usual if expected is None else expected)


FILES: dict[str, tuple[Keys, Keys | None]] = {
    "an older end": ({"eos_token_id": 11}, {"eos_token_id": 2}),
    "other ends": ({"eos_token_id": 11}, {"eos_token_id": [2, 45]}),
    "no end": ({"eos_token_id": 11}, {"eos_token_id": None}),
    "no end in a file of its own": ({"eos_token_id": 11}, {}),
    "no file of its own": ({"eos_token_id": 11}, None),
    "another start": ({"decoder_start_token_id": 2}, {"decoder_start_token_id": 0}),
    "the start of a text": ({"decoder_start_token_id": 2}, {"decoder_start_token_id": None}),
    "a first token": ({"forced_bos_token_id": 9}, {"forced_bos_token_id": 12}),
    "no first token": ({"forced_bos_token_id": 9}, {}),
    "never": ({"bad_words_ids": [[9]]}, {"bad_words_ids": [[263]]}),
}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "files"), combined(SMALL, FILES))
def test_the_same_tokens_are_written(
    kind: str, files: str, made: Mapping[str, tuple[Path, Any]]
) -> None:
    folder, _ = made[kind]
    in_config, in_generation = FILES[files]
    usual = {"max_new_tokens": 12, "num_beams": 1, "do_sample": False}
    config = {"model_type": kind, "vocab_size": 400, **SMALL[kind], **IDS[kind]}
    more = usual if in_generation is None else {}
    vocabularies.write(folder, config=config | in_config | more)
    file = folder / "generation_config.json"
    file.unlink(missing_ok=True)
    if in_generation is not None:
        own = {key: IDS[kind][key] for key in ("bos_token_id", "pad_token_id") if key in IDS[kind]}
        starts = {"decoder_start_token_id": 2} if kind == "bart" else {}
        vocabularies.write(folder, generation_config=usual | own | starts | in_generation)
    theirs = getattr(transformers, CLASSES[kind]).from_pretrained(folder)
    run = addnorm.load(folder)
    for text in ("the cat", "to be or not"):
        ids = run.tokenizers.source.encode(text)
        if kind == "bart":
            ids = [0, *ids, 2]
        with torch.no_grad():
            [expected] = theirs.generate(torch.tensor([ids])).tolist()
        expected = expected[1 if kind == "bart" else len(ids) :]
        ends = theirs.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        end = next((n for n, i in enumerate(expected) if i in ends), len(expected))
        assert _written(run, text) == expected[:end]


def _written(run: Any, text: str) -> list[int]:
    """The ids that our folder writes with its own decoding."""
    from addnorm.data.ids.framing import encode_for_task
    from addnorm.generate import generate, translate

    target, decoding = run.tokenizers.target, run.recipe.eval.decoding
    task = "language" if run.recipe.model.kind == "decoder" else "translation"
    rows = encode_for_task(task, run.tokenizers.source, [text])
    if task == "language":
        found = generate(run.model, rows, decoding, eos_id=target.eos_ids)
    else:
        found = translate(run.model, rows, decoding, bos_id=target.bos_id, eos_id=target.eos_ids)
    return list(found[0][0].ids)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", SMALL)
def test_bad_words_are_never_generated(
    kind: str, beams: int, made: Mapping[str, tuple[Path, Any]]
) -> None:
    """A language model keeps to `bad_words_ids` as a translator does, from every way to write."""
    folder, _ = made[kind]
    usual = {"max_new_tokens": 12, "num_beams": beams, "do_sample": False}
    starts = {"decoder_start_token_id": 2} if kind == "bart" else {}
    config = {"model_type": kind, "vocab_size": 400, **SMALL[kind], **IDS[kind]}
    vocabularies.write(folder, config=config)

    def texts(*never: int) -> tuple[str, str, list[int]]:
        own = {**usual, **starts, "eos_token_id": 2, "bad_words_ids": [[i] for i in never]}
        vocabularies.write(folder, generation_config=own)
        theirs = getattr(transformers, CLASSES[kind]).from_pretrained(folder)
        run = addnorm.load(folder)
        ids = run.tokenizers.source.encode("the cat")
        rows = torch.tensor([[0, *ids, 2] if kind == "bart" else ids])
        with torch.no_grad():
            [found] = theirs.generate(rows).tolist()
        found = found[1 if kind == "bart" else len(ids) :]
        written = run.generate("the cat")
        if beams == 1 and kind == "gpt2":
            assert "".join(run.stream("the cat")) == written
        return written, run.tokenizers.target.decode(found), found

    written, expected, ids = texts(399)
    assert written == expected
    own = {**usual, **starts, "eos_token_id": 2, "bad_words_ids": [[400]]}
    vocabularies.write(folder, generation_config=own)  # beyond the vocabulary, and so named
    assert addnorm.load(folder).generate("the cat") == written
    ban = next(i for i in ids if i > 4)
    again, expected, ids = texts(ban)
    assert again == expected != written
    assert ban not in ids
