"""The admission policies as rendered; tests/api/test_forgery.py asks a real API server what they deny."""

from __future__ import annotations

import re

import pytest

from halo_api.run_file import CA_ANNOTATION, DEADLINE_ANNOTATION, REPORT_AUDIENCE, RUN_ANNOTATION
from halo_operator.plan import names
from tests.chart.rendering import CHART, Object, of_kind, render

RUN_POD_NAME = "-a[0-9]+-[0-9a-f]{10}$"
UID = "0a0b0c0d-1111-2222-3333-444455556666"


def policies(values: Object | None = None, *arguments: str) -> dict[str, Object]:
    return of_kind(render(values, *arguments), "ValidatingAdmissionPolicy")


def test_each_denies_and_fails_closed() -> None:
    found = policies()
    assert found.keys() == {
        "halo-run-objects",
        "halo-other-pods",
        "halo-run-access",
        "halo-report-tokens",
        "halo-operator-writes",
        "halo-holds",
        "halo-adapters",
    }
    bindings = of_kind(render(), "ValidatingAdmissionPolicyBinding")
    for name, policy in found.items():
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert bindings[name]["spec"] == {"policyName": name, "validationActions": ["Deny"]}


def test_the_operator_is_the_account_of_the_release_s_namespace() -> None:
    found = policies(None, "--namespace", "elsewhere")
    for name in ("halo-run-objects", "halo-other-pods", "halo-adapters"):
        (condition,) = found[name]["spec"]["matchConditions"]
        assert condition["expression"] == 'request.userInfo.username != "system:serviceaccount:elsewhere:halo-operator"'
    (condition,) = found["halo-operator-writes"]["spec"]["matchConditions"]
    assert condition["expression"] == 'request.userInfo.username == "system:serviceaccount:elsewhere:halo-operator"'


def test_the_operator_is_held_to_every_kind_that_it_patches_and_to_its_own_finalizer() -> None:
    role = of_kind(render(), "ClusterRole")["halo-operator"]
    patched = {r for rule in role["rules"] if "patch" in rule["verbs"] for r in rule["resources"]}
    policy = policies()["halo-operator-writes"]["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert {*rule["resources"], "pods"} == patched
    assert str(policy["variables"]).count(f"f != '{names.HOLD_FINALIZER}'") == 2


@pytest.mark.parametrize("owner", ["chat", "a.b", "x" * 253, "9-a1-0123456789"])
def test_they_know_every_pod_of_a_run_by_its_name(owner: str) -> None:
    made = (
        names.trainer_pod(owner, UID, rank=0, attempt=1),
        names.trainer_pod(owner, UID, rank=12, attempt=104),
        names.inspect_pod(owner, UID, "a-base", "rev-0001", attempt=3),
    )
    for name in made:
        assert re.search(RUN_POD_NAME, name), name
    text = str(policies())
    assert text.count(RUN_POD_NAME) == 2


def test_they_speak_of_what_the_operator_sets() -> None:
    prefix = "halo.training/"
    ours = (
        *(names.RUN_LABEL, names.KEY_LABEL, names.ROLE_LABEL, names.ATTEMPT_LABEL, names.RANK_LABEL),
        *(
            names.OWNER_ANNOTATION,
            names.BASE_ANNOTATION,
            names.REVISION_ANNOTATION,
            RUN_ANNOTATION,
            CA_ANNOTATION,
            DEADLINE_ANNOTATION,
        ),
        names.METERED_FINALIZER,
    )
    assert all(key.startswith(prefix) for key in ours)
    for path in ("policy-objects.yaml", "policy-access.yaml"):
        assert f"'{REPORT_AUDIENCE}'" in (CHART / "templates" / path).read_text()


def test_groups_and_controllers_are_let_in_by_value() -> None:
    values = {"security.execGroups": ["sre", "it's"], "security.podControllers": ["system:serviceaccount:kueue:kueue"]}
    found = policies(values)
    (rule,) = found["halo-run-access"]["spec"]["validations"]
    assert 'g in ["system:masters","sre","it\'s"]' in rule["expression"]
    assert by_pod_controller(found) == 'request.userInfo.username in ["system:serviceaccount:kueue:kueue"]'
    assert by_pod_controller(policies()) == "request.userInfo.username in []"


def by_pod_controller(found: dict[str, Object]) -> str:
    variables: dict[str, str] = {v["name"]: v["expression"] for v in found["halo-run-objects"]["spec"]["variables"]}
    return variables["byPodController"]
