"""Triton kernels: one file per operation, each proven without a GPU.

``import mhlib.kernels`` does not import Triton; naming a kernel (``mhlib.kernels.flash_attention``) does. On a machine without a
GPU a kernel runs in Triton's interpreter, on CPU tensors, when ``TRITON_INTERPRET=1`` is set before it is imported.

What a kernel's file holds, in this order:

1. a docstring: what it computes, the name of its reference, on what conditions, the source;
2. the launch table, a :class:`~mhlib.kernels.launch.Table` from device class and sizes to block sizes, warps and stages (made by
   ``benchmarks/tune.py``; nothing is tuned at import or at the first call);
3. the ``@triton.jit`` functions; what several kernels share is in :mod:`mhlib.kernels.tiles` (rows to and from memory),
   :mod:`mhlib.kernels.online` (online softmax), :mod:`mhlib.kernels.split_keys` and :mod:`mhlib.kernels.parts`;
4. the operators: ``torch.library.custom_op`` with ``register_fake`` and ``register_autograd`` (``triton_op`` does not work in the
   interpreter);
5. the public function, which checks shapes and raises ``ValueError``, and is all that ``__all__`` names;
6. ``supports(...) -> Support`` with the reason where the answer is no;
7. ``counts(...) -> Counts``: bytes and FLOPs that the operation cannot do without;
8. ``cases()``: what is compiled ahead of time in the tests, for each device class of the table.

How to add one: write that file, ``tests/kernels/numeric/test_<name>.py`` (runs in the interpreter, and on a GPU where there is one)
and ``tests/kernels/compiled/`` finds its ``cases()`` by itself. ``python -m mhlib.kernels <name>`` prints what each of them takes of
a device. Rules that cost time to find out:

- Kernel arguments come from one function that returns a dict, used by the launch and by ``cases()`` (there with tensors on the meta
  device), so that the tests compile what is launched. Launch with :func:`mhlib.kernels.launch.launch`.
- Sums are float32, float64 for float64 inputs (``ACC: tl.constexpr``); ``exp2`` with log2(e) in the scale; a row without keys gives
  zeros, lse = -inf and zero gradients. What a mask rules out is loaded as 0 *and* excluded with ``tl.where``.
- In the interpreter: no bfloat16 (silently wrong), ``exp`` wants float32 or float64, a Python float that is *assigned* to a name becomes
  float32 (use it in the expression instead), no ``a = b = c``, integer division truncates towards zero (clamp to 0 first).
- In a table the sizes that choose a row come in the order of their weight (dtype, widths, then rows): the smallest row that fits wins.
- What stays in registers through a loop (an accumulator, and an operand that the loop reuses) decides what spills: look at
  ``python -m mhlib.kernels <name>`` before a block grows. Two loops with one body each cost less than three.
- ``tl.dot`` needs 16 or more along K on a device: pad with masked columns.
- Offsets that grow with batch, heads or tokens are made in 64 bits: ``tl.cast(index, tl.int64) * stride``.
"""

from mhlib._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
