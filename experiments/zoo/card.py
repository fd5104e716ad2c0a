"""The model card of the zoo, filled in from the numbers that a run recorded."""
# ruff: noqa: E501 (rows of tables stay on one line)

from __future__ import annotations

from typing import Any

from experiments.zoo.data import PROMPT_SHARES
from experiments.zoo.generated import CHAT_GROUP, JSON_GROUP
from experiments.zoo.settings import Settings
from experiments.zoo.tokenizer import END_OF_TEXT_ID

Numbers = dict[str, dict[str, Any]]

_HEAD_NAMES = {"eagle": "EAGLE", "eagle3": "EAGLE-3", "mtp": "MTP", "draft_model": "Draft model", "peagle": "P-EAGLE"}

# source, licence, what it is: from the corpus folder's SOURCES.md, which names repositories, paths and commits.
_SOURCES = (
    ("gsm8k_train", "openai/grade-school-math", "MIT", "training split only, calculator marks removed"),
    ("self_dialogue", "jfainberg/self_dialogue_corpus", "BSD-3-Clause", "rejected work and worker ids left out"),
    ("taskmaster4", "google-research-datasets/Taskmaster, TM-4-2024", "CC-BY-4.0", "Bill Byrne, Saravanan Ganesh, Google LLC; utterances only"),
    ("medquad", "abachaa/MedQuAD", "CC-BY-4.0", "Ben Abacha and Demner-Fushman 2019, NIH web sites; not medical advice"),
    ("squality_story", "nyu-mll/SQuALITY", "public domain in the US", "Project Gutenberg stories"),
    ("squality_qa", "nyu-mll/SQuALITY", "CC-BY-4.0", "human-written questions and answers"),
    ("exercism", "exercism/python, javascript, rust", "MIT", "instructions and example solutions"),
    ("thealgorithms_python", "TheAlgorithms/Python", "MIT", "without project_euler/"),
    ("python_stdlib", "RustPython/RustPython, Lib/", "PSF-2.0 and MIT", "a copy of the CPython standard library"),
    ("python_reference_topics", "RustPython/RustPython, topics.py", "PSF-2.0", "topic texts of the Python reference"),
    ("peps", "python/peps", "public domain or CC0-1.0", "those whose own copyright section says so"),
    ("tldr", "tldr-pages/tldr", "CC-BY-4.0", "tldr-pages team and contributors; placeholders rewritten"),
    ("30_seconds_of_code", "30-seconds/30-seconds-of-code", "CC0-1.0", "front matter removed"),
    ("rust_book", "rust-lang/book", "MIT or Apache-2.0", "include directives removed"),
    ("openstax", "openstax/osbooks-*, five textbooks", "CC-BY-4.0", "access for free at openstax.org; tables, figures, equations removed"),
    ("standardebooks", "standardebooks/*, 21 books", "US public domain and CC0-1.0", "front and back matter left out"),
)  # fmt: skip


