"""`kubectl halo lineage ADAPTER`: the tree of what an adapter descends from and what descends from that, as text, SVG or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from halo_api.adapter import AdapterSpec, AdapterStatus
from halo_api.receipt import RECEIPT_ANNOTATION
from halo_api.receipt_check import Flaw, in_words, stated, unwrapped
from halo_cli.kubectl import CliError, Kubectl, Object
from halo_cli.lineage_svg import drawn
from halo_cli.lineage_tree import Family, Member, Namespace, There, short

PROVEN, WRONG, UNTOLD = 0, 1, 2
HEAD = ("ADAPTER", "BASE", "RUN", "STEP", "VERIFIED", "DIGEST", "RECEIPT")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """Of which adapter, and as what."""

    adapter: str
    svg: str | None = None
    json: bool = False


def lineage(kubectl: Kubectl, asked: Asked, say: Say, note: Say) -> int:
    """Show the family; return 0 if the whole line is there and verified, 1 if something is wrong, 2 if it can't be told."""
    try:
        return shown(kubectl, asked, say, note)
    except CliError as error:
        note(f"not told: {error}")
        return UNTOLD


def shown(kubectl: Kubectl, asked: Asked, say: Say, note: Say) -> int:
    """Show the family, and then what is wrong and what can't be told; raises CliError if there is nothing to show."""
    bodies: list[Object] = kubectl.get("adapters.halo.training").get("items", [])
    found, unread = [], []
    for body in bodies:
        try:
            found.append(there(body))
        except ValidationError as error:
            unread.append(f"{body['metadata']['name']}: can't be read: {in_words(error)}")
    namespace = Namespace(found)
    if asked.adapter not in namespace.by_name:
        words = next((line for line in unread if line.startswith(f"{asked.adapter}: ")), None)
        raise CliError(words) if words else kubectl.absent("Adapter", asked.adapter, "adapters")
    family = namespace.family(asked.adapter)
    if asked.json:
        say(json.dumps(as_json(family), indent=2))
    elif asked.svg is not None:
        write(asked.svg, drawn(family, asked.adapter), say)
    else:
        for line in text(family):
            say(line)
    for line in family.wrong:
        note(f"wrong: {line}")
    for line in (*family.unknown, *unread):
        note(f"not told: {line}")
    return WRONG if family.wrong else UNTOLD if family.unknown else PROVEN


def there(body: Object) -> There:
    """Read an Adapter of the cluster."""
    meta, spec = body["metadata"], AdapterSpec.model_validate(body["spec"])
    envelope = (meta.get("annotations") or {}).get(RECEIPT_ANNOTATION)
    return There(
        name=meta["name"],
        spec=spec,
        status=AdapterStatus.model_validate(body.get("status") or {}),
        parent_receipt=parent_receipt(envelope) if spec.parent and envelope else None,
    )


def parent_receipt(envelope: str) -> str | None:
    """Return which receipt of its parent a receipt names; one that can't be read is `kubectl halo receipt verify`'s to tell."""
    try:
        parent = stated(unwrapped(envelope.encode())[0]).predicate.parent
    except Flaw:
        return None
    return parent.receipt if parent else None


def text(family: Family) -> list[str]:
    """Return a line an adapter under a head; the one that was asked for has a star."""
    rows = [
        HEAD,
        *((f"{branches(one)}{one.key.name}{' *' if one.asked else ''}", *facts(one)) for one in family.members),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def branches(member: Member) -> str:
    """Return the lines that lead to an adapter from those above it."""
    if not member.more:
        return ""
    *above, last = member.more
    return "".join("│  " if more else "   " for more in above) + ("├─ " if last else "└─ ")


def facts(member: Member) -> tuple[str, ...]:
    """Return what is known of an adapter, as the head names it."""
    spec = member.adapter.spec if member.adapter else None
    made = spec.trained_by if spec else None
    return (
        f"{spec.base.name}@{spec.base.revision}" if spec else "-",
        made.name if made else "-",
        str(made.step) if made else "-",
        member.verified,
        short(member.key.digest),
        short(member.key.receipt),
    )


def as_json(family: Family) -> Object:
    """Return the family as one object, its members oldest first."""
    return {
        "adapters": [member_json(one) for one in family.members],
        "wrong": list(family.wrong),
        "unknown": list(family.unknown),
    }


def member_json(member: Member) -> Object:
    """Return an adapter of the family; what is unknown of one that is not there is left out."""
    found: dict[str, Any] = {
        "name": member.key.name,
        "digest": member.key.digest,
        "receipt": member.key.receipt,
        "state": member.state,
        "asked": member.asked,
        "ancestor": member.ancestor,
        "parent": member.parent._asdict() if member.parent else None,
    }
    if member.adapter:
        spec, verified = member.adapter.spec, member.adapter.verified
        found |= {
            "base": spec.base.to_json(),
            "rank": spec.rank,
            "alpha": spec.alpha,
            "trainedBy": spec.trained_by.to_json() if spec.trained_by else None,
            "verified": verified.to_json() if verified else None,
        }
    return found


def write(where: str, svg: str, say: Say) -> None:
    """Write the drawing to a file, or to standard output for -."""
    if where == "-":
        say(svg)
        return
    try:
        Path(where).write_text(svg + "\n", encoding="utf-8")
    except OSError as error:
        raise CliError(f"{where}: can't be written: {error.strerror}") from None
