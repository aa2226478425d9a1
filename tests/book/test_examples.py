"""The examples on the first pages run as they stand, and the repository's address is written once."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["README.md", "book/index.md"])
def test_python_examples_run(page):
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert examples
    for example in examples:
        names: dict = {}
        exec(example, names)
        assert names["out"].shape == (1, 8, 5, 64)


def test_the_address_stands_in_the_config_alone():
    url = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    owner = url.rsplit("/", 2)[1]
    tracked = [p for folder in ("book", "mhlib", ".github", "tests") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".yml", ".js")]
    generated = {ROOT / f"book/reference/{name}.md" for name in ("catalogue", "ledger", "differences", "bibliography")}
    assert not [p for p in [ROOT / "README.md", ROOT / "pyproject.toml", *tracked] if p not in generated and f"github.com/{owner}/" in p.read_text(encoding="utf-8")]
