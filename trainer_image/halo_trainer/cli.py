"""The command line: `halo-trainer train | inspect | publish | verify | sample | evaluate | tasks | transfer`. torch is imported only by the verb that needs it."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.run_file import REPORT_PATH, RUN_FILE_PATH, VOLUMES_FOLDER, RunFile
from halo_trainer import transfer
from halo_trainer.budget import Budget
from halo_trainer.environments import tasks_command
from halo_trainer.evaluation import evaluate_command
from halo_trainer.failures import RunFailure, failure_of
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.publish import publish, publish_at_budget
from halo_trainer.reporting import Reporting
from halo_trainer.run_file import read_run_file
from halo_trainer.verify import verify


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return the exit code."""
    options = _parser().parse_args(arguments)
    # Everything lies on volumes; a model hub must never be asked, and would not answer from a pod.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return int(options.verb(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halo-trainer", description="Train, inspect, publish, verify and sample, from a run file."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, verb, text in (
        ("train", _train, "train the adapter that the run file asks for"),
        ("inspect", _inspect, "count the rows and tokens of the run file's data, and find its first bad row"),
        ("publish", _publish, "copy the adapter of the run file's checkpoint to its place"),
        ("verify", _verify, "hash the files of the run file's adapter, and hold them to what was published"),
    ):
        run = verbs.add_parser(name, help=text, description=text)
        run.add_argument("--run-file", type=Path, default=Path(RUN_FILE_PATH), metavar="PATH")
        run.add_argument(
            "--volumes", default=VOLUMES_FOLDER, metavar="FOLDER", help="pvc://CLAIM/PATH is FOLDER/CLAIM/PATH"
        )
        run.add_argument("--report", type=Path, default=Path(REPORT_PATH), metavar="PATH")
        run.set_defaults(verb=verb)
        if name == "inspect":
            _add_view(run)
    text = "answer prompts with a base, or with a base and an adapter, greedily"
    sample = verbs.add_parser("sample", help=text, description=text)
    sample.add_argument("--base", required=True, metavar="FOLDER", help="a folder or pvc://CLAIM/PATH")
    sample.add_argument("--adapter", metavar="FOLDER", help="a PEFT folder or pvc://CLAIM/PATH")
    sample.add_argument("--nf4", action="store_true", help="load the base in 4 bits, as a run that trains on it so")
    prompts = sample.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", action="append", metavar="TEXT", help="a user's message; may be given again")
    prompts.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="a prompt a line, or JSONL chat rows (*.jsonl): each row's last answer is what is expected",
    )
    sample.add_argument("--limit", type=_number, metavar="N", help="only the first N prompts")
    sample.add_argument("--max-new-tokens", type=_number, default=64, metavar="N")
    sample.add_argument("--batch", type=_number, default=8, metavar="N", help="prompts answered together")
    sample.add_argument("--volumes", default=VOLUMES_FOLDER, metavar="FOLDER")
    sample.add_argument("--json", action="store_true", help="write one JSON object a line")
    sample.set_defaults(verb=_sample)
    text = "play held-out tasks with a base, or with a base and an adapter, score them, and compare two such results"
    evaluation = verbs.add_parser("evaluate", help=text, description=text)
    evaluation.set_defaults(verb=_evaluate)
    evaluate_command.add_to(evaluation)
    text = "give files of a claim to kubectl halo, and take them from it"
    transfer.add_to(verbs.add_parser("transfer", help=text, description=text))
    text = "write a data set of generated tasks, for online RL"
    tasks = verbs.add_parser("tasks", help=text, description=text)
    tasks.set_defaults(verb=_tasks)
    tasks_command.add_to(tasks)
    return parser


def _number(text: str) -> int:
    """Return a number from 1 on; argparse says what was found instead."""
    if not (text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"found {text!r}; use a number from 1 on")
    return int(text)


def _add_view(inspect: argparse.ArgumentParser) -> None:
    """Add what shows rows to a person, without a run's report."""
    view = inspect.add_argument_group("rows for your eyes", "instead of the report: show rows, or count those of files")
    view.add_argument("files", nargs="*", metavar="FILE", help="JSONL, a path or pvc://CLAIM/PATH; else the run file's")
    view.add_argument("--rows", metavar="N[,M]", help="show rows by their numbers: 3, 3,7 or 3-7")
    view.add_argument(
        "--bundle", type=int, metavar="N", help="bundle up to N steps of an agent run, as spec.lora.bundle"
    )
    view.add_argument("--tokens", action="store_true", help="show where each token ends")
    view.add_argument("--base", metavar="FOLDER", help="a folder or pvc://CLAIM/PATH; else the run file's")


