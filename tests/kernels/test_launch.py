"""Launch tables give each request the row that is meant for it; device classes and refusals."""

import pytest
import torch

from kernels.common import pairwise
from mhlib.kernels import targets
from mhlib.kernels.launch import Counts, Launch, Table, launch

SMALL, LARGE, ODD = Launch({"BLOCK": 16}), Launch({"BLOCK": 64}, warps=8), Launch({"BLOCK": 32})


@pytest.fixture
def table():
    return Table("sample", ("bits", "width"), {("any", 16, 64): SMALL, ("any", 32, 256): LARGE, ("sm90", 16, 128): ODD})


def test_the_smallest_row_that_covers_a_request_is_taken(table):
    assert table.pick("sm80", 16, 16) is SMALL
    assert table.pick("sm80", 16, 65) is LARGE
    assert table.pick("sm80", 32, 64) is LARGE
    assert table.pick("interpreter", 16, 64) is SMALL


def test_a_class_with_rows_of_its_own_takes_no_other(table):
    assert table.pick("sm90", 16, 64) is ODD
    with pytest.raises(ValueError, match=r"table sample has no row for bits=32, width=64 on sm90; it has \[\('sm90', 16, 128\)\]"):
        table.pick("sm90", 32, 64)


def test_each_device_class_is_compiled_for(table):
    rows = list(table.each())
    assert {target for target, *_ in rows} == set(targets.TARGETS)
    assert [row for row in rows if row[0] == "sm90"] == [("sm90", (16, 128), ODD)]
    assert ("gfx942", (32, 256), LARGE) in rows


def test_a_forced_launch_ends_with_its_block(table):
    with table.force(ODD):
        assert table.pick("sm80", 16, 16) is ODD
    assert table.pick("sm80", 16, 16) is SMALL


def test_a_row_with_a_wrong_key_is_refused():
    with pytest.raises(ValueError, match=r"keyed by \(device class, width\), got \('sm75', 64\)"):
        Table("sample", ("width",), {("sm75", 64): SMALL})


def test_options_are_what_triton_takes():
    assert LARGE.options() == {"BLOCK": 64, "num_warps": 8, "num_stages": 2}


def test_an_empty_grid_launches_nothing():
    launch(None, (0, 3), {"x": torch.zeros(1)}, SMALL)
    with pytest.raises(TypeError):
        launch(None, (1, 3), {"x": torch.zeros(1)}, SMALL)


def test_intensity():
    assert Counts(matmul_flops=600, other_ops=0, bytes=20).intensity == 30


def test_cpu_is_refused_with_the_way_out(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    answer = targets.available(torch.device("cpu"))
    assert not answer and "need a GPU, the tensors are on cpu; with TRITON_INTERPRET=1" in answer.reason
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert targets.available(torch.device("cpu"))
    assert targets.device_class(torch.device("cpu")) == "interpreter"


@pytest.mark.parametrize("capability, name", [((8, 0), "sm80"), ((8, 9), "sm89"), ((9, 0), "sm90"), ((10, 3), "sm100"), ((12, 0), "sm89")])
def test_device_classes(capability, name, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(targets, "_capability", lambda index: capability)
    assert targets.device_class(torch.device("cuda", 0)) == name
    assert targets.available(torch.device("cuda", 0))


def test_old_devices_are_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(targets, "_capability", lambda index: (7, 5))
    assert "compute capability 8.0, this device has 7.5" in targets.available(torch.device("cuda", 0)).reason


def test_pairwise_holds_every_pair():
    options = {"a": [0, 1], "b": [0, 1, 2], "c": "xy", "d": [None, 1, 2, 3]}
    rows = pairwise(options)
    for a in options:
        for b in options:
            if a != b:
                assert {(r[a], r[b]) for r in rows} == {(i, j) for i in options[a] for j in options[b]}
    assert len(rows) < 18
