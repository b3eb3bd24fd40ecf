"""What a transformer samples behind HTTP, and what the trainer's own forward pass says of the rows that came of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from rollout_peer import Peer, ids, policy
from test_trainer_rollout_servers import QUICK, RETRIES
from tiny_models import VOCABULARY, tiny_model

from halo_trainer.attention import Varlen, install
from halo_trainer.data.collate import collate_flat
from halo_trainer.data.layout import packed
from halo_trainer.model import flat_logits
from halo_trainer.rollouts.client import Client
from halo_trainer.rollouts.completion import Ask, Sampling
from halo_trainer.rollouts.episode import Episode, Turn
from halo_trainer.rollouts.fleet import Fleet
from halo_trainer.rollouts.guard import Guards
from halo_trainer.rollouts.lines import http_client
from halo_trainer.rollouts.rows import RowRules, group_rows

CPU = torch.device("cpu")
SAMPLING = Sampling(temperature=0.8, top_p=1.0, top_k=-1, min_p=0.0, stops=(0, 1, 2), vocabulary=VOCABULARY)


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_text"])
def test_packed_rows_have_the_log_probabilities_that_they_were_sampled_with(kind: str) -> None:
    """Episodes of two turns each, sampled token by token and scored in one flat pass: they agree, token for token."""
    model, one = tiny_model(kind).eval(), threading.Lock()

    @torch.no_grad()
    def logits(version: int, tokens: Sequence[int]) -> np.ndarray:
        with one:
            return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0, -1].double().numpy()

    with Peer(logits=logits) as peer:
        episodes = asyncio.run(sampled(peer))
    install(model.get_base_model())
    for rules, count in ((RowRules("turn", None, "train"), 8), (RowRules("trajectory", None, "train"), 4)):
        rows = group_rows(episodes, 0, rules)
        assert len(rows) == count
        flat = packed([row.row for row in rows])
        with torch.no_grad():
            scores = flat_logits(model, collate_flat(flat, CPU), Varlen.of(flat, CPU))[0].double()
        log_probs = (scores / SAMPLING.temperature).log_softmax(-1)
        found = log_probs.gather(-1, torch.tensor(flat.targets).long()[:, None])[:, 0]
        expected = torch.tensor([value for row in rows for value in row.log_probs], dtype=torch.float64)
        assert len(expected) == sum(episode.sampled_tokens for episode in episodes) > 40
        assert torch.allclose(found, expected, rtol=0, atol=2e-5), float((found - expected).abs().max())


async def sampled(peer: Peer) -> list[Episode]:
    async with http_client() as http, Fleet([peer.address], Guards(http), 1, None, QUICK) as fleet:
        await fleet.publish(policy(1))
        client = Client(fleet, http, SAMPLING, RETRIES)

        async def episode(number: int) -> Episode:
            turns: list[Turn] = []
            prompt = ids(5 + number, 7, 11)
            for turn in range(2):
                turns.append(await client.sample(Ask(prompt, 9, 100 * number + turn), (str(number),)))
                prompt = prompt + turns[-1].answer + ids(3, 4)
            return Episode("task", number, tuple(turns), reward=1.0)

        return await asyncio.gather(*map(episode, range(4)))
