"""``python -m mhlib``: what is there, what it costs, and whether it works here."""

import sys

from mhlib.cli import main

sys.exit(main())
