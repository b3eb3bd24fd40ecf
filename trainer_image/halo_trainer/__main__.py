"""`halo-trainer` and `python -m halo_trainer`."""

from __future__ import annotations

import sys

from halo_trainer.cli import main

if __name__ == "__main__":
    sys.exit(main())
