"""The process of one side: `python -m pace.worker SETTINGS READS WRITES`, with the numbers of its two pipes."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    # Neither side may ask a model hub; the rest is what each of them prints.
    os.environ["HF_HUB_OFFLINE"] = "1"
    from .link import Link

    link = Link(int(sys.argv[2]), int(sys.argv[3]))
    try:
        importlib.import_module(f"pace.{settings['kind']}").run(settings, link)
    except Exception as error:
        traceback.print_exc()
        link.say(failed=f"{type(error).__name__}: {error}".splitlines()[0][:200])
        sys.exit(1)
    # Of TRL the last loss is logged behind the last step.
    link.say(ended=True)


main()
