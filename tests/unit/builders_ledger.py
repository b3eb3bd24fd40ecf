"""Books as the API server stores them, with numbers worked out by hand: what `kubectl halo ledger` reads."""

from __future__ import annotations

import hashlib
import json
from typing import Any

Body = dict[str, Any]
DIGEST = "sha256:" + "a" * 64
# 2.5 USD x 1.2 = 3 USD an hour of one GPU: a GPU-second is 0.00083333… USD.
RATE = {"gpuClass": "h100", "region": "eu-west", "usdPerHour": "2.5", "markup": "1.2", "h100Equivalent": "1"}


def usd(sequence: int, **changes: Any) -> Body:
    """A TrainingJob of 8400.5 GPU-seconds on the wallet: 7.00041666… USD, so 7.000417."""
    run = {"kind": "TrainingJob", "name": f"run-{sequence}", "uid": f"uid-{sequence}"}
    body = {
        "sequence": sequence, "run": run, "unit": "USD", "rate": RATE, "quoted": "9.4", "held": "12.5", "used": "7.000417",
        "charged": "7.000417", "overrun": "0", "gpuSeconds": "8400.5", "outcome": "Succeeded", "receipt": DIGEST,
        "placedAt": "2026-11-03T10:00:00Z", "settledAt": "2026-11-03T13:30:00Z",
    }  # fmt: skip
    return body | changes


def judged(sequence: int, **changes: Any) -> Body:
    """A GrpoRun of one GPU hour whose judges cost 1.25 USD, that used 4.25 of 4 USD."""
    run = {"kind": "GrpoRun", "name": f"run-{sequence}", "uid": f"uid-{sequence}"}
    amounts = {"held": "4", "used": "4.25", "charged": "4", "overrun": "0.25", "judgeUsd": "1.25", "gpuSeconds": "3600"}
    return usd(sequence, run=run, settledAt="2026-11-30T23:59:59Z", **amounts) | changes


def hours(sequence: int, **changes: Any) -> Body:
    """A TrainingJob of 1000 seconds of a GPU that counts 0.4 H100: 0.11111… hours, so 0.111112."""
    rate = {"gpuClass": "l40s", "h100Equivalent": "0.4"}
    amounts = {"held": "0.5", "used": "0.111112", "charged": "0.111112", "gpuSeconds": "1000", "quoted": "0.3"}
    return usd(sequence, unit="H100Hours", rate=rate, settledAt="2026-12-01T00:00:00Z", **amounts) | changes


def pages(*entries: list[Body], uids: tuple[str, ...] = ()) -> list[Body]:
    """The LedgerPages of these entries, each chained to the one before."""
    made: list[Body] = []
    for number, found in enumerate(entries, start=1):
        so_far = [entry for page in entries[:number] for entry in page]
        spec = {
            "page": number, "workspaceUid": uids[number - 1] if uids else "workspace-1", "entries": found,
            "totals": {"entries": len(so_far), "spentUsd": charged(so_far, "USD"), "spentH100Hours": charged(so_far, "H100Hours")},
        }  # fmt: skip
        if made:
            spec["previous"] = digest(made[-1]["spec"])
        made.append(page(spec))
    return made


def page(spec: Body) -> Body:
    meta = {"name": f"page-{spec['page']:09d}"}
    return {"apiVersion": "halo.training/v1alpha1", "kind": "LedgerPage", "metadata": meta, "spec": spec}


def digest(spec: Body) -> str:
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def charged(entries: list[Body], unit: str) -> str:
    """The sum in millionths, written without a float."""
    sums = sum(millionths(entry["charged"]) for entry in entries if entry["unit"] == unit)
    return f"{sums // 10**6}.{sums % 10**6:06d}".rstrip("0").rstrip(".")


def millionths(amount: str) -> int:
    whole, _, rest = amount.partition(".")
    return int(whole) * 10**6 + int(rest.ljust(6, "0"))


def hold(uid: str, amount: str = "12.5", unit: str = "USD") -> Body:
    run = {"kind": "TrainingJob", "name": f"open-{uid}", "uid": uid}
    return {
        "run": run,
        "unit": unit,
        "amount": amount,
        "rate": RATE,
        "quoted": "9.4",
        "placedAt": "2026-12-02T08:00:00Z",
    }


def workspace(made: list[Body], settled: list[Body], holds: dict[str, Body], **status: Any) -> Body:
    """A Workspace of 500 USD and 1200 H100-hours; what is held and free is the caller's to say."""
    last = made[-1]["spec"] if made else None
    everything = [entry for each in made for entry in each["spec"]["entries"]] + settled
    book = {
        "observedGeneration": 1,
        "settled": settled,
        "holds": holds,
        "entries": len(everything),
        "spent": charged(everything, "USD"),
    }
    known = {"pages": last["page"], "pageDigest": digest(last)} if last else {}
    spec = {"wallet": {"creditUsd": 500}, "allocation": {"h100Hours": 1200}}
    return {
        "apiVersion": "halo.training/v1alpha1", "kind": "Workspace",
        "metadata": {"name": "workspace", "namespace": "team", "uid": "workspace-1", "generation": 1},
        "spec": spec, "status": book | known | status,
    }  # fmt: skip
