"""Public names are found without importing, and imported on first use."""

import ast
import importlib
import importlib.util
import subprocess
import sys
import textwrap
import time

import pytest
from mhlib._lazy import scan

INIT = '"""A package."""\n\nfrom mhlib._lazy import attach\n\n__getattr__, __dir__, __all__ = attach(__name__, __file__)\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package called `sample`, import it, forget it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(files: dict[str, str]):
        for path, text in {"__init__.py": INIT, **files}.items():
            file = tmp_path / "sample" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return importlib.import_module("sample")

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "sample"]:
        del sys.modules[name]


def test_a_name_imports_only_its_own_file(package):
    sample = package({
        "one.py": '__all__ = ["One"]\nclass One: pass\n',
        "group/__init__.py": INIT,
        "group/two.py": '__all__ = [\n    "Two",  # a comment\n    "two",\n]\nclass Two: pass\ntwo = 2\n',
        "broken.py": '__all__ = ["Broken"]\nraise RuntimeError("imported")\n',
    })
    assert sample.__all__ == ["Broken", "One", "Two", "two"]
    assert "sample.one" not in sys.modules
    assert sample.Two.__name__ == "Two" and sample.two == 2
    assert sample.group.Two is sample.Two
    assert "sample.one" not in sys.modules and "sample.broken" not in sys.modules
    assert sample.one.One is sample.One, "modules can be reached too"
    assert {"One", "Two", "two", "one", "group"} <= set(dir(sample))


def test_a_new_file_needs_no_other_change(package):
    package({"one.py": '__all__ = ["One"]\nclass One: pass\n'})
    for name in ["sample.one", "sample"]:
        sys.modules.pop(name, None)
    assert package({"three.py": '__all__ = ["Three"]\nclass Three: pass\n'}).Three


def test_a_function_wins_over_the_file_of_its_name(package):
    sample = package({"softmax.py": '__all__ = ["softmax"]\ndef softmax(): return "function"\n'})
    import sample.softmax  # which binds the module to the package's attribute elsewhere

    assert sample.softmax() == "function"
    from sample.softmax import softmax

    assert softmax is sample.softmax


def test_a_name_in_two_files_is_an_error_that_names_both(package):
    with pytest.raises(ImportError, match=r"'Same' is public in two files, .*one\.py and .*two\.py: rename"):
        package({"one.py": '__all__ = ["Same"]\n', "two.py": '__all__ = ["Same"]\n'})


def test_names_must_be_literal(package):
    with pytest.raises(ImportError, match=r"one\.py: __all__ must be a literal list of strings"):
        package({"one.py": "names = []\n__all__ = [*names]\n"})


def test_an_unknown_name_says_what_is_near(package):
    sample = package({"one.py": '__all__ = ["GroupedQueryAttention"]\n'})
    with pytest.raises(AttributeError, match="module 'sample' has no attribute 'GroupedQueryAtention'; did you mean GroupedQueryAttention?"):
        sample.GroupedQueryAtention
    with pytest.raises(ImportError):
        from sample import nothing_like_it  # noqa: F401


def test_the_top_level_says_what_is_near():
    import mhlib

    with pytest.raises(AttributeError, match="module 'mhlib' has no attribute 'atention'; did you mean attention"):
        mhlib.atention
    assert {"attention", "heads", "functional", "book"} <= set(dir(mhlib))
    assert not {"_lazy", "no_such_part"} & set(dir(mhlib)) - {"_lazy"}


def test_scanning_three_hundred_files_costs_a_small_part_of_parsing_them(tmp_path):
    body = '"""A mechanism."""\n\n' + "x = 1  # some code\n" * 150
    for number in range(300):
        file = tmp_path / f"family{number % 20}" / f"mechanism{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'__all__ = ["Mechanism{number}"]\n{body}')
    (tmp_path / "__init__.py").touch()
    scanned, parsed = [], []
    for _ in range(5):
        start = time.process_time()
        names = scan("sample", str(tmp_path / "__init__.py"))
        between = time.process_time()
        for file in tmp_path.rglob("*.py"):
            ast.parse(file.read_text(encoding="utf-8"))
        scanned.append(between - start)
        parsed.append(time.process_time() - between)
    assert len(names) == 300
    assert min(scanned) < min(parsed) / 3


def test_every_package_of_the_library_can_be_scanned_and_each_name_imported():
    import mhlib

    for part in dir(mhlib):
        if part == "kernels" and importlib.util.find_spec("triton") is None:
            continue  # Triton is made for Linux alone
        module = getattr(mhlib, part)
        for name in getattr(module, "__all__", []):
            assert getattr(module, name) is not None, f"{part}.{name}"


def test_kernels_do_not_import_triton_before_one_is_named():
    code = "import sys, mhlib.kernels, mhlib.functional.attention; mhlib.kernels.TARGETS; raise SystemExit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
