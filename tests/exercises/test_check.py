"""What a check says about solutions that fail in other ways than the typical ones."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from exercises import solutions

from mhlib import exercises


def right(logits, v):
    weights = logits.softmax(-1)
    return weights[:, None] * (v - weights @ v)


def check(function, name="output_jacobian"):
    return exercises.check(name, function, seed=0)


def hint_of(change):
    result = check(lambda logits, v: change(right(logits, v)))
    assert result.state == "failed"
    return result.hint


def test_shows_input_expected_and_given():
    result = check(lambda logits, v: right(logits, v) + 1.0)
    rows = dict(result.rows)
    assert rows["Input"].startswith("logits = float64 (3,)\n[") and "v = float64 (3, 2)" in rows["Input"]
    assert rows["Expected"].startswith("float64 (3, 2)\n[[") and rows["Yours"].startswith("float64 (3, 2)\n[[")
    want = right(**result.inputs)
    assert f"{want[0, 0]:.4f}"[:6] in rows["Expected"] and f"{want[0, 0] + 1:.4f}"[:6] in rows["Yours"]
    assert result.message == f"6 of 6 numbers differ, first at [0, 0]: expected {want[0, 0]:.6g}, got {want[0, 0] + 1:.6g}."


def test_points_at_the_first_number_that_differs():
    def nearly(logits, v):
        out = right(logits, v)
        out[1, 1] += 0.5
        return out

    assert check(nearly).message.startswith("1 of 6 numbers differ, first at [1, 1]: expected ")


@pytest.mark.parametrize(
    "change, hint",
    [
        (lambda out: out * 3, "Everything is 3 times what it should be"),
        (lambda out: out.flip(1), "The right numbers in the wrong places"),
        (lambda out: out.float(), "Keep the dtype of the input"),
        (lambda out: out.float().double(), "as if float32"),
        (lambda out: out[None], "As many numbers as there should be"),
        (lambda out: out * float("nan"), "There are NaNs"),
        (lambda out: out / 0.0, "Something overflowed"),
    ],
)
def test_recognises_what_it_looks_like(change, hint):
    assert hint in hint_of(change)


def test_recognises_a_transpose_a_moved_axis_and_a_sign():
    def weights_transposed(heads):
        return heads.transpose(1, 2).flatten(2).mT

    assert "looks transposed" in check(weights_transposed, "merge_heads").hint
    moved = check(lambda x, num_heads: x.unflatten(-1, (num_heads, -1)).permute(2, 0, 1, 3), "split_heads")
    assert "an axis has to move" in moved.hint
    negative = check(lambda head_dim, q_std, k_std: -1 / (head_dim**0.5 * q_std * k_std), "unit_variance_scale")
    assert "Only the sign is wrong" in negative.hint


def test_says_nothing_where_it_knows_nothing():
    assert hint_of(lambda out: out.cos()) == ""


@pytest.mark.parametrize(
    "name, output, message",
    [
        ("output_jacobian", 3.0, "expected a torch.Tensor, got a float"),
        ("output_jacobian", np.zeros((3, 2)), "expected a torch.Tensor, got a ndarray"),
        ("output_jacobian", torch.zeros(3, 2), "expected torch.float64, got torch.float32"),
        ("cache_bytes", torch.zeros(2), "expected a number, got a tensor of shape (2,)"),
        ("cache_bytes", True, "expected a number, got a bool"),
        ("running_softmax", torch.zeros(2), "expected 2 values (maximum, total), got a tensor of shape (2,)"),
        ("running_softmax", (1.0, 2.0, 3.0), "expected 2 values (maximum, total), got 3"),
        ("merge_partials", (torch.zeros(2, 2).double(), None), "lse: expected a torch.Tensor, got None (is a return missing?)"),
        ("low_rank", (torch.zeros(2, 4).double(), torch.zeros(2, 3).double()), "up: expected shape (3, 2), got (2, 3)"),
    ],
)
def test_says_what_kind_of_output_is_expected(name, output, message):
    result = check(lambda *_: output, name)
    assert result.state == "failed" and result.message.startswith(message)


def test_accepts_numbers_as_tensors_and_tuples_as_lists():
    def bytes_of(layers, heads, width, tokens, batch, size):
        return torch.tensor(2 * layers * heads * width * tokens * batch * size)

    assert check(bytes_of, "cache_bytes")
    assert check(lambda blocks: list(solutions.running_softmax(blocks)), "running_softmax")


def test_accepts_outputs_that_require_a_gradient():
    assert check(lambda logits, v: right(logits, v.requires_grad_()))


def test_an_error_is_shown_with_the_readers_line_and_the_input():
    def broken(logits, v):
        weights = logits.softmax(-1)
        return weights @ v.T  # this line

    result = check(broken)
    assert result.state == "failed" and result.message == "your code raised an error."
    error = dict(result.rows)["Error"]
    assert "return weights @ v.T  # this line" in error and "RuntimeError: " in error
    assert "(3, 2)" in dict(result.rows)["Input"] and result.inputs["v"].shape == (3, 2)


def test_an_error_in_a_cell_is_shown_with_its_line():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_cell("def broken(logits, v):\n    return logits.no_such_thing", silent=False)
    error = dict(check(shell.user_ns["broken"]).rows)["Error"]
    assert error.startswith("line 2: return logits.no_such_thing\nAttributeError: ")


def test_keyboard_interrupts_pass():
    def interrupted(logits, v):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(interrupted)


def test_a_wrong_signature_is_named():
    message = check(lambda logits: logits).message
    assert message == "your function takes (logits), the exercise calls it with (logits, v)."


def test_nothing_returned_in_one_branch():
    result = check(lambda logits, v: right(logits, v) if len(logits) == 3 else None)
    assert result.state == "failed" and "is a return missing in one branch?" in result.message


def test_changed_inputs_are_told_and_disturb_nothing():
    def in_place(logits, v):
        out = right(logits, v)
        logits.zero_()
        return out

    result = check(in_place)
    assert result.state == "failed" and "changed its input logits" in result.message
    assert result.inputs["logits"].abs().sum() > 0


def test_a_stream_can_be_gone_through_once():
    def twice(blocks):
        largest = max(z.max() for z in blocks)
        return largest, sum((z - largest).exp().sum() for z in blocks)

    assert check(twice, "running_softmax").state == "failed"


def test_unknown_names_and_results_instead_of_functions(as_a_user):
    with pytest.raises(ValueError, match="no exercise is called 'split_head'; did you mean split_heads"):
        check(right, "split_head")
    with pytest.raises(TypeError, match="wants the function itself, .* not what it returns; got float32"):
        check(torch.zeros(2))


def test_long_tensors_are_cut_short():
    result = check(lambda logits, v: right(logits, v) if len(v) < 8 else v)
    assert "float64 (8, 8)" in dict(result.rows)["Yours"] and "..." in dict(result.rows)["Yours"]
    assert max(map(len, str(result).splitlines())) < 110


def test_the_box_shows_all_and_is_safe_to_show():
    def broken(logits, v):
        raise ValueError("<script>alert(1)</script>")

    passed, failed, unfinished = check(right), check(broken), check(lambda *_: None)
    for result, sign, words in ((passed, "✓", "passed"), (failed, "✗", "not yet"), (unfinished, "○", "your turn")):
        bundle, metadata = result._repr_mimebundle_()
        html, plain = bundle["text/html"], bundle["text/plain"]
        for text in (html, plain):
            assert sign in text and words in text and result.name in text and result.message.split("'")[0] in text
        assert 'aria-label="Exercise output_jacobian: ' in html and html.count("<div") == html.count("</div")
        assert metadata == {"text/html": {"mhlib_exercise": {"name": "output_jacobian", "state": result.state}}}
    assert "<script>" not in failed._repr_mimebundle_()[0]["text/html"]
    assert bool(passed) and not bool(failed) and not bool(unfinished)


def test_only_the_file_of_the_exercise_is_imported():
    code = "import sys; from mhlib import exercises; exercises.names(); exercises.check('low_rank', None); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "mhlib.exercises.latent" in loaded and "mhlib.exercises.sharing" not in loaded
