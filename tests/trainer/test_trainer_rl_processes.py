"""Online RL as a pod runs it: the command line, real tasks and environment workers, and one process or two of a node."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from rl_runs import ModelPeer, online_file, settings
from tiny_models import as_vector, difference
from trainer_support import adapter_bytes, completed

from halo_api.adapter import WEIGHTS
from halo_api.run_file import RunFile
from halo_trainer.data.load import load_template, load_tokenizer
from halo_trainer.environments.base import Task
from halo_trainer.environments.registry import environment_of
from halo_trainer.environments.sql_tasks import generate
from halo_trainer.environments.wire import task_to_json
from halo_trainer.rollouts.chat import Chat, stop_ids

# Without a KL that would be 0 at first, and a rate at which Adam's first steps of +-rate can't hide a wrong gradient's size.
SETTINGS = settings("sql_v3", rollouts__maxTokensPerTurn=96, lora__learningRate=0.002)


class KnowingPeer(ModelPeer):
    """A server whose model knows the right query in every second episode, and says another one in the others."""

    def __init__(self, root: Path, file: RunFile, tasks: Sequence[Task]) -> None:
        super().__init__(root, file)
        base = root / "models" / "tiny"
        template, tokenizer = load_template(file.base, base), load_tokenizer(file.base, base)
        stop = tokenizer.eos_token_id
        chat = Chat(template, stop_ids(template, tokenizer, base), "turn")
        environment = environment_of(SETTINGS.environment)
        self._right: dict[tuple[int, ...], list[int]] = {}
        for task in tasks:
            opening = environment.session(task).open()
            prompt = chat.open(opening.messages, opening.tools).prompt
            self._right[tuple(prompt)] = [*template.ids(task.payload["gold"]), stop]
        self._wrong = [*template.ids("SELECT 1"), stop]
        self._seed = threading.local()
        self.script = lambda prompt: self._right[tuple(prompt)] if self._seed.value % 2 else self._wrong

    def complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
        self._seed.value = body.get("seed", 0)
        return super().complete(body)


def trained(root: Path, tasks: Sequence[Task], processes: int) -> tuple[dict[str, bytes], str]:
    """Train two steps; return the adapter's files and the log."""
    file = online_file(SETTINGS, f"of-{processes}", steps=2, contextLength=512)
    with KnowingPeer(root, file, tasks) as peer:
        log = completed(
            file.model_copy(
                update={
                    "servers": (peer.address,),
                    "layout": file.layout.model_copy(update={"gpus_per_node": processes}),
                }
            ),
            root,
        )
    return adapter_bytes(root, f"of-{processes}"), log


@pytest.mark.slow
def test_two_processes_train_what_one_does(root: Path) -> None:
    tasks = list(generate(6, seed=1, difficulty="easy", style="compact", checked=False))
    (root / "data" / "tasks.jsonl").write_text("".join(json.dumps(task_to_json(task)) + "\n" for task in tasks))
    one, log = trained(root, tasks, 1)
    assert "1 servers agree with the trainer" in log
    told = [line for line in log.splitlines() if line.startswith("step 2/2")]
    assert " reward 0.0" not in told[0]
    two, _ = trained(root, tasks, 2)
    weights = [as_vector(safetensors.torch.load(files[WEIGHTS])) for files in (one, two)]
    assert difference(*weights) < 1e-5
    # The second saw the same episodes.
    lines = [(root / "artifacts" / f"of-{n}" / "episodes" / "step-2.jsonl").read_text().splitlines() for n in (1, 2)]
    assert [json.loads(line)["messages"] for line in lines[0]] == [json.loads(line)["messages"] for line in lines[1]]
