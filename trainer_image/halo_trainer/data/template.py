"""From a chat row to token ids and the mask of what trains, by the base's own tokenizer and chat template.

The mask is found by rendering, not by `{% generation %}` tags, which most templates lack: an answer's text is what
rendering up to its turn adds to rendering the prompt before it (with the generation prompt). Both must be prefixes of
the whole conversation's text, else the template rewrites its history and the answer would be trained behind a prompt that
no server ever sends: that is refused.

What trains is the answer and its end-of-turn token, so that the model learns to stop; whitespace that the template puts
after that token is never sampled, and so not trained.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Any

from halo_api.conditions import Reason
from halo_trainer.data.jsonl import bad_row
from halo_trainer.data.rows import ChatRow, arguments_of, calls_of, function_of
from halo_trainer.data.served import served
from halo_trainer.failures import RunFailure


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A row as the model sees it; `trained[i]` is 1 where token i is an answer's. Rows of one `run` are its steps."""

    ids: array[int]
    trained: bytearray
    run: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """All of its tokens."""
        return len(self.ids)

    @property
    def trained_tokens(self) -> int:
        """Those of the answers."""
        return sum(self.trained)

    @property
    def teaches(self) -> bool:
        """Whether something of an answer is in it."""
        return any(self.trained)

    def truncated(self, length: int) -> TokenRow:
        """Return the row cut at the end; a cut answer has no end-of-turn token, so it teaches no early stop."""
        return TokenRow(self.ids[:length], self.trained[:length], self.run)


