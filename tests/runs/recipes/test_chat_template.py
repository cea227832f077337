"""Chat templates: read from folders of any form, and written back where transformers finds them."""

import json
from pathlib import Path

import pytest
from tests.runs.inference.test_chat import RECIPE, write_talk
from tests.runs.tiny import PARTS, train_text
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.runs.inference.chat import chat_prompt
from addnorm.runs.recipes.chat_template import TEMPLATE, TOKENIZER, chat_template, copy_template
from addnorm.runs.run import Run

LLAMA = """
d_model = 16
n_layers = 1
max_len = 256
position = { kind = "rotary" }
attention = { n_heads = 2, bias = false }
feedforward = { kind = "gated", d_ff = 32, bias = false }
norm = { kind = "rmsnorm" }
residual = { kind = "pre" }
embedding = { scale = "one" }
head = { tied = false }
"""
ASKED = [{"role": "user", "content": "1 and 1?"}]


def test_the_template_of_a_folder_from_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert chat_template(tmp_path) is None
    kept = tmp_path / "tokenizer_config.json"
    kept.write_text(json.dumps({"chat_template": "A"}))
    assert chat_template(tmp_path) == "A"
    several = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "C"}]
    kept.write_text(json.dumps({"chat_template": several}))
    assert chat_template(tmp_path) == "C"
    kept.write_text("{}")
    assert chat_template(tmp_path) is None
    for wrong, said in (
        (json.dumps({"chat_template": several[:1]}), "has tool_use, and no default"),
        (json.dumps({"chat_template": 3}), "neither a text nor a list"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
    ):
        kept.write_text(wrong)
        with pytest.raises(InputError, match=said):
            chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("D")
    assert chat_template(tmp_path) == "D"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(InputError, match="cannot be read"):
        chat_template(tmp_path)


def test_templates_by_name(tmp_path: Path) -> None:
    """In an object of the settings, or in files of their own, which come first."""
    settings = tmp_path / TOKENIZER
    settings.write_text(json.dumps({"chat_template": {"rag": "A", "default": "B"}}))
    assert chat_template(tmp_path) == "B"
    (tmp_path / "out").mkdir()
    copy_template([tmp_path], tmp_path / "out")
    assert chat_template(tmp_path / "out") == "B"
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("C")
    with pytest.raises(InputError, match="has tool_use, and no default"):
        chat_template(tmp_path)
    (tmp_path / TEMPLATE).write_text("D")
    assert chat_template(tmp_path) == "D"
    copy_template([tmp_path], tmp_path / "out")
    written = json.loads((tmp_path / "out" / TOKENIZER).read_text())["chat_template"]
    assert {one["name"]: one["template"] for one in written} == {"default": "D", "tool_use": "C"}
    theirs = pytest.importorskip("transformers").PreTrainedTokenizerFast
    inner = Library(BPE({"a": 0}, []))
    for folder in (tmp_path, tmp_path / "out"):
        inner.save(str(folder / "tokenizer.json"))
        assert theirs.from_pretrained(folder).get_chat_template() == "D"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    write_talk(tmp_path)
    return train_text(tmp_path, "run", RECIPE.replace(PARTS, LLAMA))


def test_an_exported_folder_chats_in_transformers_and_here(run: Run, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run.export(tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    asked = chat_prompt(run, ASKED)
    found = theirs.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    assert found == asked
    again = Run.open(tmp_path / "hf")
    assert chat_prompt(again, ASKED) == asked
    greedy = {"max_new_tokens": 5, "beams": 1}
    assert again.chat(ASKED, **greedy) == run.chat(ASKED, **greedy)
    saved = again.save(tmp_path / "saved")
    assert chat_prompt(Run.open(tmp_path / "saved"), ASKED) == chat_prompt(saved, ASKED) == asked
    file = tmp_path / "hf" / TEMPLATE
    file.write_text(file.read_text() + "{{ strftime_now('%Y') }}")  # today's, as over there
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    found = theirs.apply_chat_template(ASKED, add_generation_prompt=True, return_dict=False)
    assert chat_prompt(Run.open(tmp_path / "hf"), ASKED) == found != asked


def test_several_templates_stay_several(run: Run, tmp_path: Path) -> None:
    run.export(tmp_path / "hf")
    (tmp_path / "hf" / TEMPLATE).unlink()
    file = tmp_path / "hf" / TOKENIZER
    several = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": several}))
    Run.open(tmp_path / "hf").export(tmp_path / "again")
    kept = json.loads((tmp_path / "again" / TOKENIZER).read_text())
    assert kept["chat_template"] == several
    assert chat_template(tmp_path / "again") == "A"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": "C"}))
    Run.open(tmp_path / "hf").export(tmp_path / "one")
    assert (tmp_path / "one" / TEMPLATE).read_text() == "C"


def test_a_folder_from_elsewhere_answers_messages(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run itself does, which takes every text as a message; without `--chat` it goes on."""
    out = tmp_path / "hf"
    run.export(out, to="hf")
    greedy = ["--beams", "1", "--max-new-tokens", "8", "--prompt", "1 and 1?"]
    said: list[str] = []
    for words in (["run"], [str(out), "--chat"], [str(out)]):
        assert status(["generate", *words, *greedy]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    lines = tmp_path / "asked.txt"
    lines.write_text("1 and 1?\n2 and 2?\n")
    assert status(["generate", str(out), str(lines), "--chat", "--beams", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    (out / TEMPLATE).unlink()
    (out / TOKENIZER).write_text("{}")
    assert status(["generate", str(out), "--chat", "--prompt", "a"]) == 2
    assert "no chat template" in capsys.readouterr().err
