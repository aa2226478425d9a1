"""Recorded results are shown with device, date and versions, or not at all."""

import json

import pytest
from bs4 import BeautifulSoup
from mhlib.book import recorded

RUN = {
    "device": "NVIDIA H200 <x>",
    "date": "2025-11-30",
    "versions": {"torch": "2.13.0"},
    "benchmarks": {"decode": [{"kv heads": 8, "median ms": 0.123456}, {"kv heads": 1, "median ms": 0.05}]},
}


def test_table(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RUN))
    result = recorded("decode", [tmp_path])
    soup = BeautifulSoup(result._repr_mimebundle_()["text/html"], "html.parser")
    assert [cell.text for cell in soup.find_all("th")] == ["kv heads", "median ms"]
    assert [cell.text for cell in soup.find_all("td")] == ["8", "0.1235", "1", "0.0500"]
    assert soup.caption.text == "Recorded on NVIDIA H200 <x>, 2025-11-30, with torch 2.13.0"


def test_words_stand_left_and_numbers_right_with_as_many_decimals(tmp_path):
    rows = [{"pool": "mean", "right (%)": 77.0, "loss": 1e-9}, {"pool": "max", "right (%)": 78.05, "loss": 0.5}]
    (tmp_path / "a.json").write_text(json.dumps(RUN | {"benchmarks": {"decode": rows}}))
    cells = BeautifulSoup(recorded("decode", [tmp_path])._repr_mimebundle_()["text/html"], "html.parser").find_all("td")
    assert [cell.text for cell in cells] == ["mean", "77.00", "1e-09", "max", "78.05", "0.5"]
    assert ["left" in cell["style"] for cell in cells] == [True, False, False] * 2


def test_newest_first(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RUN))
    (tmp_path / "b.json").write_text(json.dumps(RUN | {"date": "2026-01-02"}))
    assert [run["date"] for run in recorded("decode", [tmp_path]).runs] == ["2026-01-02", "2025-11-30"]


def test_a_wheels_copy_is_used_where_there_is_no_checkout(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RUN))
    assert len(recorded("decode", [tmp_path / "missing", tmp_path]).runs) == 1
    assert len(recorded("decode", [tmp_path, tmp_path]).runs) == 1


def test_what_is_not_recorded_is_said_to_be_missing(tmp_path):
    result = recorded("prefill", [tmp_path])
    assert not result
    for text in result._repr_mimebundle_().values():
        assert "Not recorded yet" in text and "prefill" in text


@pytest.mark.parametrize("key", ["device", "date", "versions"])
def test_a_figure_without_its_circumstances_is_an_error(tmp_path, key):
    (tmp_path / "a.json").write_text(json.dumps({k: v for k, v in RUN.items() if k != key}))
    with pytest.raises(ValueError, match=f"lacks {key}"):
        recorded("decode", [tmp_path])


def test_the_projects_own_results_are_readable():
    from mhlib.book.recorded import _FOLDERS

    for folder in _FOLDERS:
        for file in folder.glob("*.json"):
            for name in json.loads(file.read_text())["benchmarks"]:
                assert recorded(name)
