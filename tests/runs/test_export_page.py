"""A run as a page: it answers in a browser as the run does, or its task is refused by name."""

import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.browser import Browser, browser
from tests.runs.every_kind import KINDS, write_kind
from tests.runs.tiny import SENTENCES
from tests.test_house import write_gpt2
from torch.nn import functional as F
from torch.testing import assert_close

from addnorm.convert.exporters.web import TEMPLATE, read_page
from addnorm.data.batches.batch import scaled
from addnorm.errors import InputError
from addnorm.quantize import is_quantized
from addnorm.runs.export import export_run, unsupported_forms
from addnorm.runs.export_page import check_page, in_int8, page_facts
from addnorm.runs.inference.forecast import next_steps
from addnorm.runs.inference.text import prompts
from addnorm.runs.run import Run

REFUSED = {
    "crf": "CRFHead",
    "spans": "a model for denoising has no page",
    "infilling": "a model for denoising has no page",
    "chat": "a model for conversations has no page",
    "series": "a model for classification of series has no page",
    "scored series": "a model for regression of series has no page",
    "sound": "a model for classification of audio has no page",
}
"""The kinds of runs without a page, and why."""


def shown_numbers(page: Browser) -> dict[str, float]:
    """The names and values in the bars of a page, whose values are rounded to per cent."""
    rows = page.run(
        "[...document.querySelectorAll('#result li')].map((row) => "
        "[row.querySelector('.name').textContent, row.querySelector('.bar').style"
        ".getPropertyValue('--share')])"
    )
    return {name: float(share) for name, share in rows}


def _continues(page: Browser, run: Run, folder: Path) -> None:
    page.run(
        "document.querySelectorAll('input[type=range]').forEach((slider, i) => {"
        "slider.value = [0, 0, 12][i]; slider.dispatchEvent(new Event('input')); })"
    )
    for prompt in ("To be", "that is the question. G", "", "an unknown Ω: "):
        page.wait("document.querySelector('textarea')")
        page.type("#text", prompt)
        page.click("#run")
        page.wait("document.querySelector('#run').textContent === 'Continue'")
        page.wait("document.querySelector('#text').ariaBusy !== 'true'")
        found = page.run(
            "document.querySelector('#text').value ?? document.querySelector('#text').textContent"
        )
        expected = run.generate(prompt, beams=1, max_new_tokens=12)
        assert found == prompt + str(expected)
        page.run(
            "[...document.querySelectorAll('button')]"
            ".find((each) => each.textContent === 'Edit')?.click()"
        )


def _translates(page: Browser, run: Run, folder: Path) -> None:
    for source in ("one red dog", "the cat sees", "unknown words, two dogs"):
        page.type("#text", source)
        page.click("#run")
        page.wait("document.querySelector('#result').dataset.done === 'true'")
        assert page.run("document.querySelector('#result').textContent") == str(
            run.generate(source, beams=1)
        )


def _classifies(page: Browser, run: Run, folder: Path) -> None:
    for text in ("a fine day", "wet, cold and unknown", "good"):
        page.type("#text", text)
        page.wait(f"document.querySelector('#result').dataset.of === {json.dumps(text)}")
        if run.task == "regression":
            [expected] = run.predict([text]).tolist()
            values = page.run(
                "[...document.querySelectorAll('#result dd')].map((x) => x.innerText)"
            )
            assert_close(
                [float(value.replace(",", "")) for value in values], expected, rtol=1e-3, atol=1e-3
            )
        else:
            [answer] = run.classify([text])
            assert_close(shown_numbers(page), dict(answer.probabilities), rtol=1e-4, atol=1e-5)


def _classifies_pairs(page: Browser, run: Run, folder: Path) -> None:
    for pair in (("cat dog", "dog"), ("red", "blue green red")):
        page.type("#text", pair[0])
        page.type("#text1", pair[1])
        of = json.dumps("\n".join(pair))
        page.wait(f"document.querySelector('#result').dataset.of === {of}")
        [answer] = run.classify([pair])
        assert_close(shown_numbers(page), dict(answer.probabilities), rtol=1e-4, atol=1e-5)


def _tags(page: Browser, run: Run, folder: Path) -> None:
    for words in (["Anna", "lives", "in", "Bonn"], SENTENCES.split()[::2]):
        page.type("#text", " ".join(words))
        page.wait(
            f"document.querySelector('#result')?.dataset.of === {json.dumps(' '.join(words))}"
        )
        tags = page.run("document.querySelector('#result').dataset.tags")
        assert tags.split() == run.tag([words])[0]


def _fills(page: Browser, run: Run, folder: Path) -> None:
    for text in ("To [MASK] or", "[MASK] be, or <mask>", "an unknown Ω [MASK]"):
        page.type("#text", text)
        page.wait(f"document.querySelector('#result').dataset.of === {json.dumps(text)}")
        [expected] = run.fill([text])
        assert page.run("document.querySelector('#result p').textContent") == expected.text
        shares = page.run(
            "[...document.querySelectorAll('#result .bar')].map((bar) => "
            "+bar.style.getPropertyValue('--share'))"
        )
        candidates = [candidate for mask in expected.masks for candidate in mask]
        probabilities = [candidate.probability for candidate in candidates]
        assert_close(shares, probabilities, rtol=1e-4, atol=1e-5)


