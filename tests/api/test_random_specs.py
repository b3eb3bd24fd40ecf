"""Whatever is typed into a TrainingJob is refused by the real API server, or the operator can read it and plan it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halo_api.training_job import TrainingJobSpec
from tests.api.client import Api, Object, Refused
from tests.api.kube import Kubectl
from tests.unit import builders as b
from tests.unit.random_specs import catalogs, specs, wild_specs
from tests.unit.test_random_specs import EXAMPLES, outcome_of

pytestmark = pytest.mark.api

GROUP = "/apis/halo.training/v1alpha1"


def answer(api: Api, body: Object) -> tuple[Object | None, int]:
    """The object as the API server would store it, or the code that it refuses it with."""
    try:
        return api.post(f"{GROUP}/namespaces/default/trainingjobs?dryRun=All", body), 201
    except Refused as refused:
        return None, refused.status


def test_any_body_is_refused_by_the_schema_or_planned(installed_chart: Kubectl) -> None:
    api, outcomes = Api.connect(installed_chart.kubeconfig), Counter[str]()

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(specs() | wild_specs(), st.data())
    def answers(spec: dict[str, Any], data: st.DataObject) -> None:
        body = {
            "apiVersion": "halo.training/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "run"},
            "spec": spec,
        }
        taken, code = answer(api, body)
        if taken is None:
            assert code == 422, body
            outcomes["422"] += 1
            return
        # What the API server stores the operator can read, whatever was typed.
        found = TrainingJobSpec.model_validate(taken["spec"])
        outcomes[outcome_of(b.world(spec=found, catalog=data.draw(catalogs(found))))] += 1

    answers()
    assert outcomes.keys() >= {"422", "refused", "planned"}, outcomes
