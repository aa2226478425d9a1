"""``python -m mhlib.kernels [kernel ...]``: compile for every device class and print what each kernel takes of it."""

import sys

from mhlib.kernels.aot import resource_table

if __name__ == "__main__":
    for line in resource_table(sys.argv[1:]):
        print(line, flush=True)
