"""The chart installs exactly the definitions of crds/."""

from __future__ import annotations

import yaml

from tests.chart.rendering import ROOT, Object, of_kind, render

KEEP = "helm.sh/resource-policy"


def definitions(values: Object | None = None) -> dict[str, Object]:
    return of_kind(render(values), "CustomResourceDefinition")


def test_each_is_the_one_in_crds_with_labels_and_a_policy_added() -> None:
    source = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")}
    installed = definitions()
    assert installed.keys() == source.keys()
    for name, body in installed.items():
        assert body["metadata"].pop("labels")["app.kubernetes.io/part-of"] == "halo"
        assert body["metadata"].pop("annotations") == {KEEP: "keep"}
        assert body == source[name], f"{name} differs: run hack/sync-chart"


def test_they_can_be_removed_with_the_chart() -> None:
    assert all("annotations" not in body["metadata"] for body in definitions({"crds.keep": False}).values())


def test_they_can_come_from_elsewhere() -> None:
    assert definitions({"crds.enabled": False}) == {}
