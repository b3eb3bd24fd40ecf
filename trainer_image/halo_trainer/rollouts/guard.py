"""The guard beside each rollout server, as the trainer speaks to it: which policy is served, and which shall be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
from pydantic import ValidationError

from halo_api.rollouts import POLICY_PATH, READY_PATH, Policy, PolicyAnswer, ServerAddress


class NotTaken(Exception):
    """A server does not sample with the policy that it was to take, in one sentence; `final`: and won't if asked again."""

    def __init__(self, problem: str, final: bool = False) -> None:
        super().__init__(problem)
        self.final = final


@dataclass(frozen=True)
class Guards:
    """Speaks to guards. Times are in seconds: of a question, and of taking a policy, which may mean folding a large base."""

    http: httpx.AsyncClient
    ask_seconds: float = 10.0
    take_seconds: float = 600.0

    async def settle(self, address: ServerAddress, policy: Policy) -> float:
        """See to it that the server samples with the policy; return how many seconds it took to take it, 0 where it had it.

        Raises NotTaken.
        """
        served = await self._answer("GET", address, self.ask_seconds)
        if served.policy == policy:
            await self._ready(address)
            return 0.0
        return await self.put(address, policy)

    async def put(self, address: ServerAddress, policy: Policy) -> float:
        """Let the server take the policy; return how many seconds that took. Raises NotTaken."""
        answer = await self._answer("PUT", address, self.take_seconds, policy)
        if answer.problem or answer.policy != policy:
            found = answer.policy.name if answer.policy else "no policy"
            raise NotTaken(answer.problem or f"it serves {found}, asked to take {policy.name}")
        return answer.seconds

    async def _answer(
        self, method: str, address: ServerAddress, seconds: float, policy: Policy | None = None
    ) -> PolicyAnswer:
        body = policy.model_dump_json(by_alias=True, exclude_none=True) if policy else None
        status, content = await self._request(method, address.guard + POLICY_PATH, seconds, body)
        try:
            answer = PolicyAnswer.model_validate_json(content)
        except ValidationError:
            answer = PolicyAnswer(problem=f"its guard answered {status}: {content[:200].decode(errors='replace')}")
        if status != 200:
            raise NotTaken(answer.problem or f"its guard answered {status}", final=400 <= status < 500)
        return answer

    async def _ready(self, address: ServerAddress) -> None:
        status, content = await self._request("GET", address.guard + READY_PATH, self.take_seconds)
        if status != 200:
            raise NotTaken(f"it is not ready ({status}: {content[:200].decode(errors='replace')})")

    async def _request(self, method: str, url: str, seconds: float, body: str | None = None) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"} if body else None
        try:
            async with asyncio.timeout(seconds):
                response = await self.http.request(method, url, content=body, headers=headers)
                return response.status_code, response.content
        except TimeoutError as error:
            raise NotTaken(f"its guard did not answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise NotTaken(f"its guard can't be reached ({type(error).__name__}: {error})") from error
