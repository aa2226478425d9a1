"""One list of requirements, and files that agree with it."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from atlas.lock import HELD
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))}


def test_the_library_needs_four_packages_with_lower_bounds_only():
    needs = [Requirement(text) for text in PROJECT["dependencies"]]
    assert [need.name for need in needs] == ["torch", "numpy", "einops", "jaxtyping"]
    assert all([spec.operator for spec in need.specifier] == [">="] for need in needs)


@pytest.mark.parametrize("text", sorted({*PROJECT["dependencies"], *sum(EXTRAS.values(), [])}))
def test_the_lock_holds_every_requirement(text):
    need = Requirement(text)
    assert canonical(need.name) in locked(), f"{need.name} is not locked: run `make lock`"
    assert need.specifier.contains(locked()[canonical(need.name)], prereleases=True)


def test_the_lock_pins_releases_that_every_index_can_serve():
    assert not [version for version in locked().values() if "+" in version]
    assert HELD == [f"torch=={locked()['torch']}", f"triton=={locked()['triton']}"]


def test_conda_gives_the_same_environment():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(item for item in conda["dependencies"] if isinstance(item, str) and item.startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))
    pip = next(item["pip"] for item in conda["dependencies"] if isinstance(item, dict))
    assert "--constraint constraints.txt" in pip
    editable = next(line for line in pip if line.startswith("--editable"))
    assert set(re.search(r"\[(.*)\]", editable)[1].split(",")) == set(EXTRAS)


def test_the_oldest_versions_are_those_that_are_claimed():
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    oldest = sorted(line.replace("==", ">=").removesuffix(".0") for line in lines if not line.startswith("#"))
    assert oldest == sorted(text.removesuffix(".0") for text in PROJECT["dependencies"])
