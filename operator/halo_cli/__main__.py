"""The command line of `kubectl halo`; kubectl finds it as `kubectl-halo` on PATH."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from halo_cli.kubectl import CliError, Kubectl
from halo_cli.logs import logs
from halo_cli.watch import watch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    options = parser().parse_args(arguments)
    kubectl = Kubectl(options.namespace, options.context)
    try:
        if options.verb == "watch":
            return watch(kubectl, options.run, lambda text: print(text, flush=True))
        return logs(
            kubectl,
            options.run,
            options.attempt,
            options.rank,
            options.follow,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    except CliError as error:
        print(f"kubectl halo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("run", metavar="RUN", help="name of the TrainingJob")
    common.add_argument("-n", "--namespace", metavar="NS", help="its namespace; default: the context's")
    common.add_argument("--context", help="context of the kubeconfig; default: the current one")
    root = argparse.ArgumentParser(prog="kubectl halo", description="Follow Halo's training runs.")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")
    text = "follow a run, one line a change; exit with 0 when it is complete and with 1 when it failed"
    verbs.add_parser("watch", help=text, description=text, parents=[common])
    text = "show the log of the pod that trains a run"
    log = verbs.add_parser("logs", help=text, description=text, parents=[common])
    log.add_argument("-f", "--follow", action="store_true", help="wait for the log to begin, and follow it to its end")
    log.add_argument("--attempt", type=counted_from(1), metavar="N", help="default: the run's current attempt")
    log.add_argument(
        "--rank", type=counted_from(0), default=0, metavar="N", help="which of the attempt's pods; default: 0"
    )
    return root


def counted_from(first: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least `first`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < first:
            raise argparse.ArgumentTypeError(f"must be a whole number from {first}, found {text!r}")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