def _compares(page: Browser, run: Run, folder: Path) -> None:
    texts = ["cat dog", "dog", "red dog cat"]
    for i, text in enumerate(texts):
        page.type(f"#text{i or ''}", text)
    page.wait("document.querySelector('#result').dataset.cosines.split(' ')[2]")
    vectors = run.embed(texts)
    found = page.run("document.querySelector('#result').dataset.cosines").split()
    expected = F.cosine_similarity(vectors[:1], vectors).tolist()
    assert_close([float(cosine) for cosine in found], expected, rtol=1e-4, atol=1e-4)


def _sees(page: Browser, run: Run, folder: Path) -> None:
    facts = page_facts(run)
    shape = facts["channels"], facts["height"], facts["width"]
    pixels = torch.randint(256, shape, generator=torch.Generator().manual_seed(0))
    found = page.run(f"addnorm.model.classify({pixels.flatten().tolist()})")
    with torch.inference_mode():
        expected = run.model(scaled(pixels[None])).softmax(-1)[0].tolist()
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    best = facts["labels"][max(range(len(expected)), key=expected.__getitem__)]
    page.wait(f"document.querySelector('#result').textContent === {json.dumps(best)}")


def _forecasts(page: Browser, run: Run, folder: Path) -> None:
    page.wait("document.querySelector('#result').dataset.done === 'true'")
    history = page_facts(run, examples=True)["history"]
    found = page.run("addnorm.model.forecast(addnorm.facts.history)")
    expected = next_steps(run, torch.tensor(history, dtype=torch.float64), len(found[0]))
    assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=1e-4, atol=1e-4)


ANSWERS: dict[str, Callable[[Browser, Run, Path], None]] = {
    "language": _continues,
    "translation": _translates,
    "classification": _classifies,
    "multi_label": _classifies,
    "regression": _classifies,
    "tagging": _tags,
    "pairs": _classifies_pairs,
    "similarity": _compares,
    "masked": _fills,
    "images": _sees,
    "pictures": _sees,
    "forecasting": _forecasts,
}


def test_every_kind_of_run_has_a_page_or_a_refusal() -> None:
    assert {*ANSWERS, *REFUSED} == {*KINDS}
    assert not {*ANSWERS} & {*REFUSED}


@pytest.mark.parametrize(
    "kind", ["crf", "chat", *(pytest.param(kind, marks=pytest.mark.slow) for kind in REFUSED)]
)
def test_a_task_without_a_page_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    run = write_kind(tmp_path, kind)
    with pytest.raises(InputError, match=REFUSED[kind]) as refused:
        check_page(run)
    assert unsupported_forms(run)["web"] == str(refused.value)


def test_weights_are_int8_unless_float32_is_given(tmp_path: Path) -> None:
    run = write_kind(tmp_path, "classification")
    assert is_quantized(in_int8(run).model)
    assert not is_quantized(run.model)
    facts = page_facts(in_int8(run))
    assert (facts["precision"], page_facts(run)["precision"]) == ("int8", "float32")
    assert facts["weights"] == sum(weight.numel() for weight in run.weights.values())
    with pytest.raises(InputError, match="a page computes in float32: give that, or leave it out"):
        export_run(run, tmp_path / "page.html", to="web", dtype="float16")
    assert not (tmp_path / "page.html").exists()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    if not TEMPLATE.is_file():
        pytest.skip("the page is not built: `make page`")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_page_answers_as_its_run_does(kind: str, window: Browser, tmp_path: Path) -> None:
    run, page = write_kind(tmp_path, kind), tmp_path / "page.html"
    lines = export_run(run, page, to="web", dtype="float32")
    assert re.fullmatch(r".*page\.html: a page of \d\.\d MiB, .*", lines[0])
    searches = f"{page}: writes the likeliest token each time; the run searches with 2 beams"
    assert (searches in lines) == (kind == "translation")
    window.open(page)
    window.wait("window.addnorm")
    ANSWERS[kind](window, run, tmp_path)
    assert not window.log
    assert not window.run("document.querySelector('[role=alert]')?.textContent")


@pytest.mark.slow
def test_special_tokens_that_are_spelt_in_a_prompt_are_read_as_the_folder_does(
    window: Browser, tmp_path: Path
) -> None:
    write_gpt2(tmp_path / "gpt2")
    run, page = Run.open(tmp_path / "gpt2"), tmp_path / "page.html"
    export_run(run, page, to="web", dtype="float32")
    window.open(page)
    window.wait("window.addnorm")
    for prompt in ("To be", "To<|endoftext|> be, or", " Größe 👍🏽\n"):
        [expected] = prompts(run, [prompt])
        assert window.run(f"addnorm.model.source.ids({json.dumps(prompt)})") == expected
    _continues(window, run, tmp_path)


@pytest.mark.slow
def test_int8_weights_in_a_page_are_those_of_a_quantised_run(
    window: Browser, tmp_path: Path
) -> None:
    run, page = write_kind(tmp_path, "translation"), tmp_path / "page.html"
    export_run(run, page, to="web")
    assert json.loads(read_page(page)["facts"])["precision"] == "int8"
    window.open(page)
    window.wait("window.addnorm")
    _translates(window, Run(**vars(in_int8(run))), tmp_path)
    alignment: Any = window.run("document.querySelectorAll('.alignment .target button').length")
    assert alignment == window.run(
        "document.querySelector('#result').textContent.split(' ').filter(Boolean).length"
    )
