"""Settings of processes that the tools start, the same whether make, Jupyter Book or pytest starts them."""

import os

JOBS = int(os.environ.get("JOBS", 2))


def settle() -> None:
    """Set what is not set already, for this process and those it starts."""
    cores = os.cpu_count() or 1
    defaults = {
        "OMP_NUM_THREADS": max(1, cores // JOBS),  # two chapters at a time would fight over the cores
        "TOKENIZERS_PARALLELISM": "false",
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not one of the user's
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # each kernel's debugger would warn otherwise
        "PYTHONUNBUFFERED": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, str(value))