class Template:
    """The tokenizer and chat template of one base."""

    def __init__(self, tokenizer: Any, base: str, vocabulary: int | None = None) -> None:
        """`vocabulary`: how many tokens the base has embeddings of, where that is known."""
        self._tokenizer = tokenizer
        self._base = base
        self._vocabulary = vocabulary
        self._special = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }

    def token_row(self, row: ChatRow) -> TokenRow:
        """Render and tokenise one row."""
        row = served(row)
        try:
            text, answers = self._answers(row)
            return self._known(row.line, self._tokens(row, text, answers))
        except UnicodeEncodeError as error:
            raise bad_row(row.line, "has half a surrogate pair", "write the character whole") from error

    def prompt_ids(
        self, messages: list[dict[str, Any]], tools: list[Any] | None = None, settings: dict[str, Any] | None = None
    ) -> list[int]:
        """Return the ids that a server would sample an answer after."""
        return self._encode(self.text(messages, tools, settings, prompt=True))

    def text(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        settings: dict[str, Any] | None = None,
        prompt: bool = False,
    ) -> str:
        """Return the text of a conversation as a server renders it; with `prompt`, as what an answer is sampled after."""
        return self._render(served(ChatRow(0, tuple(messages), (), tools, settings)), len(messages), prompt)

    @property
    def special(self) -> frozenset[int]:
        """The tokens that are no text."""
        return frozenset(self._special)

    def ids(self, text: str) -> list[int]:
        """Return rendered text as tokens."""
        return self._encode(text)

    def decode(self, ids: list[int]) -> str:
        """Return tokens as text, special ones too."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _answers(self, row: ChatRow) -> tuple[str, list[tuple[int, int, int]]]:
        """Return the conversation's text, and of each trained answer its place in the row and where in the text it is."""
        messages = row.messages
        whole = self._render(row, len(messages))
        # Tools and tool calls reach the text unchecked, and a tokenizer's own words for this name no line.
        whole.encode()
        answers = []
        for index, trains in enumerate(row.trains):
            if not trains:
                continue
            prompt = self._render(row, index, prompt=True)
            through = whole if index == len(messages) - 1 else self._render(row, index + 1)
            if not whole.startswith(through):
                raise self._mismatch(
                    row.line,
                    f"rewrites the turns before or at {row.place(index)} once more follow, so its tokens can't be told",
                    "make one row an answer, with weight 0 on the earlier assistant turns, or mend the template",
                )
            if not through.startswith(prompt):
                raise self._mismatch(
                    row.line,
                    f"writes before {row.place(index)} another text than its generation prompt, so its tokens can't be told",
                    "set chat_template_kwargs as the server had them (such as enable_thinking), or mend the template",
                )
            answer = through[len(prompt) :]
            if left_out := _left_out(messages[index], answer):
                cure = "mend the template, or choose the base that it belongs to"
                if left_out != "answer":
                    cure = "leave that out of the row, or choose a base whose template writes it"
                raise self._mismatch(row.line, f"leaves out the {left_out} of {row.place(index)}", cure)
            answers.append((index, len(prompt), len(through)))
        return whole, answers

    def _tokens(self, row: ChatRow, text: str, answers: list[tuple[int, int, int]]) -> TokenRow:
        cuts = sorted({0, len(text), *(cut for _, *answer in answers for cut in answer)})
        ids, position = self._encode_cut(text, cuts)
        trained = bytearray(len(ids))
        for index, start, end in answers:
            first, last = position[start], self._end_of_answer(ids, position[start], position[end])
            own = ids[first:last]
            trained[first:last] = b"\1" * (last - first)
            # A template that ends no turn would teach an answer without an end.
            if end == len(text) and ids[last - 1] not in self._special:
                eos = self._tokenizer.eos_token_id
                if eos is None:
                    found = "ends the last answer with no end-of-turn token, and the tokenizer has no EOS"
                    raise self._mismatch(row.line, found, "set eos_token in the base's tokenizer_config.json")
                del ids[last:], trained[last:]
                ids.append(eos)
                trained.append(1)
                own.append(eos)
            stops = {*own[-1:], self._tokenizer.eos_token_id} & self._special
            for stop in stops.intersection(own[:-1]):
                self._refuse_own_end(row, index, stop)
        return TokenRow(array("i", ids), trained, row.run)

    def _end_of_answer(self, ids: list[int], first: int, end: int) -> int:
        """Return the index after the end-of-turn token, where only whitespace follows it, else after the last token."""
        for last in range(end, first, -1):
            if ids[last - 1] in self._special:
                return last
            if self._tokenizer.decode([ids[last - 1]]).strip():
                break
        return end

    def _known(self, line: int, row: TokenRow) -> TokenRow:
        """Return the row, if some of it trains and the base has all of its tokens: those added to a tokenizer alone it has not."""
        if not row.teaches:
            found = "has an answer of which the base's tokenizer makes no token"
            raise bad_row(line, found, "write it in characters that the base knows, or remove the row")
        token = max(row.ids, default=0)
        if self._vocabulary is not None and token >= self._vocabulary:
            raise RunFailure(
                Reason.TEMPLATE_MISMATCH,
                f"line {line}: the tokenizer of base {self._base} writes the token {self.decode([token])} ({token}), and the "
                f"base has only {self._vocabulary}; put tokenizer and weights of one model into the base's folder",
            )
        return row

    def _refuse_own_end(self, row: ChatRow, index: int, token: int) -> None:
        """Refuse an answer whose own words have a token that ends it: a server samples nothing behind the first."""
        mark = self.decode([token])
        message = row.messages[index]
        words = [message["content"], message.get("reasoning_content") or "", str(message.get("tool_calls") or "")]
        if any(mark in part for part in words):
            found = f"has in {row.place(index)} the token {mark}, at which a server ends the answer"
            raise bad_row(row.line, found, "take it out, or write it in another way")

    def _encode_cut(self, text: str, cuts: list[int]) -> tuple[list[int], dict[int, int]]:
        """Tokenise so that every cut falls between two tokens; return the ids and each cut's index.

        A server tokenises the prompt alone and samples from there, so no token may straddle the start of an answer.
        Usually the parts' tokens are the whole text's. Where they are not (a newline that merges with the next, a
        tokenizer that starts each text with a space), each part gets what the text up to its end adds, and only where
        that changes earlier tokens it is tokenised alone.
        """
        parts = [self._encode(text[start:end]) for start, end in itertools.pairwise(cuts)]
        if [token for part in parts for token in part] != self._encode(text):
            so_far: list[int] = []
            for index, end in enumerate(cuts[1:]):
                through = self._encode(text[:end])
                if through[: len(so_far)] == so_far:
                    parts[index] = through[len(so_far) :]
                so_far += parts[index]
        position = dict(zip(cuts, itertools.accumulate(map(len, parts), initial=0), strict=True))
        return [token for part in parts for token in part], position

    def _encode(self, text: str) -> list[int]:
        # The template has written every special token itself.
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, row: ChatRow, end: int, prompt: bool = False) -> str:
        """Return the text of the row's messages before `end`; with `prompt`, as what an answer is sampled after."""
        render = self._tokenizer.apply_chat_template
        settings = row.settings or {}
        try:
            return str(
                render(
                    list(row.messages[:end]), tools=row.tools, add_generation_prompt=prompt, tokenize=False, **settings
                )
            )
        except UnicodeEncodeError:
            raise
        except Exception as error:
            # A template is a program of the base's author: it may raise anything.
            found = f"can't render it ({type(error).__name__}: {error})"
            raise self._mismatch(
                row.line, found, "change the row to what the template takes, or choose another base"
            ) from error

    def _mismatch(self, line: int, found: str, cure: str) -> RunFailure:
        where = f"line {line}: " if line else ""
        return RunFailure(Reason.TEMPLATE_MISMATCH, f"{where}the chat template of base {self._base} {found}; {cure}")


def _left_out(message: dict[str, Any], answer: str) -> str | None:
    """Return which part of an answer is not in its text."""
    if message["content"].strip() not in answer or not answer.strip():
        return "answer"
    functions = [function_of(call) for call in calls_of(message)]
    # As clients wrote a lone call before there were tool_calls.
    if message.get("function_call"):
        functions.append(function_of(message["function_call"]))
    names = Counter(str(function.get("name") or "") for function in functions)
    if any(answer.count(name) < count for name, count in names.items()):
        return "tool call"
    # However a template writes arguments, it writes the names of most as they are.
    named = (name for function in functions for name in arguments_of(function) or {} if re.fullmatch(r"[\w.-]+", name))
    if any(name not in answer for name in named):
        return "arguments of a tool call"
    if (message.get("reasoning_content") or "").strip() not in answer:
        return "thinking (reasoning_content)"
    return None
