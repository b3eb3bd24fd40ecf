"""What a real API server answers to the tables' objects, and the words in which kubectl shows that to a user.

The server is asked directly: a kubectl a row would cost more than all the rest of it. tests/api/test_schema_rows.py puts every
row to kubectl as well, all of a kind in one command, and one of each shape alone, and holds these words against its own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from halo_api.crd import KINDS, crd
from tests.api.client import Api, Object, Refused
from tests.refusals import Body

DEFINITIONS = {kind.__name__: crd(kind)["spec"] for kind in KINDS}
# What `kubectl create --dry-run=server` asks.
DRY = "dryRun=All&fieldValidation=Strict&fieldManager=kubectl-create"


def path_of(body: Body, namespace: str = "default") -> str:
    """Return where the API server keeps the objects of a kind."""
    spec = DEFINITIONS[body["kind"]]
    where = f"namespaces/{namespace}/" if spec["scope"] == "Namespaced" else ""
    return f"/apis/{body['apiVersion']}/{where}{spec['names']['plural']}"


def refusal(api: Api, body: Body) -> Object | None:
    """Return the Status with which the API server refuses to create it, None if it would."""
    try:
        api.post(f"{path_of(body)}?{DRY}", body)
    except Refused as refused:
        return refused.answer
    return None


def refusals(api: Api, bodies: list[Body]) -> list[Object | None]:
    """Put every object to the API server, a few at a time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda body: refusal(api, body), bodies))


def alone(status: Object | None) -> str:
    """Return what kubectl says of the one object that it was given."""
    if status is None:
        return ""
    details = status.get("details", {})
    causes = list(dict.fromkeys(f"{one.get('field', '')}: {one['message']}" for one in details.get("causes", [])))
    if status["reason"] != "Invalid" or not causes:
        return among_others(status)
    head = f'The {details["kind"]} "{details["name"]}" is invalid: '
    return head + (causes[0] if len(causes) == 1 else "".join(f"\n* {cause}" for cause in causes)) + "\n"


def among_others(status: Object) -> str:
    """Return what kubectl says of one of many objects."""
    return f'Error from server ({status["reason"]}): error when creating "STDIN": {status["message"]}\n'
