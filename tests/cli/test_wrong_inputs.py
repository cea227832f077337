"""A table of wrong inputs: each ends with status 2 and one message that says what is right."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.tiny import write_recipe

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.folder import build_untrained, save
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import BPEConfig, train_tokenizer
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig

pytestmark = pytest.mark.usefixtures("types_unchecked")

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


def snapshot(folder: Path) -> dict[str, int]:
    """Every file below a folder, and its size."""
    return {str(p.relative_to(folder)): p.lstat().st_size for p in folder.rglob("*")}


def check(addnorm: Command, folder: Path, words: list[object], said: str) -> None:
    """Run a command in `folder`: status 2, one message with these words, nothing written."""
    before = snapshot(folder)
    code, out, err = addnorm(*words)
    assert (code, out) == (2, ""), err
    assert err.startswith("addnorm: ")
    assert err.count("\n") == 1, err
    assert len(err) < 700, err
    assert "Traceback" not in err
    for word in said.split(" | "):
        assert word in err, err
    assert snapshot(folder) == before


# Edits of a recipe: the task, what is replaced, what by, and what is said.

EDITS = [
    # names of fields and tables
    ("language", "steps = 4", "step = 4", "train.step is not a field | Did you mean 'steps'?"),
    ("language", "steps = 4", "Steps = 4", "train.Steps | Did you mean 'steps'?"),
    ("language", "d_model = 16", "dmodel = 16", "model.dmodel | Did you mean 'd_model'?"),
    ("language", "n_layers = 1", "num_layers = 1", "num_layers | Did you mean 'n_layers'?"),
    ("language", "n_heads = 2", "heads = 2", "model.attention.heads | Did you mean 'n_heads'?"),
    ("language", "seq_len = 16", "seqlen = 16", "Did you mean 'seq_len'?"),
    ("language", "valid_fraction", "val_fraction", "Did you mean 'valid_fraction'?"),
    ("language", "[train]", "[training]", "training is not a field | Did you mean 'train'?"),
    ("language", "[tokenizer]", "[tokeniser]", "Did you mean 'tokenizer'?"),
    ("language", "[data]", "[date]", "Did you mean 'data'?"),
    ("language", "[model]", "[modell]", "Did you mean 'model'?"),
    ("translation", "beams = 2", "beam = 2", "eval.decoding.beam | Did you mean 'beams'?"),
    ("tagging", "vocab_size", "vocabsize", "Did you mean 'vocab_size'?"),
    # names of parts
    ("language", '"decoder"', '"decodr"', "model.kind | Did you mean 'decoder'?"),
    ("language", '"char"', '"chars"', "tokenizer.kind | Did you mean 'char'?"),
    ("language", '"text"', '"txt"', "data.kind | Did you mean 'text'?"),
    ("language", '"windows"', '"window"', "train.batching.kind | Did you mean 'windows'?"),
    ("language", '"mlp"', '"mpl"', "model.feedforward.kind | Did you mean 'mlp'?"),
    ("classification", '"lines"', '"line"', "data.kind | Did you mean 'lines'?"),
    ("classification", '"best"', '"bset"', "train.select | Did you mean 'best'?"),
    ("classification", '"classification"', '"classify"', "Did you mean 'classification'?"),
    ("translation", '"bleu"', '"blue"', "eval.metric | Valid: | bleu"),
    ("translation", 'kind = "beam"', 'kind = "beem"', "eval.decoding.kind | Did you mean 'beam'?"),
    ("language", "dropout = 0.0", 'norm = "rmsnrm"', "model.norm.kind | Did you mean 'rmsnorm'?"),
    ("language", "dropout = 0.0", 'position = "rope"', "Did you mean 'rotary'?"),
    ("language", "dropout = 0.0", 'residual = "prenorm"', "Did you mean 'pre'?"),
    ("language", "dropout = 0.0", 'init = "xaver"', "model.init | Did you mean 'xavier'?"),
    ("language", "attention = { n_heads = 2 }", 'attention = "lstm"', "Did you mean 'recurrent'?"),
    ("language", "steps = 4", 'steps = 4\noptimizer = "adam"', "Did you mean 'adamw'?"),
    ("language", "steps = 4", 'steps = 4\nprecision = "fp16"', "train.precision | float16"),
    ("language", "steps = 4", 'steps = 4\nschedule = "cosin"', "train.schedule | cosine"),
    # types
    ("language", "steps = 4", 'steps = "four"', "train.steps = 'four' | integer"),
    ("language", "steps = 4", "steps = 4.5", "train.steps = 4.5 | integer"),
    ("language", "steps = 4", "steps = true", "train.steps = true: give a number"),
    ("language", "steps = 4", "steps = [4]", "train.steps = [4] | integer"),
    ("language", "d_model = 16", 'd_model = "16 wide"', "model.d_model | integer"),
    ("language", "dropout = 0.0", 'dropout = "none"', "model.dropout | number"),
    ("language", 'train = "play.txt"', "train = 7", "data.train = 7 is not a path"),
    ("language", "[tokenizer]", "[[tokenizer]]", "tokenizer | is not a table"),
    ("language", "attention = { n_heads = 2 }", "attention = 2", "model.attention = 2"),
    # sizes
    ("language", "steps = 4", "steps = 0", "train.steps = 0 | greater than 0"),
    ("language", "steps = 4", "steps = -4", "train.steps = -4 | greater than 0"),
    ("language", "d_model = 16", "d_model = 0", "model.d_model = 0 | greater than 0"),
    ("language", "n_layers = 1", "n_layers = -1", "model.n_layers = -1 | greater than 0"),
    ("language", "n_layers = 1", "n_layers = 100000", "model.n_layers = 100000 | 4096"),
    ("language", "n_heads = 2", "n_heads = 0", "model.attention.n_heads = 0"),
    ("language", "n_heads = 2", "n_heads = 3", "n_heads = 3 | one of [1, 2, 4, 8, 16]"),
    ("language", "n_heads = 2", "n_heads = 4, n_kv_heads = 3", "one of [1, 2, 4]"),
    ("language", "d_ff = 32", "d_ff = 0", "model.feedforward.d_ff = 0"),
    ("language", "dropout = 0.0", "dropout = 1.5", "model.dropout = 1.5 | 1"),
    ("language", "dropout = 0.0", "dropout = -0.1", "model.dropout = -0.1 | 0"),
    ("language", "dropout = 0.0", "dropout = nan", "model.dropout = nan"),
    ("language", "batch_size = 4", "batch_size = 0", "train.batching.batch_size = 0"),
    ("language", "seq_len = 16", "seq_len = 0", "train.batching.seq_len = 0"),
    ("language", "valid_fraction = 0.2", "valid_fraction = 1.2", "data.valid_fraction = 1.2"),
    ("language", "valid_fraction = 0.2", "valid_fraction = 0.95", "leave nothing to train on"),
    ("language", "steps = 4", "steps = 4\nlr = -0.1", "train.lr = -0.1"),
    ("language", "steps = 4", "steps = 4\nlr = inf", "train.lr = inf | finite"),
    ("language", "steps = 4", "steps = 4\nepochs = 2", "steps | epochs"),
    ("language", "steps = 4", "", "either steps or epochs: there is neither"),
    ("language", "save_every = 2", "save_every = 0", "train.save_every = 0"),
    ("language", "save_every = 2", "patience = 0", "train.patience = 0"),
    ("language", "d_model = 16", "d_model = 10000000000", "no machine | a smaller d_model"),
    ("translation", "beams = 2", "beams = 0", "eval.decoding.beams = 0 | must be at least 1"),
    ("translation", "tokens = 64", "tokens = 0", "train.batching.tokens = 0"),
    ("translation", "tokens = 64", "tokens = 2", "longer than a batch of 2 | raise tokens"),
    ("tagging", "vocab_size = 280", "vocab_size = 100", "tokenizer.vocab_size = 100 | 260"),
    ("tagging", "vocab_size = 280", "vocab_size = 1_000_000_000_000", "1000000000000 | 4194304"),
    ("language", "steps = 4", f"steps = {10**21}", "steps = 1000000000000000000000 | 2⁶²"),
    # what does not go together
    ("language", '"char"', '"char"\nvocab_size = 9', "tokenizer.vocab_size is not a field"),
    ("language", 'kind = "decoder"', 'kind = "encoder"', "hides no tokens"),
    ("classification", '"classification"', '"tagging"', "for classification | for tagging"),
    ("classification", '"tokens", tokens = 64', '"windows"', '"windows" is for language models'),
    ("classification", "tokens = 64", "tokens = 64, max_len = 2", "longer than max_len=2"),
    ("language", "d_model = 16", "d_model = 16\nvocab_size = 5", "vocab_size = 5 is too small"),
    ("language", "dropout = 0.0", 'position = { kind = "rotary", theta = -1.0 }', "theta = -1.0"),
    ("language", "steps = 4", 'steps = 4\nstart = "nowhere"', "nowhere: no such folder"),
    ("language", "steps = 4", "steps = 4\neval = 3", "train.eval is not a field"),
    # files that a recipe names
    ("language", '"play.txt"', '"pley.txt"', "pley.txt does not exist. Did you mean 'play.txt'?"),
    ("language", '"play.txt"', '"no/play.txt"', "does not exist, nor does its folder"),
    ("language", '"play.txt"', '"."', "is a folder, not a file"),
    ("translation", '"train.de"', '"valid.de"', "has 19 lines and | has 3: | has no partner"),
    ("translation", '["train.en", "train.de"]', '"train.en"', "data.train | is not a list"),
    ("multi_label", 'text = "text"', 'text = "txt"', "no column 'txt' | Did you mean 'text'?"),
    ("multi_label", 'labels = "topics"', 'labels = "topic"', "Did you mean 'topics'?"),
    ("multi_label", 'text = "text"\n', "", "text and labels"),
    ("regression", 'values = "stars"', 'values = "text"', "stars.jsonl:1 | a fine day"),
    ("regression", "stars.jsonl", "topics.tsv", "no column 'stars'"),
    ("regression", "stars.jsonl", "regression.toml", ".csv | .jsonl"),
    ("language", '"play.txt"', '"play.txt"\nencoding = "utf-9"', "encoding | utf-9"),
    # TOML
    ("language", "steps = 4", "steps =", "not valid TOML"),
    ("language", "[train]", "[train", "not valid TOML"),
    ("language", 'kind = "char"', "kind = char", "not valid TOML: not a value: write text in"),
    ("language", "steps = 4", "steps = 4\nsteps = 5", "not valid TOML: this is given twice"),
    ("language", 'kind = "char"', 'kind = "char', "not valid TOML: a line ends within quotes"),
    ("language", "steps = 4", "steps = 4,", "not valid TOML"),
    ("language", 'kind = "char"', "kind = “char”", '; “ stands where TOML has "\n'),
    ("language", "steps = 4", "steps ＝ 4", "; ＝ stands where TOML has =\n"),
    ("language", "steps = 4", 'steps 4 # “4”, ""', "after a key in a key/value pair\n"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "old", "new", "said"), EDITS)
def test_a_recipe(
    task: str, old: str, new: str, said: str, tmp_path: Path, addnorm: Command
) -> None:
    recipe = write_recipe(tmp_path, task)
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))
    check(addnorm, tmp_path, ["train", recipe, "--out", tmp_path / "out"], said)


# Files of data, and the recipe itself: the task, the file, its content, and what is said.

FILES = [
    ("language", "play.txt", b"", "play.txt is empty"),
    ("language", "play.txt", b" \n\n", "empty text"),
    ("language", "play.txt", b"To be\nor \xff not", "play.txt:2: byte 0xff is not utf-8"),
    ("language", "play.txt", "Grüße".encode("utf-16"), 'play.txt:1 | encoding = "utf-16"'),
    ("language", "play.txt", b"a\n\0b", "play.txt:2: a NUL"),
    ("language", "play.txt", b"x", "no usable row"),
    ("language", "language.toml", b"", "data is missing"),
    ("language", "language.toml", b"\xff\xfe", "language.toml:1: a recipe is UTF-8"),
    ("language", "language.toml", b"\x89PNG\r\n\x1a\n", "language.toml:1"),
    ("language", "language.toml", b"# nothing", "data is missing"),
    ("language", "language.toml", b"\xef\xbb\xbf[date]\n", "Did you mean 'data'?"),
    ("translation", "train.de", b"eins\nzwei\n", "has 19 lines and | has 2: | has no partner"),
    ("translation", "train.en", b"\n" * 19, "no usable row | empty source"),
    ("classification", "train.txt", b"good\nbad\n", "no usable row | without the separator"),
    ("classification", "valid.txt", b"", "valid.txt is empty"),
    ("multi_label", "topics.tsv", b"text\ttopics\n", "no usable row: 0 read"),
    ("multi_label", "topics.tsv", b"text\ttopics\na\tb\tc\n", "topics.tsv:2"),
    ("multi_label", "topics.tsv", b"\xff\n", "topics.tsv:1: byte 0xff"),
    ("regression", "stars.jsonl", b'{"text": "a", "stars": 1}\n{"text": ', "stars.jsonl:2"),
    ("regression", "stars.jsonl", b"[1, 2]\n", "stars.jsonl:1"),
    ("regression", "stars.jsonl", b'{"text": "a"}\n', "stars.jsonl:1 | no column 'stars'"),
    ("regression", "stars.jsonl", b'{"text": 3, "stars": 1}\n', "stars.jsonl:1"),
    ("regression", "stars.jsonl", b'{"text": "a", "stars": "many"}\n', "stars.jsonl:1 | many"),
    ("regression", "stars.jsonl", b'{"text": "a", "stars": NaN}\n', "stars.jsonl:1"),
    ("tagging", "train.conll", b"Anna\nlives\n", "train.conll:1"),
    ("tagging", "train.conll", b"", "train.conll is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "content", "said"), FILES)
def test_a_file(
    task: str, name: str, content: bytes, said: str, tmp_path: Path, addnorm: Command
) -> None:
    recipe = write_recipe(tmp_path, task)
    (tmp_path / name).write_bytes(content)
    check(addnorm, tmp_path, ["train", recipe, "--out", tmp_path / "out"], said)


# Other files of data, named by flags: the task, the file, its content, the flags, what is said.

HALF_A_GZIP = gzip.compress(b"To be" * 99, mtime=0)[:20]
OTHERS = [
    ("language", "a.gz", b"no gzip", "--data.train a.gz", "a.gz is a damaged or truncated gzip"),
    ("language", "a.gz", HALF_A_GZIP, "--data.train a.gz", "truncated gzip"),
    ("regression", "a.csv", b"text,stars\nfine,1,2\n", "--data.train a.csv", "a.csv:2: 3 cells"),
    ("regression", "a.csv", b'text,stars\n"fine,1\n', "--data.train a.csv", "a.csv:2"),
    ("regression", "a.csv", b"text;stars\nfine;1\n", "--data.train a.csv", "';' stands between"),
    ("regression", "a.csv", b"text,text\nfine,1\n", "--data.train a.csv", "two columns have"),
    ("regression", "a.parquet", b"PAR1 no", "--data.train a.parquet", "is not readable as Parquet"),
    ("regression", "a.xls", b"x", "--data.train a.xls", "unknown kind of table '.xls' | .jsonl"),
    ("classification", "a.txt", b"good a day\n", "--train.start RUN", "leave [tokenizer] out"),
    ("tagging", "a.conll", b"Anna X-PER\n", "--data.test a.conll", "Did you mean 'B-PER'?"),
    ("translation", "a.en", b"a\n", '--data.valid ["a.en"]', "data.valid"),
    ("translation", "a.en", b"a\n", '--data.valid ["a.en","b.en"]', "b.en does not exist"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "content", "flags", "said"), OTHERS)
def test_another_file(
    task: str,
    name: str,
    content: bytes,
    flags: str,
    said: str,
    run_of: RunOf,
    tmp_path: Path,
    addnorm: Command,
) -> None:
    recipe = write_recipe(tmp_path, task)
    (tmp_path / name).write_bytes(content)
    words = [run_of(task) if word == "RUN" else word for word in flags.split()]
    check(addnorm, tmp_path, ["train", recipe, "--out", tmp_path / "out", *words], said)


def test_data_to_evaluate_on(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    """Labels that training never saw, splits that are not there, data for something else."""
    (tmp_path / "god.txt").write_text("god a fine day\n")
    (tmp_path / "play.txt").write_text("To be\n")
    classes, play = run_of("classification"), run_of("language")
    for words, said in (
        ([classes, "--data.test", tmp_path / "god.txt"], "label 'god' | Did you mean 'good'?"),
        (
            [play, "--split", "test", "--data.test_fraction", 0],
            "the data have no test split | --split valid",
        ),
        (
            [play, "--data.kind", "lines", "--data.root", tmp_path],
            "data.test_fraction is not a field",
        ),
        ([classes, "--eval.metric", "acuracy"], "Did you mean 'accuracy'?"),
    ):
        check(addnorm, tmp_path, ["evaluate", *words], said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my", "my: no such folder. Did you mean 'runs/my'?"),
        ("run/my", "run/my: no such folder. Did you mean 'runs/my'?"),
        ("runs", "runs: not a run folder: no config.json. In it: runs/my.\n"),
        ("other", "other: no such folder. Nothing is downloaded"),
    ],
)
def test_a_run_is_found_where_training_left_it(
    name: str, said: str, tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/my").mkdir(parents=True)
    (tmp_path / "runs/my/config.json").touch()
    monkeypatch.chdir(tmp_path)
    check(addnorm, tmp_path, ["generate", name, "--prompt", "x"], said)


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    check(addnorm, tmp_path, ["new", "norm", "my_norm.py"], "the current folder: No such file")


def test_missing_files_and_folders(tmp_path: Path, addnorm: Command) -> None:
    recipe = write_recipe(tmp_path, "language")
    folder, out = tmp_path / "folder.toml", tmp_path / "out"
    folder.mkdir()
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    for words, said in (
        (["train", tmp_path / "langauge.toml"], "no such recipe. Did you mean 'language.toml'?"),
        (["train", tmp_path / "no" / "r.toml"], "no such recipe"),
        (["train", folder], "folder.toml: a folder, where train needs a recipe"),
        (["train", tmp_path], "a TOML file; in it: language.toml"),
        (["train", tmp_path / "loop.toml"], "loop.toml: no recipe can be read there"),
        (["train", "/dev/null"], "/dev/null"),
        (["train", recipe, "--out", recipe], "is a file"),
        (["train", recipe, "--out", recipe / "below"], "language.toml"),
        (["train", recipe, "--out", out, "--data.train", "/dev/zero"], "not a file but a pipe"),
        (["train", "--resume", tmp_path / "none"], "none: no such run folder"),
    ):
        check(addnorm, tmp_path, words, said)


# Words of the command: `RUN` is a trained language model, `RECIPE` its recipe, `TEXT` a text file.

WORDS = [
    ("trian RECIPE", "Did you mean | train"),
    ("--lr 3", "--lr"),
    ("train", "train needs a recipe"),
    ("train RECIPE --steps 3", "Did you mean '--train.steps'?"),
    ("train RECIPE --train.stps 3", "train.stps | Did you mean 'steps'?"),
    ("train RECIPE --train.steps", "--train.steps needs a value"),
    ("train RECIPE --train.steps many", "--train.steps | 'many' | integer"),
    ("train RECIPE --train.steps 3 --train.steps 4", "given twice: 3 and 4"),
    ("train RECIPE --model.n_heads 3", "Did you mean 'attention.n_heads'?"),
    ("train RECIPE --model.position roatry", "--model.position | Did you mean 'rotary'?"),
    ("train RECIPE --train.device gpu", "device = 'gpu'"),
    ("train RECIPE --train.device cuda:99", "device = 'cuda:99' | Valid: auto, cpu"),
    ("train RECIPE --train.precision bf16", "--train.precision | bfloat16"),
    ("train RECIPE --out a --out b", "--out"),
    ("train RECIPE --dry-rnu", "Did you mean '--dry-run'?"),
    ("train RECIPE --hlep", "Did you mean '--help'?"),
    ("train --hlep", "Did you mean '--help'?"),
    ("train RECIPE --out NOTHING", "--out '': must be the name of a file or folder"),
    ("train RECIPE --out=", "--out '': must be the name of a file or folder"),
    ("train NOTHING", "RECIPE '': must be the name of a file or folder"),
    ("export RUN NOTHING", "OUT '': must be the name of a file or folder"),
    ("generate NOTHING --prompt x", "RUN '': must be the name of a file or folder"),
    ("generate RUN NOTHING", "FILES '': must be the name of a file or folder"),
    ("train RECIPE --import nothing.py", "nothing.py"),
    ("train RECIPE RECIPE", "language.toml"),
    ("generate", "generate: RUN is missing. See `addnorm help generate`"),
    ("generate nowhere", "nowhere: no such folder"),
    ("generate RECIPE", "language.toml"),
    ("generate RUN nothing.txt", "nothing.txt: No such file"),
    ("generate RUN --prompt x TEXT", "either --prompt or files"),
    ("generate RUN --prompt x --prompt y", "--prompt"),
    ("generate RUN --prompt x --beams 0", "--beams 0: must be at least 1 and at most 1024"),
    ("generate RUN --prompt x --beams two", "--beams two: must be an integer"),
    ("generate RUN --prompt x --n-best 0", "--n-best 0: must be at least 1"),
    ("generate RUN --prompt x --beams 2 --n-best 3", "--n-best 3 needs as many --beams"),
    ("generate RUN --prompt x --temperature -1", "--temperature -1: must be greater than 0"),
    ("generate RUN --prompt x --temperature hot", "--temperature hot: must be a number"),
    ("generate RUN --prompt x --top-k 0", "--top-k 0: must be at least 1"),
    ("generate RUN --prompt x --top-p 2", "--top-p 2: must be greater than 0 and at most 1"),
    ("generate RUN --prompt x --min-p -1", "--min-p -1: must be at least 0"),
    ("generate RUN --prompt x --temprature 1", "Did you mean '--temperature'?"),
    ("generate RUN --prompt x --length-penalty 11 --beams 2", "--length-penalty 11: | at most 10"),
    ("generate RUN --prompt x --early-stopping soon", "Valid: true, false, never"),
    ("generate RUN --prompt x --no-repeat-ngram -1", "--no-repeat-ngram -1: must be at least 0"),
    ("generate RUN --prompt x --forced-bos de", "--forced-bos de"),
    ("generate RUN --prompt x --max-new-tokens 0", "--max-new-tokens 0: must be at least 1"),
    ("generate RUN --prompt x --weights int4", "Valid: bfloat16, int8"),
    ("generate RUN --prompt x --device tpu", "--device tpu is not available"),
    ("generate RUN --prompt x --dtype float8", "Valid: float32, bfloat16"),
    ("generate RUN --prompt x --encoding utf9", "--encoding utf9: unknown"),
    ("generate RUN --prompt x --errors ignore", "Did you mean 'skip'? Valid: stop, skip, replace"),
    ("classify RUN TEXT", "use `addnorm generate`"),
    ("classify RUN TEXT --threshold 0.5", "use `addnorm generate`"),
    ("evaluate RUN --split train", "Valid: valid, test"),
    ("evaluate RUN --data.train pley.txt", "Did you mean 'play.txt'?"),
    ("evaluate RUN --eval.metrc bleu", "Did you mean 'metric'?"),
    ("evaluate RUN --predictions p.txt", "leave --predictions out"),
    ("evaluate RUN --model.d_model 32", "does not fit this model"),
    ("embed RUN TEXT --out v", "--out v: lacks an ending. Valid: .npy"),
    ("embed RUN TEXT --out /proc/v.npy", "/proc/v.npy: nothing can be written in /proc"),
    ("generate RUN TEXT gone.txt", "gone.txt: No such file or directory"),
    ("embed RUN TEXT --out v.txt", "--out v.txt: .txt is not a valid form. Did you mean '.jsonl'?"),
    ("embed RUN TEXT --pooling max", "Did you mean 'mean'? Valid: mean, first, last, head"),
    ("embed RUN TEXT --pooling head", "needs a head"),
    ("info nowhere", "nowhere: no such folder"),
    ("info nowhere.toml", "no such recipe"),
    ("info RUN --verfy", "--verify"),
    ("plot", "plot needs a run folder"),
    ("plot RUN --out p.bmp", ".png"),
    ("plot nowhere", "nowhere"),
    ("export RUN", "export: OUT is missing"),
    ("export RUN OUT --to tflite", "Valid: hf, onnx, ctranslate2, gguf"),
    ("export RUN OUT --family lama", "Did you mean 'llama'?"),
    ("export RUN OUT --family gpt2", "gpt2"),
    ("export nowhere OUT", "nowhere: no such folder"),
    ("swap RUN --out OUT --set norm", "norm"),
    ("swap RUN --out OUT --set nrom=rmsnorm", "Did you mean 'norm'?"),
    ("swap RUN --out OUT --set norm=rmsnrm", "Did you mean 'rmsnorm'?"),
    ("swap RUN --out OUT --layers 7", "the model has layers 0 to 0"),
    ("swap RUN --set norm=rmsnorm", "swap: --out is missing"),
    ("new nrom my_norm.py", "Did you mean 'norm'?"),
    ("new norm my-norm.py", "a module is named like my_norm.py"),
    ("parts --jsn", "Did you mean '--json'?"),
    ("check --only nothing_of_this", "nothing_of_this"),
    ("check --part nothing:Here", "nothing"),
    ("check --sample -1", "--sample | 0"),
    ("bench nothing", "nothing"),
    ("bench decode --rounds 0", "--rounds | 1"),
    ("demo --to xx", "--to xx: no such language"),
    ("help tarin", "Did you mean 'train'?"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), WORDS)
def test_words(
    words: str,
    said: str,
    run_of: RunOf,
    tmp_path: Path,
    addnorm: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("To be\n")
    run = run_of("language")
    named = {
        "RUN": run,
        "RECIPE": run.parent / "language.toml",
        "TEXT": tmp_path / "text.txt",
        "OUT": tmp_path / "out",
        "NOTHING": "",
    }
    given: list[object] = [named.get(word, word) for word in words.split()]
    check(addnorm, tmp_path, given, said)


# Run folders: the task, the file, how it is damaged, what is said.

CUT, GONE, TEXT, EMPTY = "cut", "gone", "text", "empty"


def damage(file: Path, how: str) -> None:
    """Cut the file in half, remove it, or write something else over it."""
    if how == GONE:
        file.unlink()
    elif how == CUT:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        file.write_text({TEXT: "no such thing", EMPTY: ""}.get(how, how))


RUNS = [
    ("language", "config.json", CUT, "config.json: damaged"),
    ("language", "config.json", GONE, "not a run folder: no config.json"),
    ("language", "config.json", TEXT, "config.json: damaged"),
    ("language", "config.json", "{}", "config.json: not a run of this version"),
    ("language", "config.json", "[]", "config.json"),
    ("language", "config.json", "[" * 100_000, "config.json: damaged"),
    ("language", "model.safetensors", CUT, "model.safetensors"),
    ("language", "model.safetensors", GONE, "training has not finished: `addnorm train"),
    ("language", "model.safetensors", TEXT, "model.safetensors"),
    ("language", "model.safetensors", EMPTY, "model.safetensors"),
    ("language", "tokenizer.json", CUT, "tokenizer.json is not a tokenizer"),
    ("language", "tokenizer.json", GONE, "tokenizer.json: missing"),
    ("language", "tokenizer.json", TEXT, "tokenizer.json is not a tokenizer"),
    ("language", "tokenizer.json", "{}", "tokenizer.json is not a tokenizer"),
    ("language", "tokenizer.json", "[1]", "tokenizer.json is not a tokenizer"),
    ("classification", "labels.json", GONE, "labels.json: missing"),
    ("classification", "labels.json", CUT, "labels.json: damaged"),
    ("classification", "labels.json", "[]", "labels.json: damaged: not a list of names"),
    ("classification", "labels.json", '["good"]', "model.safetensors | shape"),
    ("translation", "tokenizer.json", CUT, "tokenizer.json is not a tokenizer"),
    ("translation", "model.safetensors", CUT, "model.safetensors"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "how", "said"), RUNS)
def test_a_run(
    task: str, name: str, how: str, said: str, run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    run = tmp_path / "run"
    keep = shutil.ignore_patterns("checkpoints", "best.safetensors")
    shutil.copytree(run_of(task), run, ignore=keep)
    damage(run / name, how)
    (tmp_path / "text.txt").write_text("a red cat\n")
    use = "classify" if task == "classification" else "generate"
    check(addnorm, tmp_path, [use, run, tmp_path / "text.txt"], said)


def test_checkpoints(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    run = Path(shutil.copytree(run_of("language"), tmp_path / "run"))
    for name in ("facts.json", "model.safetensors", "manifest.json"):
        for checkpoint in (run / "checkpoints").iterdir():
            damage(checkpoint / name, CUT)
        before = snapshot(run / "checkpoints")
        code, out, err = addnorm("train", "--resume", run, "--train.steps", 9)
        assert (code, out, snapshot(run / "checkpoints")) == (2, "", before)
        *_, last = err.splitlines()
        assert last.startswith("addnorm: no checkpoint is whole: ")
        assert f"{name}: " in last
        shutil.rmtree(run)
        shutil.copytree(run_of("language"), run)
    words = ["train", "--resume", run, "--model.d_model", 32]
    check(addnorm, tmp_path, words, "--model.d_model: a resumed run keeps it")
    words = ["train", run_of("language").parent / "language.toml", "--out", run]
    check(addnorm, tmp_path, words, "holds a run already | --resume")


# Folders of Hugging Face: the file, how it is damaged, what is said.


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 of random weights."""
    folder = tmp_path_factory.mktemp("hf") / "gpt2"
    tokenizer = train_tokenizer(BPEConfig(vocab_size=262), ["a b a b"])
    sizes = {"d_model": 8, "n_layers": 1, "max_len": 16, "attention": AttentionConfig(n_heads=2)}
    spec = ModelSpec(model=replace(gpt2_small(), **sizes), vocab_size=tokenizer.vocab_size)
    save(folder, spec, build_untrained(spec), Tokenizers(tokenizer, tokenizer))
    (folder / "generation_config.json").write_text("{}")
    return folder


