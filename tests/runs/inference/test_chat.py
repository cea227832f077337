"""Chat from a recipe: training on answers alone, resuming, perplexity, and answering."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import PARTS, train_text
from torch.nn import functional as F

from addnorm.cli.main import status
from addnorm.errors import InputError
from addnorm.runs.evaluation import evaluate_on
from addnorm.runs.run import Run

RECIPE = f"""
[data]
kind = "chat"
train = "talk.jsonl"
valid_fraction = 0.25

[tokenizer]
kind = "char"

[model]
kind = "decoder"
{PARTS}
[train]
steps = 4
save_every = 2
batching = {{ kind = "tokens", tokens = 400 }}
"""


def write_talk(folder: Path) -> None:
    rows = [
        [
            {"role": "user", "content": f"{n} and {n}?"},
            {"role": "assistant", "content": f"{2 * n}."},
        ]
        for n in range(20)
    ]
    lines = (json.dumps({"messages": row}) for row in rows)
    (folder / "talk.jsonl").write_text("\n".join(lines))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_talk(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_chat_training_resumes_to_the_bit_and_counts_answers_alone(root: Path) -> None:
    whole = train_text(root, "whole", RECIPE)
    train_text(root, "parts", RECIPE, train__steps="2")
    steady = RECIPE.replace("[train]\n", '[train]\nschedule = "constant"\n')
    whole = train_text(root, "whole2", steady)
    train_text(root, "parts2", steady, train__steps="2")
    parts = train_text(root, "parts2", steady)
    assert all(torch.equal(w, whole.weights[name]) for name, w in parts.weights.items())
    scores = evaluate_on(whole)
    corpus, tokenizer = whole.recipe.corpus(), whole.tokenizers.source
    total, n = 0.0, 0
    for example in corpus.valid:
        asked, said = example.parts  # pyright: ignore[reportAttributeAccessIssue]
        prompt = [tokenizer.bos_id, *tokenizer.encode(asked.text)]
        answer = [*tokenizer.encode(said.text.removesuffix("\0end\0")), tokenizer.eos_ids[0]]
        with torch.no_grad():
            logits = whole.model(torch.tensor([[*prompt, *answer]]))[0]
        for at, target in enumerate(answer, len(prompt) - 1):
            total += float(F.cross_entropy(logits[at], torch.tensor(target)))
            n += 1
    assert scores["loss"] == pytest.approx(total / n, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(total / n), rel=1e-5)


def test_a_text_is_a_user_s_message(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_text(root, "run", RECIPE)
    asked = [{"role": "user", "content": "3 and 3?"}]
    answer = run.chat(asked, beams=1, max_new_tokens=5)
    assert run.generate("3 and 3?", beams=1, max_new_tokens=5) == answer
    told = ["generate", "run", "--prompt", "3 and 3?", "--beams", "1", "--max-new-tokens", "5"]
    assert status(told) == 0
    assert capsys.readouterr().out.rstrip("\n") == answer.rstrip("\n")
    ids = [
        run.tokenizers.source.bos_id,
        *run.tokenizers.source.encode("User: 3 and 3?\nAssistant: "),
    ]
    with torch.no_grad():
        first = int(run.model(torch.tensor([ids]))[0, -1].argmax())
    if first not in run.tokenizers.source.eos_ids:
        assert answer.startswith(run.tokenizers.source.decode([first]))
    longer = [
        *asked,
        {"role": "assistant", "content": "6."},
        {"role": "user", "content": "1 and 1?"},
    ]
    assert isinstance(run.chat(longer, max_new_tokens=3), str)
    with pytest.raises(InputError, match="there is nothing to answer"):
        run.chat(longer[:2])
    with pytest.raises(InputError, match="expected a list of messages"):
        run.chat([])


def test_a_run_resumes_with_its_first_template(root: Path) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    template += "{% if add_generation_prompt %}[assistant]{% endif %}"
    text = RECIPE.replace("valid_fraction", f"template = {json.dumps(template)}\nvalid_fraction")
    train_text(root, "first", text)
    without = RECIPE.replace("[train]\n", '[train]\nstart = "first"\n')
    start, end = without.index("[tokenizer]"), without.index("[model]")
    tuned = train_text(root, "second", without[:start] + without[end:])
    assert tuned.recipe.data.template == template  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert isinstance(Run.open(root / "second").chat([{"role": "user", "content": "1"}]), str)


def test_a_model_that_did_not_learn_to_chat(root: Path) -> None:
    text = RECIPE.replace('kind = "chat"', 'kind = "text"').replace("tokens = 400", "tokens = 2000")
    other = train_text(root, "text", text)
    with pytest.raises(InputError, match="text: no chat template"):
        other.chat([{"role": "user", "content": "1 and 1?"}])


def test_batches_that_make_every_token_a_target_are_refused(root: Path) -> None:
    text = RECIPE.replace('kind = "tokens", tokens = 400', 'kind = "windows"')
    with pytest.raises(InputError, match=r"answers of a conversation are: it needs 'tokens'"):
        train_text(root, "run", text)
    other = RECIPE.replace('kind = "decoder"', 'kind = "encoder_decoder"')
    with pytest.raises(InputError, match="the data are for language, the model is for translation"):
        train_text(root, "run", other)


def test_rendered_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    from tests.data.readers.test_chat import CHATML, TALK
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    from addnorm.data.conversation import render

    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Library(BPE({"a": 0}, [])), bos_token="<s>", eos_token="</s>"
    )
    for template in (CHATML, "{{ bos_token }}" + CHATML + "\n{%- if true %}\n  x{% endif %}\n"):
        for prompt in (False, True):
            expected = theirs.apply_chat_template(
                TALK[:4], chat_template=template, tokenize=False, add_generation_prompt=prompt
            )
            found = render(TALK[:4], template, "here", prompt=prompt)
            assert found.replace("\0begin\0", "<s>").replace("\0end\0", "</s>") == expected


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_of_conversations_is_answered(
    suffix: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `Run.chat` answers each; an answer at the end of one is written again."""
    run = train_text(root, "run", RECIPE)
    asked = [
        [{"role": "user", "content": "1 and 1?"}],
        [
            {"role": "system", "content": "2"},
            {"role": "user", "content": "3?"},
            {"role": "assistant", "content": "3."},
            {"role": "user", "content": "4?"},
        ],
        [{"role": "user", "content": "5?"}, {"role": "assistant", "content": "5."}],
    ]
    file = root / f"asked{suffix}"
    if suffix == ".jsonl":
        file.write_text("\n\n".join(json.dumps({"messages": one}) for one in asked))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist([{"messages": one} for one in asked]), file)
    words = ["generate", "run", str(file), "--beams", "1", "--max-new-tokens", "6"]
    for chat in ([], ["--chat"]):
        capsys.readouterr()
        assert status([*words, *chat, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["input"] for row in rows] == [1, 2, 3]
        for row, messages in zip(rows, [asked[0], asked[1], asked[2][:1]], strict=True):
            expected = run.chat(messages, beams=1, max_new_tokens=6)
            assert row["text"] == expected
            assert row["messages"] == [*messages, {"role": "assistant", "content": expected}]
    assert status(words) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_damaged_conversation_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_text(root, "run", RECIPE)
    whole = json.dumps({"messages": [{"role": "user", "content": "1?"}]})
    for line, said in (
        ("no JSON", ":2: not JSON"),
        ('{"mesages": []}', ":2: no column 'messages'. Did you mean 'mesages'?"),
        ('{"messages": []}', ":2: expected a list of messages"),
        ('{"messages": [{"role": "usr", "content": "a"}]}', ':2: message 1: role "usr"'),
        ('{"messages": [{"role": "user", "content": "a"}], "tools": 1}', ":2: tools: expected a"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', ":2: no message to answer"),
    ):
        (root / "asked.jsonl").write_text(f"{whole}\n{line}\n{whole}\n")
        words = ["generate", "run", "asked.jsonl", "--beams", "1", "--max-new-tokens", "3"]
        capsys.readouterr()
        assert status(words) == 2
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 1
        assert err.startswith("addnorm: asked.jsonl") or "asked.jsonl" in err
        assert said in err
        assert err.count("\n") == 1
        assert status([*words, "--errors", "skip"]) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == 2
        assert "1 line skipped" in err
    (root / "lines.txt").write_text(f"{whole}\n")
    capsys.readouterr()
    assert status(["generate", "run", "lines.txt", "--json", "--max-new-tokens", "3"]) == 0
    assert "messages" not in json.loads(capsys.readouterr().out)


def test_messages_with_tools(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a template that takes tools; the call itself is read from a text that was written."""
    from tests.data.chat_templates import HERMES, TALK, TOOLS, written_call

    from addnorm.data.chat_input import ChatInput
    from addnorm.runs.inference.chat import pieces_of, reply_of

    text = RECIPE.replace("valid_fraction", f"template = {json.dumps(HERMES)}\nvalid_fraction")
    run = train_text(root, "calls", text.replace('kind = "char"', 'kind = "bpe"\nvocab_size = 300'))
    short = {"beams": 1, "max_new_tokens": 4}
    answer = run.chat(TALK, tools=TOOLS, **short)  # pyright: ignore[reportArgumentType]
    assert run.reply(TALK, tools=TOOLS, **short) == {"role": "assistant", "content": answer}  # pyright: ignore[reportArgumentType]
    chat = ChatInput.of(TALK, TOOLS)
    written = "Hm. " + written_call("hermes", "tide", {"city": "Cork"})
    message = reply_of(run, chat, written)
    assert message["content"] == "Hm."
    assert message["tool_calls"][0]["function"] == {"name": "tide", "arguments": {"city": "Cork"}}
    *said, last = pieces_of(run, chat, iter(written))
    assert "".join(map(str, said)) == "Hm."
    assert last["tool_calls"][0]["function"] == message["tool_calls"][0]["function"]  # pyright: ignore
    result = {"role": "tool", "content": "low", "tool_call_id": message["tool_calls"][0]["id"]}
    assert isinstance(run.chat([*TALK, message, result], tools=TOOLS, max_new_tokens=2), str)
    (root / "talk.json").write_text(json.dumps({"messages": TALK, "tools": TOOLS}))
    words = ["generate", "calls", "--beams", "1", "--max-new-tokens", "4", "--messages"]
    capsys.readouterr()
    assert status([*words, "talk.json", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["messages"] == [*TALK, {"role": "assistant", "content": answer}]
    assert row["text"] == answer
    assert status([*words, "talk.json"]) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    for tree, said in (
        ({"messages": TALK[:2]}, "the last one is the assistant's"),
        ([{"role": "user", "content": [{"type": "image"}]}], 'piece 1 is of type "image"'),
        ({"messages": TALK, "tool": TOOLS}, 'no key "tool". Did you mean "tools"?'),
    ):
        (root / "wrong.json").write_text(json.dumps(tree))
        assert status([*words, "wrong.json"]) == 2
        assert said in capsys.readouterr().err
    assert status([*words, "talk.json", "--prompt", "a"]) == 2
    assert "either --prompt or --messages" in capsys.readouterr().err


def test_tools_without_a_template_that_takes_them(root: Path) -> None:
    from tests.data.chat_templates import TOOLS

    run = train_text(root, "run", RECIPE)
    with pytest.raises(InputError, match="tools: the chat template of this model takes none"):
        run.chat([{"role": "user", "content": "3"}], tools=TOOLS)
