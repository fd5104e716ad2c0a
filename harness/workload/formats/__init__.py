"""Layouts of prompt files: one module each, named in `harness.config.workload.Layout`.

| layout       | fields read                                               | category                                 |
|--------------|-----------------------------------------------------------|------------------------------------------|
| mt_bench     | question_id, category, turns                              | the file's                               |
| spec_bench   | the same                                                  | the file's; MT-Bench's are `mt_bench`    |
| gsm8k        | question; answer, where given, as the known one           | `gsm8k`                                  |
| humaneval    | task_id, prompt; test and entry_point, to judge answers   | `humaneval`                              |
| json_schemas | id, split, schema; the prompt asks for such an object     | the file's split                         |
| messages     | messages (harness.workload.messages); tools where given   | the file's, else `messages`              |
| share_gpt    | conversations, or conversation; the same                  | the file's, else `share_gpt`             |
| alpaca       | instruction, and below it input where given               | the file's, else `alpaca`                |
| plain        | one of prompt, text, turns; or the line is a bare string; | the file's, else `plain`                 |
|              | json_schema where given                                   |                                          |

The last four read prompt_id, category and `system`, the system message, where given. Of several files the name of the
file takes the place of the layout's, as the category of records without one.

A record of any layout may have `sampling`: an object of temperature, top_k, top_p, min_p, repetition_penalty,
presence_penalty, frequency_penalty, min_tokens, logit_bias and seed; and `stop`: a text or a list of texts that end its
answers, in the place of decoding.stop.
Of other fields those known to be without effect (reference answers, tests, sources) are left alone, all others are
refused: harness.workload.line_keys has both lists. null is absence. A record without an id is named after its line.
A layout knows neither files nor tokenizers.
"""