def _tasks(options: argparse.Namespace) -> int:
    return _told(options.write, options)


def _train(options: argparse.Namespace) -> int:
    budget = Budget()

    def work(run: RunFile, report: Reporting) -> Outcome:
        from halo_trainer.parallel.launch import launch, needs_launch

        if needs_launch(run.layout):
            return launch(run, options.run_file, options.volumes, options.report, report)
        ranks = Ranks.of_environment()
        budget.watch(
            lambda: _outcome(lambda: publish_at_budget(run, options.volumes, report, ranks), report),
            lambda outcome: _finish(outcome, report),
        )
        if run.base.quantization is None:
            # PEFT imports it wherever it is installed, and that takes two seconds of every start.
            sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
        if run.rlvr:
            from halo_trainer.rl.loop import train_online

            return train_online(run, options.volumes, report, ranks, budget)
        from halo_trainer.train import train

        return train(run, options.volumes, report, ranks, budget)

    return _play(options, "train", work, budget)


def _inspect(options: argparse.Namespace) -> int:
    if options.files or options.rows or options.bundle is not None:
        return _view(options)

    def work(run: RunFile, report: Reporting) -> Outcome:
        from halo_trainer.inspection import inspect

        return inspect(run, options.volumes, report)

    return _play(options, "inspect", work)


def _view(options: argparse.Namespace) -> int:
    from halo_trainer.row_view import view

    return _told(view, options)


def _publish(options: argparse.Namespace) -> int:
    return _play(options, "publish", lambda run, report: publish(run, options.volumes, report))


def _verify(options: argparse.Namespace) -> int:
    return _play(options, "verify", lambda run, report: verify(run, options.volumes, report))


def _sample(options: argparse.Namespace) -> int:
    from halo_trainer.sample import sample

    return _told(sample, options)


def _evaluate(options: argparse.Namespace) -> int:
    from halo_trainer.evaluation.evaluate import evaluate

    return _told(evaluate, options)


def _told(verb: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Do what leaves no report; a failure is a sentence on standard error."""
    try:
        return verb(options)
    except Exception as error:
        if not isinstance(error, RunFailure | OSError):
            traceback.print_exc()
        print(f"halo-trainer: {failure_of(error)}", file=sys.stderr)
        return 1


def _play(
    options: argparse.Namespace,
    role: str,
    work: Callable[[RunFile, Reporting], Outcome],
    budget: Budget | None = None,
) -> int:
    """Do a role's work and leave its outcome in the report, however it ends."""
    try:
        run = read_run_file(options.run_file)
    except RunFailure as failure:
        # Without it there is nothing to report about.
        print(f"halo-trainer: {failure}", file=sys.stderr)
        return 1
    if run.role != role:
        found = f"{options.run_file} is for the role {run.role}, not {role}"
        print(f"halo-trainer: {found}; name another with --run-file, or set its role to {role}", file=sys.stderr)
        return 1
    ranks = Ranks.of_environment()
    report = Reporting(ranks.report(options.report), run)
    outcome = _outcome(lambda: work(run, report), report)
    if budget is not None:
        budget.settle(outcome, peers=ranks.world > 1)
    return _finish(outcome, report)


def _outcome(work: Callable[[], Outcome], report: Reporting) -> Outcome:
    """Return the outcome of the work, or what its failure means."""
    try:
        return work()
    except Exception as error:
        failure = failure_of(error)
        if failure.reason == Reason.CRASHED:
            traceback.print_exc()
        return Outcome(result="Failed", reason=failure.reason, message=str(failure), checkpoint=report.last_checkpoint)


def _finish(outcome: Outcome, report: Reporting) -> int:
    """Leave the outcome in the report and say it; return the exit code."""
    report.finish(outcome)
    stream = sys.stdout if outcome.result == "Succeeded" else sys.stderr
    print(f"{outcome.result} ({outcome.reason}): {outcome.message}", file=stream, flush=True)
    return 0 if outcome.result == "Succeeded" else 1
