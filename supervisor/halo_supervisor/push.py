"""One push: the whole current report by HTTPS to the operator, over a new connection."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import ValidationError

from halo_api.report import Answer, Report
from halo_supervisor.paths import Paths

TIMEOUT_SECONDS = 10.0
# An answer names the run's rollout servers, of which there may be hundreds.
LARGEST_ANSWER = 1 << 20


@dataclass(frozen=True)
class PushFailure:
    """Why a push was not taken; `standby` when another replica would take it, `final` when nobody will any more."""

    message: str
    standby: bool = False
    final: bool = False


def push(report: Report, url: str, paths: Paths) -> Answer | PushFailure:
    """Push once. The token and the authorities are read anew each time, because both rotate during a long run.

    The connection is new each time too: a Service balances connections, so the next one may reach the leader.
    """
    parts = urlsplit(url)
    try:
        token = paths.token.read_text().strip()
        context = ssl.create_default_context(cafile=str(paths.ca))
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS, context=context
        )
        try:
            connection.request(
                "POST",
                parts.path or "/",
                report.model_dump_json(by_alias=True, exclude_none=True).encode(),
                {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Connection": "close"},
            )
            response = connection.getresponse()
            body = response.read(LARGEST_ANSWER)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return PushFailure(f"{type(error).__name__}: {error}")
    if response.status != 200:
        said = body[:200].decode("utf-8", "replace").strip()
        return PushFailure(
            f"HTTP {response.status}: {said}", standby=response.status == 503, final=response.status == 410
        )
    try:
        return Answer.model_validate_json(body)
    except ValidationError as error:
        return PushFailure(f"an answer that can't be understood: {error}")
