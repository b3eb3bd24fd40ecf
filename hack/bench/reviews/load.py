"""Sends reviews at a rate that does not wait for answers, as an API server's users do, and keeps each answer's time."""

from __future__ import annotations

import asyncio
import json
import math
import random
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.api.pods import REPORT_HOST

Object = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A review, and whether the right answer allows it."""

    kind: str
    body: bytes
    allowed: bool


@dataclass
class Measured:
    """The answers of one load."""

    seconds: list[float] = field(default_factory=list)
    by_kind: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    latest_start: float = 0.0

    def at(self, share: float) -> float:
        """The time in ms within which this share was answered (nearest rank)."""
        ordered = sorted(self.seconds)
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 2)


def review(kind: str, allowed: bool, body: Object, before: Object | None = None) -> Question:
    """A review as the API server makes it of an object that it is about to store."""
    meta, resource = body["metadata"], {"group": "halo.training", "version": "v1alpha1", "resource": "trainingjobs"}
    name = {"group": "halo.training", "version": "v1alpha1", "kind": "TrainingJob"}
    operation = "UPDATE" if before else "CREATE"
    request = {
        "uid": meta["uid"],
        "kind": name,
        "resource": resource,
        "requestKind": name,
        "requestResource": resource,
        "name": meta["name"],
        "namespace": meta["namespace"],
        "operation": operation,
        "userInfo": {"username": "member", "groups": ["system:authenticated"]},
        "object": body,
        "oldObject": before,
        "dryRun": True,
        "options": {"kind": f"{operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    whole = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    return Question(kind, json.dumps(whole).encode(), allowed)


async def load(port: int, authority: str, questions: list[Question], rate: float, seconds: float) -> Measured:
    """Ask at random moments, `rate` a second on average; a time counts from the moment that was meant."""
    chance, measured = random.Random(0), Measured()
    context = ssl.create_default_context(cadata=authority)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    url, headers = f"https://127.0.0.1:{port}/validate", {"Content-Type": "application/json"}

    async def ask(session: aiohttp.ClientSession, question: Question, due: float) -> None:
        measured.latest_start = max(measured.latest_start, time.perf_counter() - due)
        measured.by_kind[question.kind] += 1
        try:
            async with session.post(url, data=question.body, headers=headers, server_hostname=REPORT_HOST) as answer:
                response = (await answer.json())["response"] if answer.status == 200 else {}
            if response.get("allowed") is not question.allowed:
                measured.wrong[question.kind] += 1
        except (aiohttp.ClientError, TimeoutError, ValueError):
            measured.wrong[question.kind] += 1
        measured.seconds.append(time.perf_counter() - due)

    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=10)) as session:
        begun = time.perf_counter()
        due, asked = begun, []
        while (due := due + chance.expovariate(rate)) < begun + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(asyncio.create_task(ask(session, chance.choice(questions), due)))
        await asyncio.gather(*asked)
    return measured
