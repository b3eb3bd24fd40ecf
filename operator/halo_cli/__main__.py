"""The command line of `kubectl halo`; kubectl finds it as `kubectl-halo` on PATH."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from halo_cli.adapter_import import Source, import_adapter
from halo_cli.adapter_pull import pull
from halo_cli.episodes import Asked as AskedEpisodes
from halo_cli.episodes import episodes
from halo_cli.estimate import estimate
from halo_cli.explain import explain, explain_file
from halo_cli.importer import imported, read, write
from halo_cli.kubectl import CliError, Kubectl
from halo_cli.ledger import Asked, date, ledger
from halo_cli.lineage import Asked as AskedLineage
from halo_cli.lineage import lineage
from halo_cli.logs import logs
from halo_cli.plot import Asked as AskedPlot
from halo_cli.plot import plot
from halo_cli.plot_series import METRICS
from halo_cli.receipt import Asked as AskedReceipt
from halo_cli.receipt import show, verify
from halo_cli.volume_pod import Asked as AskedPod
from halo_cli.watch import watch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run_verb(Kubectl(options.namespace, options.context), options)
        return code
    except CliError as error:
        print(f"kubectl halo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a pipe left, as `head` does; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def say(text: str) -> None:
    """Print what was asked for."""
    print(text, flush=True)


def note(text: str) -> None:
    """Print what is no part of the output."""
    print(text, file=sys.stderr, flush=True)


def run_watch(kubectl: Kubectl, options: argparse.Namespace) -> int:
    return watch(kubectl, options.run, say)


def run_logs(kubectl: Kubectl, options: argparse.Namespace) -> int:
    return logs(kubectl, options.run, options.attempt, options.rank, options.follow, note)


def run_estimate(kubectl: Kubectl, options: argparse.Namespace) -> int:
    return estimate(kubectl, options.filename, say)


def run_explain(kubectl: Kubectl, options: argparse.Namespace) -> int:
    if (options.target is None) == (options.filename is None):
        raise CliError("explain-refusal takes either KIND/NAME, such as trainingjob/tickets-sft, or -f FILE")
    if options.filename is not None:
        return explain_file(kubectl, options.filename, say)
    return explain(kubectl, options.target, say)


def run_import(_: Kubectl, options: argparse.Namespace) -> int:
    where = options.file
    try:
        text = sys.stdin.read() if where == "-" else Path(where).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{where}: can't be read: {error}") from None
    found = imported(read(text, where), options.name, options.namespace, where)
    return write(found, say, note)


def run_ledger(kubectl: Kubectl, options: argparse.Namespace) -> int:
    # RFC 4180 ends lines with CR LF, and a locale must not change what finance reads.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="")
    asked = Asked(options.form, options.since, options.until)
    return ledger(kubectl, options.namespace, asked, lambda text: print(text, end="", flush=True), note)


def run_receipt(kubectl: Kubectl, options: argparse.Namespace) -> int:
    if options.what == "show":
        return show(kubectl, options.target, options.receipt, options.json, say)
    keys = tuple(options.key or ())
    asked = AskedReceipt(options.target, options.receipt, keys, options.offline, options.system_namespace)
    return verify(kubectl, asked, say, note)


def run_plot(kubectl: Kubectl, options: argparse.Namespace) -> int:
    pod = AskedPod(options.image, options.timeout, options.system_namespace)
    return plot(kubectl, AskedPlot(options.runs, options.metric or (), options.svg, options.png, pod), say, note)


def run_episodes(kubectl: Kubectl, options: argparse.Namespace) -> int:
    pod = AskedPod(options.image, options.timeout, options.system_namespace)
    which = (options.step, options.passed, options.task, options.limit)
    return episodes(kubectl, AskedEpisodes(options.run, *which, options.json, pod), say, note)


def run_adapter(kubectl: Kubectl, options: argparse.Namespace) -> int:
    asked = AskedPod(options.image, options.timeout, options.system_namespace)
    if options.what == "pull":
        return pull(kubectl, options.name, Path(options.folder), asked, say, note)
    source = Source(options.source, options.name, options.base, options.revision, options.claim)
    return import_adapter(kubectl, source, asked, say, note)


def run_lineage(kubectl: Kubectl, options: argparse.Namespace) -> int:
    return lineage(kubectl, AskedLineage(options.adapter, options.svg, options.json), say, note)


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    common = common_options(None)
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument("run", metavar="RUN", help="name of the TrainingJob")
    root = argparse.ArgumentParser(
        prog="kubectl halo",
        description="Quote, follow, draw and explain Halo's training runs, and read what they cost.",
    )
    verbs = root.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(
        name: str, action: Callable[..., int], text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text, parents=[*parents, common])
        made.set_defaults(run_verb=action)
        return made

    quoted = "quote the runs of a file as the cluster would, and make none; exit with 1 if one has no quote"
    made = verb("estimate", run_estimate, quoted)
    made.add_argument(
        "-f", "--filename", metavar="FILE", required=True, help="file, folder or URL, as kubectl takes it"
    )
    verb(
        "watch",
        run_watch,
        "follow a run, one line a change; exit with 0 when it is complete and with 1 when it failed",
        run,
    )
    log = verb("logs", run_logs, "show the log of the pod that trains a run", run)
    log.add_argument("-f", "--follow", action="store_true", help="wait for the log to begin, and follow it to its end")
    log.add_argument("--attempt", type=counted_from(1), metavar="N", help="default: the run's current attempt")
    log.add_argument(
        "--rank", type=counted_from(0), default=0, metavar="N", help="which of the attempt's pods; default: 0"
    )
    curves = "draw reward, loss, throughput and more of runs over their steps; a pod in the namespace reads them"
    made = verb("plot", run_plot, curves, pod_options())
    made.add_argument("runs", metavar="RUN", nargs="+", help="names of TrainingJobs; several are drawn over each other")
    made.add_argument("--svg", metavar="FILE", help="draw into a file; - writes to standard output")
    made.add_argument("--png", metavar="FILE", help="the same, as PNG")
    made.add_argument("--metric", choices=list(METRICS), action="append", help="draw this instead; may be given again")
    read_ = (
        "show sampled episodes of an online RL run, turn by turn, with their rewards; a pod in the namespace reads them"
    )
    made = verb("episodes", run_episodes, read_, run, pod_options())
    made.add_argument("--step", type=counted_from(0), metavar="N", help="default: the last that has any")
    how = made.add_mutually_exclusive_group()
    how.add_argument("--passed", action="store_true", default=None, help="only those that the verifier passed")
    how.add_argument("--failed", dest="passed", action="store_false", help="only those that it did not")
    made.add_argument("--task", metavar="ID", help="only those of a task")
    made.add_argument("--limit", type=counted_from(1), default=5, metavar="N", help="at most so many; default: 5")
    made.add_argument("--json", action="store_true", help="one JSON object a line, as they lie on the claim")
    why = "say why a run was refused, failed or waits, or would be, and what to do; exit with 1 if it is refused or failed"
    made = verb("explain-refusal", run_explain, why)
    made.add_argument(
        "target", metavar="KIND/NAME", nargs="?", help="such as trainingjob/tickets-sft or grporun/support"
    )
    made.add_argument("-f", "--filename", metavar="FILE", help="file of runs that are not made yet")
    booked = "list what was held and charged in a namespace, and add it up again; exit with 1 if it does not add up"
    made = verb("ledger", run_ledger, booked)
    form = made.add_mutually_exclusive_group()
    form.set_defaults(form="table")
    for name, text in (
        ("csv", "one row an entry, RFC 4180, amounts as they are written"),
        ("json", "one JSON object"),
        ("check", "only say whether it adds up"),
    ):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, help=text)
    made.add_argument(
        "--since", type=date, metavar="DATE", help="entries that were settled from then on, such as 2026-11-01 (UTC)"
    )
    made.add_argument("--until", type=date, metavar="DATE", help="entries that were settled before")
    line = "show what an adapter descends from and what descends from that; exit with 0 if all of its line is there and verified, with 1 if something is wrong, and with 2 if it can't be told"
    made = verb("lineage", run_lineage, line)
    made.add_argument("adapter", metavar="ADAPTER", help="an Adapter of the namespace")
    as_what = made.add_mutually_exclusive_group()
    as_what.add_argument("--svg", metavar="FILE", help="draw it into a file; - writes to standard output")
    as_what.add_argument("--json", action="store_true", help="one JSON object, digests whole")
    proof = "show how an adapter came to be, or verify that its files are what was signed; verify exits with 0 if so, with 1 if something is wrong, and with 2 if it can't be told"
    made = verb("receipt", run_receipt, proof)
    made.add_argument("what", choices=["show", "verify"])
    made.add_argument(
        "target", metavar="DIR|ADAPTER", help="a folder with receipt.json, or an Adapter of the namespace"
    )
    made.add_argument("--receipt", metavar="FILE", help="receipt of a folder; default: its receipt.json")
    made.add_argument("--json", action="store_true", help="show: the whole statement")
    made.add_argument(
        "--key", metavar="FILE", action="append", help="verify: PEM file of a trusted public key; may be given again"
    )
    made.add_argument("--offline", action="store_true", help="verify: ask no cluster; needs --key")
    made.add_argument(
        "--system-namespace", metavar="NS", default="halo-system", help="the operator's; default: halo-system"
    )
    moved = "copy an adapter out of the cluster, or make one of a LoRA from outside"
    add_adapter(verb("adapter", run_adapter, moved))
    turned = "turn the JSON body of a platform's request (a job's, or start_grpo_run's) into YAML for kubectl apply"
    made = verb("import", run_import, turned)
    made.add_argument("file", metavar="FILE", help="the body; - reads standard input")
    made.add_argument("--name", help="name of the object; default: the body's, else the file's")
    return root


def common_options(default: str | None) -> argparse.ArgumentParser:
    """Return what every verb takes."""
    common = argparse.ArgumentParser(add_help=False, argument_default=default)
    common.add_argument("-n", "--namespace", metavar="NS", help="the namespace; default: the context's")
    common.add_argument("--context", help="context of the kubeconfig; default: the current one")
    return common


def pod_options() -> argparse.ArgumentParser:
    """Return what every verb takes that has a pod read or write a claim."""
    pod = argparse.ArgumentParser(add_help=False)
    pod.add_argument("--image", help="the trainer's image; default: the installation's")
    pod.add_argument(
        "--timeout", type=counted_from(1), default=300, metavar="SECONDS", help="how long the pod may take to start"
    )
    pod.add_argument(
        "--system-namespace", metavar="NS", default="halo-system", help="the operator's; default: halo-system"
    )
    return pod


def add_adapter(made: argparse.ArgumentParser) -> None:
    """Add what can be done with an adapter's files; a pod in the namespace does it."""
    # Before the word or after it: what is not given there leaves what was given here.
    common = common_options(argparse.SUPPRESS)
    pod = pod_options()
    whats = made.add_subparsers(dest="what", required=True, metavar="WHAT")
    text = "write an adapter's files, receipt and public key to a folder; exit with 0 if all is as it was published, with 1 if something is wrong, and with 2 if it can't be told"
    pulled = whats.add_parser("pull", help=text, description=text, parents=[common, pod])
    pulled.add_argument("name", metavar="NAME", help="an Adapter of the namespace")
    pulled.add_argument("folder", metavar="DIR", help="a folder that is not there yet, or empty")
    text = "make an Adapter of a PEFT folder, here or on a claim; it can be served and compared, and never be a parent"
    taken = whats.add_parser("import", help=text, description=text, parents=[common, pod])
    taken.add_argument("source", metavar="DIR|pvc://CLAIM/PATH", help="the folder, with adapter_config.json")
    taken.add_argument("--name", required=True, help="name of the Adapter")
    taken.add_argument("--base", metavar="BASEMODEL", help="default: what adapter_config.json names")
    taken.add_argument("--revision", help="revision of the base; default: adapter_config.json's, else the catalog's")
    taken.add_argument("--claim", help="where it shall lie; default: where the namespace's adapters do")


def counted_from(first: int) -> Callable[[str], int]:
    """Return an argument type: a whole number of at least `first`."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < first:
            raise argparse.ArgumentTypeError(f"must be a whole number from {first}, found {text!r}")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
