"""The build's own commands, which the Makefile calls: `python book/_ext execute | notebooks | test | browser | lock`."""

import importlib
import sys

COMMANDS = {
    "execute": "atlas.run",
    "notebooks": "atlas.notebooks",
    "test": "atlas.suite",
    "browser": "atlas.browser",
    "lock": "atlas.lock",
}

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        sys.exit(f"usage: python book/_ext {' | '.join(COMMANDS)}")
    sys.exit(importlib.import_module(COMMANDS[name]).main(sys.argv[2:]))
