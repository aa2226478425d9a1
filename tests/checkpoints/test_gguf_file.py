"""Reading GGUF: a small file written by the package gguf, its kinds of values and quantisations, and broken files."""

import gguf
import numpy as np
import pytest

from mhlib.checkpoints.gguf_file import read_gguf

QUANTISED = {
    name: getattr(gguf.GGMLQuantizationType, name) for name in ("F32", "F16", "Q8_0", "Q4_1")
}  # what a file may hold


@pytest.fixture
def written(tmp_path):
    """A file with all kinds of values, and its tensors as the package quantised them."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("small", 7)
    writer.add_int64("negative", -(2**40))
    writer.add_float32("float", 0.5)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 🤖")
    writer.add_array("words", ["a", "", "Ġb"])
    writer.add_array("numbers", [1, -2, 3])
    rng, stored = np.random.default_rng(), {}
    for name, kind in QUANTISED.items():
        values = rng.standard_normal((5, 64), dtype=np.float32)
        stored[name] = gguf.quantize(values, kind)
        writer.add_tensor(name, stored[name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, stored


def test_metadata(written):
    metadata = read_gguf(written[0]).metadata
    expected = {
        "general.architecture": "llama", "small": 7, "negative": -(2**40), "float": 0.5, "yes": True, "text": "naïve 🤖",
        "words": ["a", "", "Ġb"], "numbers": [1, -2, 3],
    }  # fmt: skip
    assert {name: metadata[name] for name in expected} == expected
    assert metadata["yes"] is True


@pytest.mark.parametrize("name", QUANTISED)
def test_tensors_equal_the_packages_to_the_last_bit(written, name):
    path, stored = written
    file = read_gguf(path)
    got = file.tensor(name)
    assert file.shapes[name] == got.shape == (5, 64) and got.dtype == np.float32
    np.testing.assert_array_equal(got, gguf.dequantize(stored[name], QUANTISED[name]))
    got[:] = 0  # a copy of its own
    assert file.tensor(name).any()


def test_an_unknown_quantisation_names_what_is_known(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "q5.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q5_0
    writer.add_tensor("w", gguf.quantize(np.ones((1, 32), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"'w' has the GGUF type 6; known here are F32, F16, Q4_1, Q8_0"):
        read_gguf(tmp_path / "q5.gguf").tensor("w")


def test_files_that_are_none(tmp_path, written):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04 not this")
    with pytest.raises(ValueError, match=r"other.gguf is not a GGUF file of version 2 or 3: it starts with b'PK"):
        read_gguf(other)
    other.write_bytes(written[0].read_bytes()[:60])
    with pytest.raises(ValueError, match="ends in the middle of its header: it has 60 bytes"):
        read_gguf(other)
    with pytest.raises(KeyError, match="nothing"):
        read_gguf(written[0]).tensor("nothing")
