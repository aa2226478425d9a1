"""The interpreter made three times faster for small tests: it repeats work that one launch does once."""

import dataclasses

from mhlib.kernels.targets import interpreting

if interpreting():
    from triton.runtime import interpreter

    if hasattr(interpreter.InterpretedFunction, "rewrite"):
        patched = set()

        def call(self, *args, **kwargs):
            # A call of a device function would patch triton.language again, though the launch and the first call have done it.
            if id(self.fn.__globals__) not in patched:
                interpreter._patch_lang(self.fn)
                patched.add(id(self.fn.__globals__))
            return self.rewrite()(*args, **kwargs)

        interpreter.InterpretedFunction.__call__ = call
    options = getattr(interpreter.interpreter_builder, "options", None)
    if hasattr(options, "sanitize_overflow"):
        # Each integer sum would be made a second time in 64 bits.
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)
