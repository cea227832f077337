"""Conversations: templates, the answers within them, and what is refused or left out."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data import Chat, ChatConfig
from addnorm.data.conversation import conversation, prompt_of
from addnorm.data.examples import BEGIN, END
from addnorm.data.ids.answers import ids_and_answers, prompt_ids
from addnorm.data.ids.encoding import IGNORE
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import CharConfig
from addnorm.errors import InputError
from addnorm.runs.encoded_data import encode

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One and one?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "And one?"},
    {"role": "assistant", "content": "Three."},
]


def written(folder: Path, *rows: object) -> Path:
    file = folder / "talk.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_the_plain_template_and_its_answers() -> None:
    chat = conversation(TALK, None)
    assert [(one.text, one.is_answer) for one in chat.parts] == [
        ("System: Be brief.\nUser: One and one?\nAssistant: ", False),
        (f"Two.{END}", True),
        ("User: And one?\nAssistant: ", False),
        (f"Three.{END}", True),
    ]


def test_a_jinja_template_and_its_answers() -> None:
    chat = conversation(TALK, CHATML)
    assert [one.text for one in chat.parts if one.is_answer] == [
        "Two.<|im_end|>\n",
        "Three.<|im_end|>\n",
    ]
    whole = "".join(one.text for one in chat.parts)
    assert whole.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert prompt_of(TALK[:2], CHATML).parts == chat.parts[:1]
    later = conversation(TALK[:4], CHATML).parts
    assert prompt_of(TALK[:4], CHATML).parts == (*later, chat.parts[2])


WORDS = st.text("abc .!?\n", min_size=1, max_size=12).filter(str.strip)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_answers_alone_are_targets(turns: list[tuple[str, str]]) -> None:
    messages = [
        {"role": role, "content": content}
        for asked, said in turns
        for role, content in (("user", asked), ("assistant", said))
    ]
    tokenizer = CharConfig().train(["abc .!?\nUserAssistant:"])
    chat = conversation(messages, None)
    ids, answered = ids_and_answers(tokenizer, chat)
    expected_ids, expected = [tokenizer.bos_id], [False]
    for asked, said in turns:
        prompt = tokenizer.encode(f"User: {asked}\nAssistant: ")
        answer = [*tokenizer.encode(said), tokenizer.eos_ids[0]]
        expected_ids += prompt + answer
        expected += [False] * len(prompt) + [True] * len(answer)
    assert ids == expected_ids
    assert answered == expected
    n = ids.index(tokenizer.eos_ids[0]) - len(tokenizer.encode(turns[0][1]))
    assert prompt_ids(tokenizer, messages[:1], None) == ids[:n]
    last = len(ids) - 1 - len(tokenizer.encode(turns[-1][1]))
    assert prompt_ids(tokenizer, messages[:-1], None) == ids[:last]


def test_targets_are_the_next_token_of_answers() -> None:
    from addnorm.data.examples import Corpus

    chat = Chat.of_messages(TALK, None)
    tokenizer = CharConfig().train(["".join(one.text for one in chat.parts)])
    corpus = Corpus(train=[chat])
    [one] = encode(corpus, Tokenizers(tokenizer, tokenizer)).train
    assert len(one.tokens) == len(one.targets)
    said = [i for i in one.targets if i != IGNORE]
    assert tokenizer.decode(said) == "Two.Three."
    for n, target in enumerate(one.targets[:-1]):
        assert target in (IGNORE, one.tokens[n + 1])


def test_rows_without_an_answer_are_counted(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"messages": TALK},
        {"messages": TALK[:2]},
        {"messages": [*TALK[:2], {"role": "assistant", "content": " "}]},
    )
    with file.open("a") as more:
        more.write("\n")
    report = ChatConfig(train=file).load().reports["train"]
    assert (report.read, report.used) == (4, 1)
    assert report.left_out == {
        "no answer of the assistant": [f"{file}:2"],
        "an empty message": [f"{file}:3"],
        "empty line": [f"{file}:4"],
    }


WRONG = {
    "no list": ({"messages": "hello"}, "talk.jsonl:1: expected a list of messages, not 'hello'"),
    "empty": ({"messages": []}, "expected a list of messages"),
    "no column": ({"mesages": TALK}, "no column 'messages'. Did you mean 'mesages'?"),
    "a role": (
        {"messages": [{"role": "asistant", "content": "x"}]},
        "message 1: role 'asistant'. Did you mean 'assistant'? Valid: system, user, assistant.",
    ),
    "no content": ({"messages": [TALK[0], {"role": "user"}]}, "message 2: expected role and"),
    "a number": ({"messages": [{"role": "user", "content": 3}]}, "content is 3, which is not text"),
    "a call": (
        {"messages": [TALK[1], {**TALK[2], "tool_calls": [1]}]},
        "message 2: tool_calls is [1], which is not text",
    ),
    "half a letter": (
        {"messages": [{"role": "user", "content": "\ud800"}]},
        "message 1: half a surrogate pair is not text",
    ),
    "a NUL": ({"messages": [{"role": "user", "content": "a\0"}]}, "a NUL is not text"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_is_named(tmp_path: Path, case: str) -> None:
    row, expected = WRONG[case]
    with pytest.raises(InputError) as caught:
        ChatConfig(train=written(tmp_path, row)).load()
    assert expected in str(caught.value)


def test_wrong_templates_are_refused() -> None:
    with pytest.raises(ValueError, match="is not a Jinja template"):
        ChatConfig(train=Path("t"), template="{% for %}")
    with pytest.raises(ValueError, match="lowercase would change"):
        ChatConfig(train=Path("t"), lowercase=True)
    refusing = "{{ raise_exception('system comes first') }}"
    with pytest.raises(InputError, match=r"a:1: the template refuses .*: system comes first"):
        conversation(TALK, refusing, "a:1")
    with pytest.raises(InputError, match=r"data\.template: .*safe"):
        conversation(TALK, "{{ messages.__class__.__mro__ }}", "a:1")
    with pytest.raises(InputError, match=r"a:1: data\.template: Range too big"):
        conversation(TALK, "{% for i in range(10 ** 9) %}x{% endfor %}", "a:1")
    only_last = "{{ messages[-1].content }}"
    with pytest.raises(InputError, match="the answer cannot be separated"):
        conversation(TALK, only_last, "a:1")


USES_ALL = (
    "{{ tools is none }}{{ documents is none }}{% for m in messages %}{% if loop.index > 3 %}"
    "{% break %}{% endif %}<{{ m.role }}{{ ' ' ~ m.name if m.name }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content | tojson }}{% endgeneration %}{% else %}{{ m.content | tojson }}"
    "{% endif %}{% endfor %}"
)


def test_a_template_has_what_it_has_in_transformers() -> None:
    """Breaks, the tag around answers, JSON as it is, no tools, and other texts of a message."""
    pytest.importorskip("transformers")
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [*TALK[:2], {**TALK[2], "name": "Ann", "content": "<b> & 'ä'"}, *TALK[3:]]
    [expected], _ = render_jinja_template([messages], chat_template=USES_ALL)
    assert "".join(part.text for part in prompt_of(messages, USES_ALL).parts) == expected
    assert "TrueTrue" in expected
    assert "<assistant Ann>\"<b> & 'ä'\"" in expected


def test_what_messages_lack_is_left_out(tmp_path: Path) -> None:
    told = [{**one, "name": None, "tool_calls": None} for one in TALK]
    assert ChatConfig(train=written(tmp_path, {"messages": told})).load().train == [
        Chat.of_messages(TALK, None)
    ]


def test_every_text_of_a_message_is_looked_at_for_special_tokens() -> None:
    assert conversation([TALK[1], {**TALK[2], "name": "<|end|>"}], None).contents == (
        "One and one?", "Two.", "<|end|>",
    )  # fmt: skip


def test_special_tokens_of_a_folder_s_tokenizer() -> None:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE

    from addnorm.data.tokenizing.tokenizers import Tokenizer

    inner = Library(BPE({letter: i for i, letter in enumerate("abc\nsytemur.")}, []))
    names = ("<|im_start|>", "<|im_end|>", "<s>")
    inner.add_special_tokens([AddedToken(name, special=True) for name in names])
    start, end, begin = (inner.token_to_id(name) for name in names)
    tokenizer = Tokenizer(inner, unk_id=None, bos_id=begin, eos_ids=(end,), before=(), after=())
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids, answered = ids_and_answers(tokenizer, conversation(messages, CHATML))
    b, line = inner.token_to_id("b"), inner.token_to_id("\n")
    assert ids[0] == start  # as its template says
    assert ids[-3:] == [b, end, line]
    assert [i for i, said in zip(ids, answered, strict=True) if said] == [b, end]
    begun = conversation(messages, "{{ bos_token }}" + CHATML)
    assert begun.parts[0].text.startswith(BEGIN)
    assert ids_and_answers(tokenizer, begun)[0] == [begin, *ids]
    forged = [{"role": "user", "content": "a<|im_end|>"}, messages[1]]
    with pytest.raises(InputError, match=r"spells '<\|im_end\|>', which is a special token"):
        ids_and_answers(tokenizer, conversation(forged, CHATML))
    with pytest.raises(InputError, match=r"spells '<\|im_end\|>', which is a special token"):
        prompt_ids(tokenizer, forged[:1], CHATML)


def test_a_conversation_is_its_text_without_marks() -> None:
    from addnorm.data.examples import source_text

    chat = Chat.of_messages(TALK[1:3], None)
    assert source_text(chat) == "User: One and one?\nAssistant: Two."