FOREIGN = [
    ("config.json", CUT, "config.json"),
    ("config.json", "{}", "config.json"),
    ("config.json", {"model_type": "gtp2"}, "gtp2 | gpt2"),
    ("config.json", {"n_head": 5}, "n_heads = 5 | must be one of [1, 2, 4, 8]"),
    ("config.json", {"n_embd": "wide"}, "n_embd | wide"),
    ("config.json", {"n_layer": -1}, "n_layer | -1"),
    ("config.json", {"n_layer": 3}, "the weights do not fit config.json: missing transformer.h.1"),
    ("config.json", {"vocab_size": 5}, "config.json has vocab_size = 5"),
    ("config.json", {"activation_function": "gelu_nwe"}, "activation_function | gelu_new"),
    ("model.safetensors", CUT, "model.safetensors"),
    ("model.safetensors", TEXT, "model.safetensors"),
    ("model.safetensors", GONE, "model.safetensors"),
    ("tokenizer.json", CUT, "tokenizer.json"),
    ("tokenizer.json", TEXT, "tokenizer.json"),
    ("tokenizer.json", GONE, "this model has no tokenizer"),
    ("generation_config.json", CUT, "generation_config.json"),
    ("generation_config.json", '{"num_beams": "many"}', "num_beams = 'many'"),
    ("generation_config.json", '{"do_sample": true, "temperature": -1}', "temperature = -1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "how", "said"), FOREIGN)
def test_a_folder_of_hugging_face(
    name: str, how: str | dict[str, object], said: str, hf: Path, tmp_path: Path, addnorm: Command
) -> None:
    folder = Path(shutil.copytree(hf, tmp_path / "hf"))
    if isinstance(how, dict):
        how = json.dumps({**json.loads((folder / name).read_text()), **how})
    damage(folder / name, how)
    check(addnorm, tmp_path, ["generate", folder, "--prompt", "a", "--beams", 1], said)