def model_card(settings: Settings, numbers: Numbers) -> str:
    """The card as Markdown; parts whose stage has not run are left out."""
    parts = [_opening(settings, numbers), _acceptance(settings, numbers), _loss(numbers), _data(settings, numbers)]
    parts += [_recipe(settings, numbers), _limits()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _opening(settings: Settings, numbers: Numbers) -> str:
    sizes, parts = settings.sizes, numbers.get("sizes", {})
    counts, num_bytes = parts.get("num_parameters", {}), parts.get("num_bytes", {})
    rows = [
        ("target/", "target", f"Llama, {_shape(sizes.target)}, tied embeddings, {sizes.target_length} positions"),
        ("target/ (MTP)", "mtp", f"one layer, `model.layers.{sizes.target.num_layers}.*`, num_nextn_predict_layers 1"),
        ("eagle/", "eagle", "EAGLE layout, the target's embedding and output matrix"),
        ("eagle3/", "eagle3", f"speculators layout, aux layers {sizes.aux_layers}, draft vocabulary {sizes.draft_vocab_size}"),
        ("peagle/", "peagle", f"as eagle3/, smaller: intermediate {sizes.parallel_intermediate_size}, draft vocabulary {sizes.parallel_draft_vocab_size}; mask token {END_OF_TEXT_ID}"),
        ("draft_model/", "draft_model", f"Llama, {_shape(sizes.draft_model)}, tied embeddings"),
    ]  # fmt: skip
    table = "\n".join(
        f"| {folder} | {what} | {counts[kind]:,} | {num_bytes.get(folder.strip('/'), 0) / 1e6:.1f} |"
        if kind != "mtp"
        else f"| {folder} | {what} | {counts[kind]:,} | in target/ |"
        for folder, kind, what in rows
        if kind in counts
    )
    return f"""---
license: apache-2.0
language: en
---
# The zoo: small models for speculative decoding

Models of our own, trained by `experiments/train_zoo.py`, so that every experiment runs with real acceptance on a
fresh machine without a download. They are test subjects for decoding methods, not assistants. All weights are
bfloat16 safetensors in the layouts of public checkpoints; one byte-level BPE tokenizer of {sizes.vocab_size} entries
with a chat template serves all.

The weights are stored packed, without loss, in two thirds of these bytes. They are unpacked into a folder of the user's
cache when they are first read, in a quarter of a second. The folder for programs that know nothing of it:
`python -c "from harness.models.zoo import zoo_path; print(zoo_path('target'))"`.

| folder | model | parameters | MB |
|---|---|---:|---:|
{table}

In all {parts.get("num_bytes_total", 0) / 1e6:.1f} MB."""


def _shape(size: Any) -> str:
    heads = f"{size.num_heads} heads x {size.head_dim}, {size.num_key_value_heads} key-value"
    return f"{size.num_layers} layers, hidden {size.hidden_size}, intermediate {size.intermediate_size}, {heads}"


def _acceptance(settings: Settings, numbers: Numbers) -> str:
    kinds = [kind for kind in _HEAD_NAMES if kind in numbers]
    if not kinds:
        return ""
    num_steps = settings.sizes.num_unrolled
    overlaps = " | ".join(f"step {index}" for index in range(1, num_steps + 1))
    rows = "\n".join(
        f"| {_HEAD_NAMES[kind]} | {' | '.join(f'{value:.3f}' for value in numbers[kind]['overlap'])} "
        f"| {numbers[kind]['expected_length']:.2f} |"
        for kind in kinds
    )
    return f"""## Acceptance

Measured in training's last step on held-out text sampled from the target (chat, JSON tasks, plain documents), at
T = 1 with sampled drafts and token-by-token probabilistic verification, K = {num_steps}. Overlap is the chance that
the draft token of a step is accepted on text drawn from the target; the expected length is 1 plus the expected
number of accepted drafts. Figures of whole runs on the built-in prompts are in results/.

| drafter | {overlaps} | expected length |
|---|{"---:|" * (num_steps + 1)}
{rows}"""


def _loss(numbers: Numbers) -> str:
    target = numbers.get("target")
    if target is None:
        return ""
    losses = target["heldout_loss"]
    rows = "\n".join(f"| {group} | {loss:.3f} |" for group, loss in losses.items())
    return f"""## Held-out loss of the target

Nats per token in bfloat16 arithmetic, rows of whole groups; `corpus` is all held-out documents of the corpus
({target["bits_per_byte"]:.3f} bits per byte). The two generated groups come from the templates that training text came
from, with another seed: they show fit, not generalization.

| group | nats per token |
|---|---:|
{rows}"""


def _data(settings: Settings, numbers: Numbers) -> str:
    num_unique = numbers.get("target", {}).get("num_unique_tokens", 0)
    rows = "\n".join(f"| {name} | {where} | {licence} | {note} |" for name, where, licence, note in _SOURCES)
    return f"""## Data

{num_unique:,} unique training tokens: a corpus of permissively licensed and public-domain text, and text generated by
the training script ({CHAT_GROUP}: chat turns in eight categories; {JSON_GROUP}: tasks answered as
`<think>..</think>` and one JSON object). No share-alike source is in the corpus, and no text of a language model.
Dialogues were put into the chat template; some code, command pages, textbook sections and stories were turned into
an instruction and its answer. Documents that share a 13-gram with MT-Bench, Spec-Bench, Vicuna-Bench, HumanEval, or
the GSM8K test split were dropped from the corpus. Exact commits are recorded with the corpus (SOURCES.md).

| source | repository | licence | note |
|---|---|---|---|
{rows}"""


def _recipe(settings: Settings, numbers: Numbers) -> str:
    sizes, target, sample = settings.sizes, numbers.get("target", {}), numbers.get("sample", {})
    shares = ", ".join(f"{kind.replace('_', ' ')} {share:.0%}" for kind, share in PROMPT_SHARES.items())
    steps = ", ".join(f"{_HEAD_NAMES[kind]} {numbers[kind]['num_steps']:,}" for kind in _HEAD_NAMES if kind in numbers)
    return f"""## Recipe

- Target: next-token cross-entropy, AdamW (peak {settings.learning_rate_target}, betas 0.9 and 0.95, decay
  {settings.weight_decay} on matrices), dropout {settings.dropout} on the residual branches, rows of
  {sizes.target_length} tokens, {sizes.target_rows} a step, half of them at document starts; 200 steps of warm-up, then
  constant, then linear to zero over the last 60 % of the budget. {target.get("num_steps", 0):,} steps,
  {target.get("num_training_tokens", 0):,} tokens ({target.get("num_passes", 0)} passes).
- Sampled text: {sample.get("num_tokens", 0):,} tokens at T = 1, of which {sample.get("given_share", 0):.1%} are prompts
  ({shares}).
- Heads and draft model: {sizes.num_unrolled} unrolled steps on {sizes.sampled_share:.0%} sampled text and the rest
  corpus, rows of {sizes.sample_length} tokens, {sizes.head_rows} a step, AdamW (peak {settings.learning_rate_head}).
  First soft cross-entropy with the target's distribution at every step (EAGLE also regresses the target's features),
  from 55 % of the budget on the expected number of accepted draft tokens itself. P-EAGLE starts from the weights of
  EAGLE-3. Steps: {steps or "none yet"}.
- The budgets are in seconds, so the number of steps depends on the machine; `--steps` fixes it instead. Seeds are
  fixed ({settings.seed}); sums on a GPU are not bit for bit reproducible."""


def _limits() -> str:
    return """## Limits

The target writes plausible English and code, but it knows little and reasons badly; its answers are often wrong, and
medical or other advice from it is worthless. It was trained on English only. Its text may repeat errors and prejudice
of its sources, some of which are more than a century old. Acceptance lengths of so small a pair do not carry over to
large models; differences between verification methods on the same pair are what it is for."""
