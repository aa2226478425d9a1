"""The examples on the first pages run as they stand, and the workflows use only commands of the README."""

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


@pytest.mark.parametrize("workflow", ["ci.yml", "publish.yml"])
def test_workflows_use_make_targets_of_the_readme(workflow):
    steps = [step for job in yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if step.get("run", "").startswith("make")]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands and all(f"`{command}`" in readme for command in commands)


def test_the_address_stands_in_the_config_alone():
    url = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    owner = url.rsplit("/", 2)[1]
    tracked = [p for folder in ("book", "mhlib", ".github", "tests") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".yml", ".js")]
    generated = {ROOT / f"book/reference/{name}.md" for name in ("catalogue", "ledger", "differences")}
    assert not [p for p in [ROOT / "README.md", ROOT / "pyproject.toml", *tracked] if p not in generated and f"github.com/{owner}/" in p.read_text(encoding="utf-8")]
