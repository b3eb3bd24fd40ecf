"""The guard of a rollout pod: keeps vLLM's server, takes policies for it, and answers for its health.

Any exit of vLLM before the guard was told to end is a failure, whatever its code: its server ends with 0 after its engine died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.rollouts import LIVE_PATH, POLICY_PATH, READY_PATH, Policy, PolicyAnswer
from halo_api.run_file import RunFile
from halo_rollout.child import Child
from halo_rollout.engine import Engine, EngineFailed
from halo_rollout.flags import RUN_ENVIRONMENT, Server, command, environment
from halo_rollout.policies import Refused
from halo_rollout.reporting import ReportFile
from halo_rollout.taker import Broken, Taker

log = logging.getLogger(__name__)

PROBE_SECONDS = 5.0
LOOK_SECONDS = 0.5
# Of a run that is over, or whose pod must go; neither is a success of the server, which has none.
TOLD = {
    signal.SIGTERM: Outcome(result="Failed", reason=Reason.INTERRUPTED, message="the rollout server was told to end"),
    signal.SIGUSR1: Outcome(
        result="Succeeded",
        reason=Reason.BUDGET_REACHED,
        message="the budget was reached; the run's first process publishes",
    ),
}


class Guard:
    """One vLLM server, its policy, and who asks for them."""

    def __init__(self, taker: Taker, engine: Engine, report: ReportFile) -> None:
        self._taker = taker
        self._engine = engine
        self._report = report
        self._up = False
        # How it ends: the first word counts.
        self._end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def app(self) -> web.Application:
        """Return the HTTP server of the guard's port."""
        app = web.Application()
        app.add_routes(
            [
                web.get(LIVE_PATH, self._live),
                web.get(READY_PATH, self._ready),
                web.get(POLICY_PATH, self._policy),
                web.put(POLICY_PATH, self._announced),
            ]
        )
        return app

    def end(self, outcome: Outcome) -> None:
        """Have the guard end with that outcome, unless it is ending already."""
        if not self._end.done():
            self._end.set_result(outcome)

    async def until_ended(self, child: Child) -> Outcome:
        """Watch the server; return how it ended."""
        tasks = [asyncio.ensure_future(each) for each in (self._end, self._fail_with(child), self.watch())]
        try:
            for done in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                done.result()
            return await self._end
        finally:
            for task in tasks:
                task.cancel()

    async def watch(self) -> None:
        """Keep the health up to date: wait for the server, then sample and count for ever."""
        while not await self._engine.up():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        self._up = True
        # Apart: under load a probe is answered late, and meanwhile the count tells that something moves.
        await asyncio.gather(_every(PROBE_SECONDS, self._probe), _every(PROBE_SECONDS, self._count))

    async def _fail_with(self, child: Child) -> None:
        code = await child.ended()
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        message = f"vLLM ended by itself with {how}, before the server was told to end"
        self.end(Outcome(result="Failed", reason=Reason.CRASHED, message=message))

    async def _probe(self) -> None:
        try:
            await self._taker.probe()
        except EngineFailed as error:
            log.warning("a probe failed: %s", error)
            return
        if not self._report.working:
            self._report.phase("Working")

    async def _count(self) -> None:
        try:
            tokens = await self._engine.tokens()
        except EngineFailed:
            return
        self._taker.health = self._taker.health.counted(tokens, time.monotonic())

    async def _live(self, request: web.Request) -> web.Response:
        return _yes_or_no(self._taker.health.live(time.monotonic()), "the engine has not answered for too long")

    async def _ready(self, request: web.Request) -> web.Response:
        model = self._taker.model
        ready = self._taker.health.ready(model, time.monotonic())
        return _yes_or_no(ready, f"no sampled request of {model} was answered of late")

    async def _policy(self, request: web.Request) -> web.Response:
        return _answer(200, self._taker.answer)

    async def _announced(self, request: web.Request) -> web.Response:
        try:
            policy = Policy.model_validate_json(await request.read())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            return self._problem(400, f"{where} of the policy: {first['msg']}")
        if not self._up:
            return self._problem(503, "vLLM has not loaded the base yet; announce the policy again")
        try:
            return _answer(200, await self._taker.take(policy))
        except Refused as refused:
            return self._problem(409, str(refused))
        except EngineFailed as error:
            log.error("policy %s was not taken: %s", policy.name, error)
            return self._problem(500, f"policy {policy.name} was not taken: {error}")
        except Broken as broken:
            self.end(Outcome(result="Failed", reason=Reason.CRASHED, message=str(broken)))
            return self._problem(500, str(broken))

    def _problem(self, status: int, sentence: str) -> web.Response:
        return _answer(status, self._taker.answer.model_copy(update={"problem": sentence}))


async def _every(seconds: float, what: Callable[[], Awaitable[None]]) -> None:
    while True:
        await what()
        await asyncio.sleep(seconds)


def _answer(status: int, answer: PolicyAnswer) -> web.Response:
    return web.json_response(answer.to_json(), status=status)


def _yes_or_no(yes: bool, why_not: str) -> web.Response:
    return web.Response(text="yes" if yes else why_not, status=200 if yes else 503)


async def guard(run: RunFile, server: Server, volumes: str, report: ReportFile, on_gpu: bool) -> Outcome:
    """Serve until told to end, or until vLLM ends by itself; return the outcome."""
    assert run.rollout is not None
    with tempfile.TemporaryDirectory(prefix="halo-policies-") as scratch:
        async with aiohttp.ClientSession() as session:
            engine = Engine(server.port, session)
            taker = Taker(run, server.base, volumes, Path(scratch), engine, experts=on_gpu)
            keeper = Guard(taker, engine, report)
            loop = asyncio.get_running_loop()
            for number, outcome in TOLD.items():
                loop.add_signal_handler(number, keeper.end, outcome)
            runner = web.AppRunner(keeper.app(), access_log=None, shutdown_timeout=2.0)
            await runner.setup()
            await web.TCPSite(runner, port=run.rollout.guard_port).start()
            report.phase("Loading")
            child = await Child.start(command(server), {**environment(on_gpu), **os.environ, **RUN_ENVIRONMENT})
            try:
                return await keeper.until_ended(child)
            finally:
                await child.end()
                await runner.cleanup()
