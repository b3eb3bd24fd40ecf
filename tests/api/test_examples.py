"""Every file of examples/ is taken by a real API server as it stands, and there is one for every kind that people write."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from halo_api.crd import KINDS
from tests.api.kube import ROOT, Kubectl

pytestmark = pytest.mark.api

FILES = sorted((ROOT / "examples").glob("*.yaml"))
BY_THE_OPERATOR = {"Adapter", "LedgerPage", "Recipe"}
MODELS = {kind.__name__: kind for kind in KINDS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_api_server_takes_it(shared_admin: Kubectl, file: Path) -> None:
    taken = shared_admin("apply", "--dry-run=server", "--validate=strict", "-f", str(file)).splitlines()
    bodies = [body for body in yaml.safe_load_all(file.read_text()) if body]
    assert len(taken) == len(bodies)
    for body in bodies:
        # The operator reads each as exactly as the API server does.
        MODELS[body["kind"]].model_validate(body)


def test_every_kind_that_people_write_has_one() -> None:
    written = {body["kind"] for file in FILES for body in yaml.safe_load_all(file.read_text()) if body}
    assert written == MODELS.keys() - BY_THE_OPERATOR
