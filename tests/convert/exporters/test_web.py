"""A page is whole: its runtime, its script and the model are in the one file."""

import json
import re
from pathlib import Path

import pytest

from addnorm.convert.exporters import web
from addnorm.convert.exporters.web import MARK, TEMPLATE, export_page, read_page, read_template
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, Model

CONFIG = DecoderConfig(d_model=8, n_layers=1)


def graphs(model: Model, config: object, folder: Path, *, attention: bool) -> list[Path]:
    folder.mkdir()
    (folder / "decoder_model.onnx").write_bytes(b"a graph </script>")
    return [folder / "decoder_model.onnx"]


def test_files_in_a_page_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = tmp_path / "page.html"
    template.write_text(f"<p>{MARK}</p>", encoding="utf-8")
    monkeypatch.setattr(web, "TEMPLATE", template)
    monkeypatch.setattr(web, "export_onnx", graphs)
    facts = {"name": "</script><!-- é"}
    export_page(CONFIG.build(9), CONFIG, facts, tmp_path / "out.html")
    files = read_page(tmp_path / "out.html")
    assert json.loads(files.pop("facts")) == facts
    assert files == {"decoder_model.onnx": b"a graph </script>"}
    assert (tmp_path / "out.html").read_text().count("</script>") == 2


def test_a_page_that_is_not_built_or_damaged_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "TEMPLATE", tmp_path / "page.html")
    with pytest.raises(InputError, match="not built in this clone: run `make page`"):
        read_template()
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(InputError, match=r"page\.html is damaged"):
        read_template()


def test_a_model_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LARGEST", 10)
    with pytest.raises(InputError, match="at most 0 MiB, and this one has 0"):
        web.check_size(CONFIG.build(9))


@pytest.mark.skipif(not TEMPLATE.is_file(), reason="the page is not built: `make page`")
def test_the_built_page_needs_nothing_from_elsewhere() -> None:
    page = read_template()
    assert read_page(TEMPLATE)["runtime"].startswith(b"\0asm")
    tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page)
    assert not [tag for tag in tags if re.search(r'(?:src|href)="(?!data:)', tag)]
    assert 'new URL("ort' not in page
    assert TEMPLATE.stat().st_size < 8e6
