"""The chat template, several turns, and the visible fallback."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from harness.workload.chat import (
    PLAIN_TEXT_NOTE,
    SYSTEM_JOINED_NOTE,
    chat_messages,
    decode_answer,
    encode_chat,
    encode_prompt,
)
from harness.workload.prompt import Prompt

TEMPLATE = (
    "<s>{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('no system message, please') }}{% endif %}"
    "[{{ message.role }}] {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
WORDS = ["<s>", "[user]", "[assistant]", "one", "two", "three", "[unk]"]


@pytest.fixture
def tokenizer():
    """Words between blanks; <s> is put before any text that is encoded with special tokens."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[unk]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", unk_token="[unk]", additional_special_tokens=["[user]", "[assistant]"]
    )


def asked(*turns, **others):
    return Prompt("1", "test", turns, **others)


def words(token_ids: list[int]) -> list[str]:
    return [WORDS[token_id] for token_id in token_ids]


def test_template_opens_the_answer_and_adds_no_second_special_token(tokenizer):
    tokenizer.chat_template = TEMPLATE
    encoded = encode_chat(tokenizer, chat_messages(asked("one"), ()))
    assert words(encoded.token_ids) == ["<s>", "[user]", "one", "[assistant]"]
    assert encoded.note is None


def test_token_ids_are_a_plain_list_of_integers(tokenizer):
    tokenizer.chat_template = TEMPLATE
    token_ids = encode_chat(
        tokenizer,
        chat_messages(
            asked(
                "one two",
            ),
            (),
        ),
    ).token_ids
    assert type(token_ids) is list
    assert {type(token_id) for token_id in token_ids} == {int}


def test_later_turns_carry_the_models_own_answers(tokenizer):
    tokenizer.chat_template = TEMPLATE
    encoded = encode_chat(tokenizer, chat_messages(asked("one", "three"), ("two",)))
    assert words(encoded.token_ids) == ["<s>", "[user]", "one", "[assistant]", "two", "[user]", "three", "[assistant]"]


SWITCH = "{%% if add_generation_prompt and %s %%}three{%% endif %%}"


@pytest.mark.parametrize(
    ("switch", "by_itself"), [("enable_thinking | default(true)", ["three"]), ("thinking is defined and thinking", [])]
)
def test_the_switch_for_reasoning_is_set(tokenizer, switch, by_itself):
    """Would catch a switch that only one family of templates gets, and a default that changes."""
    tokenizer.chat_template = TEMPLATE + SWITCH % switch
    expected = {None: by_itself, True: ["three"], False: []}
    messages = chat_messages(asked("one"), ())
    assert {key: words(encode_chat(tokenizer, messages, key).token_ids)[4:] for key in expected} == expected


@pytest.mark.parametrize("template", [TEMPLATE, None])
def test_a_switch_that_nothing_heeds_is_refused(tokenizer, template):
    """Would catch a run under the name of thinking=false whose model reasons."""
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=r"workload\.thinking: expected a chat template that heeds enable_thinking or"):
        encode_chat(tokenizer, chat_messages(asked("one"), ()), thinking=False)


def test_messages_end_with_the_turn_to_answer():
    messages = chat_messages(asked("one", "two", "three"), ("yes",))
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", "one"),
        ("assistant", "yes"),
        ("user", "two"),
    ]


def test_a_conversation_that_is_over_is_refused():
    with pytest.raises(ValueError, match="expected fewer answers than turns, found 1 answers to 1 turns"):
        chat_messages(asked("one"), ("yes",))


def test_without_a_template_the_text_is_plain_and_the_note_says_so(tokenizer):
    encoded = encode_chat(tokenizer, chat_messages(asked("one", "three"), ("two",)))
    assert words(encoded.token_ids) == ["<s>", "one", "two", "three"]
    assert encoded.note == PLAIN_TEXT_NOTE


def test_a_template_that_refuses_the_roles_is_reported_with_its_reason(tokenizer):
    tokenizer.chat_template = TEMPLATE
    messages = [{"role": "system", "content": "one"}, {"role": "assistant", "content": "two"}]
    with pytest.raises(ValueError, match=r"messages of system, assistant, found one that says: no system message"):
        encode_chat(tokenizer, messages)


DROPS_SYSTEM = TEMPLATE.replace("{{ raise_exception('no system message, please') }}", "").replace(
    "[{{ message.role }}] {{ message.content }} ",
    "{% if message.role != 'system' %}[{{ message.role }}] {{ message.content }} {% endif %}",
)


@pytest.mark.parametrize("template", [TEMPLATE, DROPS_SYSTEM], ids=["refuses it", "drops it"])
def test_a_system_message_without_a_role_goes_in_front_of_the_first_turn(tokenizer, template):
    """Would catch a system message that a template leaves out in silence."""
    tokenizer.chat_template = template
    prompt = asked("two", opening=json.dumps([{"role": "system", "content": "one"}]))
    encoded = encode_prompt(tokenizer, prompt, ())
    assert words(encoded.token_ids) == ["<s>", "[user]", "one", "two", "[assistant]"]
    assert encoded.note == SYSTEM_JOINED_NOTE


TOOLS = json.dumps([{"type": "function", "function": {"name": "three"}}])


def test_tools_reach_the_template_and_one_that_heeds_none_is_refused(tokenizer):
    tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}" + TEMPLATE
    prompt = asked("one", tools=TOOLS)
    assert words(encode_prompt(tokenizer, prompt, ()).token_ids)[:2] == ["three", "<s>"]
    for template in (TEMPLATE, None):
        tokenizer.chat_template = template
        with pytest.raises(ValueError, match="expected a chat template that takes tools, found"):
            encode_prompt(tokenizer, prompt, ())


def test_an_answer_keeps_its_blanks_and_loses_its_special_tokens():
    """Tokenizers that tidy up by themselves would join the two words: a prefix would not begin the whole any more."""
    core = Tokenizer(models.WordLevel({"<s>": 0, "yes": 1, ".": 2}, unk_token="<s>"))
    tidying = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", clean_up_tokenization_spaces=True)
    assert tidying.decode([1, 2]) == "yes."
    assert decode_answer(tidying, (1, 2, 0)) == "yes ."
    assert decode_answer(tidying, ()) == ""
