"""The small base's own tokenizer: byte-level BPE learnt from the tasks' language, with ChatML as its chat template."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The template takes no tools: an environment opens without any, for one turn.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer_of(texts: Iterable[str], size: int) -> Any:
    """Learn a tokenizer of at most `size` tokens; every byte is one, so that any text can be written. A digit is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, START, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    made.chat_template = TEMPLATE
    return made
