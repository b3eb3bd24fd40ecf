"""What Prometheus sees of a Workspace's money and of steps, and that every metric is in the documentation and the dashboard knows no other."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from prometheus_client import REGISTRY

from halo_operator import metrics, step_metrics
from halo_operator.plan.book.plan import plan_book
from tests.unit.builders import NOW
from tests.unit.builders_book import book_world, end, wish

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "metrics.md"


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def shown(namespace: str, unit: str) -> list[float | None]:
    names = ("credit", "held", "spent", "balance")
    return [value(f"halo_workspace_{name}", namespace=namespace, unit=unit) for name in names]


def test_a_book_is_shown_by_unit_until_it_is_gone() -> None:
    world = book_world(usd=100, hours=10)
    status = plan_book(replace(world, wanted=(wish("a", 60.5), wish("b", 2, "H100Hours"))), NOW).status
    assert status
    metrics.book("shown", status)
    assert shown("shown", "USD") == [100, 60.5, 0, 39.5]
    assert shown("shown", "H100Hours") == [10, 2, 0, 8]
    metrics.book("shown", status.model_copy(update={"allocation": None}))
    assert shown("shown", "H100Hours") == [None] * 4
    metrics.no_book("shown")
    metrics.no_book("shown")
    assert shown("shown", "USD") == [None] * 4


def counted() -> list[float]:
    names = ("halo_holds_placed_total", "halo_holds_refused_total", "halo_charged_total")
    return [value(name, unit="USD") or 0.0 for name in names]


def test_what_a_plan_decided_is_counted_and_an_overrun_is_not_charged() -> None:
    before = counted()
    world = replace(book_world(usd=100), wanted=(wish("a", 60), wish("b", 50), wish("c", 40)))
    plan = plan_book(world, NOW)
    metrics.booked(world, plan)
    assert plan.status
    later = replace(world, status=plan.status, wanted=(), ended=(end("a", 12.5), end("c", 41)))
    metrics.booked(later, plan_book(later, NOW))
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [2, 1, 52.5]


def families() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every metric of ours: its type and its labels."""
    found = {}
    for metric in (*vars(metrics).values(), *vars(step_metrics).values()):
        for one in metric.values() if isinstance(metric, dict) else (metric,):
            if hasattr(one, "_labelnames") and hasattr(one, "describe"):
                (family,) = one.describe()
                name = family.name + ("_total" if family.type == "counter" else "")
                found[name] = (family.type, one._labelnames)
    return found


def test_every_metric_is_documented_with_its_labels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", DOCS.read_text(), re.M)
    said = {name: (type_, labels.strip()) for name, type_, labels in rows}
    found = {name: (type_, ", ".join(f"`{label}`" for label in labels)) for name, (type_, labels) in families().items()}
    assert said == found


def test_the_dashboard_asks_for_series_and_labels_that_there_are() -> None:
    board = json.loads((ROOT / "charts" / "halo" / "dashboards" / "halo.json").read_text())
    known: dict[str, set[str]] = {}
    for name, (type_, labels) in families().items():
        for suffix in ("_bucket", "_sum", "_count") if type_ == "histogram" else ("",):
            known[name + suffix] = {*labels, *(("le",) if suffix == "_bucket" else ())}
    asked = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]
    asked += [("variable", one["query"]["query"]) for one in board["templating"]["list"] if one["type"] == "query"]
    for title, expression in asked:
        series = set(re.findall(r"\b(?:halo|controller|workqueue|leader)_\w+", expression))
        assert series, title
        assert series <= known.keys(), title
        labels = re.findall(r"(\w+)=~?\"", expression)
        labels += [each for by in re.findall(r"by \(([^)]*)\)", expression) for each in by.split(", ")]
        assert set(labels) <= set.union(*(known[one] for one in series)), title
