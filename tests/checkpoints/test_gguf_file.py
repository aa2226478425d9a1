"""Reading GGUF: a small file, its kinds of values and quantisations."""

import gguf
import numpy as np
import pytest

from mhlib.checkpoints.gguf_file import GGUF

QUANTISED = ("F32", "F16", "Q8_0", "Q4_1")


@pytest.fixture
def written(tmp_path):
    """A file with all kinds of values, and the numbers that its tensors were made from."""
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("small", 7)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 🤖")
    writer.add_array("words", ["a", "", "Ġb"])
    values = {name: np.random.default_rng().standard_normal((5, 64), dtype=np.float32) for name in QUANTISED}
    for name in QUANTISED:
        kind = getattr(gguf.GGMLQuantizationType, name)
        writer.add_tensor(name, gguf.quantize(values[name], kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUF(path), values


def test_metadata_in_plain_values(written):
    file, _ = written
    assert file.metadata["words"] == ["a", "", "Ġb"] and file.metadata["text"] == "naïve 🤖"
    assert (file.metadata["small"], file.metadata["yes"]) == (7, True)
    assert file.names == set(QUANTISED)


@pytest.mark.parametrize("name, error", [("F32", 0.0), ("F16", 4e-3), ("Q8_0", 4e-2), ("Q4_1", 0.5)])
def test_tensors_in_the_shape_of_pytorch(written, name, error):
    file, values = written
    got = file.tensor(name)
    assert got.shape == (5, 64) and got.dtype == np.float32
    np.testing.assert_allclose(got, values[name], atol=error)
    got[:] = 0  # a copy of its own
    assert file.tensor(name).any()


def test_files_that_are_none(tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04 not this file")
    with pytest.raises(ValueError, match="GGUF magic invalid"):
        GGUF(other)
