"""What may stand beside a prompt in its line or row: what is left alone, and what is refused since it changes requests.

A key whose value is null, an empty text, list or object is absent. This module knows no layout and no file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

_ANSWER = "an answer, or a test of one: the model never sees it"
_ORIGIN = "where the prompt comes from, what it is about, or its size: nothing follows from it"

LEFT_ALONE = {
    **dict.fromkeys(
        (
            # of MT-Bench and Spec-Bench, GSM8K, HumanEval, HumanEval+ and JSONSchemaBench
            *("reference", "answer", "entry_point", "canonical_solution", "test"),
            *("contract", "base_input", "plus_input", "atol", "assertion", "valid", "invalid"),
            # of Alpaca and others
            *("output", "answers", "reference_answer", "response", "solution"),
        ),
        _ANSWER,
    ),
    **dict.fromkeys(
        (
            *("id", "unique_id", "question_id", "task_id", "index", "source", "dataset", "subset", "split"),
            *("license", "url", "title", "subject", "topic", "task", "type", "level", "difficulty", "language", "tags"),
            # of SPEED-Bench and JSONSchemaBench
            *("sub_category", "src_id", "multiturn", "features", "schema_bytes"),
            *("num_tokens", "meta", "metadata"),
        ),
        _ORIGIN,
    ),
}
"""Keys without effect on a request, each with the reason."""

_UNTIL_THEN = "is not read yet; until then"
_TOOLS = "tools are read of lines with messages and tools (workload.path=FILE)"
_MEDIA = f"a prompt with images, sound or video {_UNTIL_THEN} leave such prompts out"
_SYSTEM = 'a system message is the text "system" of a line (workload.path=FILE), or the first of its messages'
_ALPACA = "instruction and input are read together of lines (workload.path=FILE workload.layout=alpaca)"
_MESSAGES = "a line has its prompt in one place"
_DOCUMENTS = f"a prompt in parts {_UNTIL_THEN} join them into one text"
_IN_SAMPLING = 'a line gives its sampling in one object, "sampling": {"temperature": 0.7}'
_LENGTH = "the limit is the same for all prompts: decoding.max_new_tokens"
_STOP = 'a line of a file, or a row that workload.layout reads, has its own in "stop"; decoding.stop is for all'
_ANSWERS = "a prompt has one answer a play; workload.num_requests plays prompts again"
_THINKING = "the switch is the same for all prompts: workload.thinking"

REFUSED = {
    **dict.fromkeys(("messages", "conversations", "conversation"), _MESSAGES),
    **dict.fromkeys(("instruction", "input"), _ALPACA),
    **dict.fromkeys(("system", "system_prompt", "system_message"), _SYSTEM),
    **dict.fromkeys(("context", "contexts", "documents", "passages", "history"), _DOCUMENTS),
    **dict.fromkeys(("tools", "tool_choice", "tool_calls", "functions", "function_call"), _TOOLS),
    **dict.fromkeys(("image", "images", "image_url", "audio", "audios", "video", "videos", "multi_modal_data"), _MEDIA),
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "seed"), _IN_SAMPLING),
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_completion_tokens", "output_len", "ignore_eos"), _LENGTH),
    **dict.fromkeys(("stop", "stop_sequences", "stop_words"), _STOP),
    "stop_token_ids": "an answer ends at the target's own end of sequence, or by its text (stop); take it out",
    **dict.fromkeys(("n", "best_of", "num_return_sequences"), _ANSWERS),
    **dict.fromkeys(
        ("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens"), _IN_SAMPLING
    ),
    **dict.fromkeys(("chat_template_kwargs", "enable_thinking", "thinking"), _THINKING),
    **dict.fromkeys(
        ("response_format", "guided_json", "schema"), 'a prompt\'s schema is the object "json_schema" of its line'
    ),
}
"""Keys that would change a request, each with what to do instead."""

OTHER_LAYOUTS = ("messages", "conversations", "conversation", "instruction")
"""Those that hold the prompt itself."""
OTHER_COLUMNS = (*OTHER_LAYOUTS, "thinking")
"""Keys of REFUSED that columns beside the chosen one may have: the prompt in another form, or part of an answer."""
OF_AN_INSTRUCTION = "input"
"""The same, but beside a column `instruction`."""


def is_given(value: Any) -> bool:
    """Whether a value is there: neither null nor empty."""
    return value is not None and value not in ("", [], {})


def refused_beside(column: str, others: Iterable[str]) -> list[str]:
    """The columns beside the one that holds the prompts which would change their requests; what they say is REFUSED."""
    left = OTHER_COLUMNS if column == "instruction" else (*OTHER_COLUMNS, OF_AN_INSTRUCTION)
    return [name for name in others if name in REFUSED and name not in left and name != column]


def without_nulls(row: Any) -> Any:
    """A record without the keys whose value is null; what is no object as it is."""
    return {name: value for name, value in row.items() if value is not None} if isinstance(row, Mapping) else row


def check_not_refused(row: Any, read: Collection[str] = ()) -> None:
    """Raises ValueError where a record has a key that would change its request.

    Args:
        row: the record; what is no object passes.
        read: keys that its layout reads.
    """
    for name, value in row.items() if isinstance(row, Mapping) else ():
        if name in REFUSED and name not in read and is_given(value):
            raise ValueError(f"expected no {name} in a record: {REFUSED[name]}")


def check_known(row: Any, read: Collection[str]) -> None:
    """Raises ValueError where a record has a key that is neither read nor LEFT_ALONE; arguments as above."""
    for name, value in row.items() if isinstance(row, Mapping) else ():
        if name not in read and name not in LEFT_ALONE and is_given(value):
            raise ValueError(
                f"expected the keys {', '.join(sorted(read))} and those that are left alone (answers, ids, sources), "
                f'found {name}; take it out of the lines, or put what is not for the model under "metadata"'
            )
