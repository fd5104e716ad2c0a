"""vLLM 0.25.1 with its own verification and with ours in turns, in one engine: the tables of results/plugin_vllm_h200.

    python -m experiments.plugin_vllm measured.jsonl 250
    python -m experiments.plugin_vllm --table results/plugin_vllm_h200/measured.jsonl

The first measures for 250 seconds and needs a Python with vLLM 0.25.1, and a GPU; the second needs neither.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from harness.report.number_format import Number
from harness.report.table import NONE, Entry, Table

PAIRS = (("vllm:standard", "probabilistic"), ("vllm:block", "block"), ("vllm", "synthetic"))
ARMS = ["vllm:standard", "probabilistic", "vllm:block", "block", "strict", "vllm", "synthetic"]
CALLED = {"vllm": "vllm:synthetic"}
LAW_HEADER = ("verification", "target rows", "chi-square (255)", "p", "accepted a round", "verdict")
OF_ARM = ("tok/s", "length", "step (ms)")
HEADER = ("in flight", "vLLM's own", *OF_ARM, "ours", *OF_ARM, "ours / own, tok/s", "ours / own, step")
RATES = (0.6, 0.37, 0.23)
VOCAB_SIZE = 128256


def load_engine():
    """Llama-3-8B's shape with an EAGLE head of one layer, random weights, K = 3, sampled drafts."""
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from transformers import LlamaConfig
    from vllm import LLM

    shape: dict[str, Any] = dict(
        vocab_size=VOCAB_SIZE, max_position_embeddings=8192, rms_norm_eps=1e-10, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2, dtype="bfloat16", hidden_size=4096, intermediate_size=14336,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, rope_theta=5e5,
    )  # fmt: skip
    folders = []
    for layers in (32, 1):
        folders.append(tempfile.mkdtemp())
        config = LlamaConfig(architectures=["LlamaForCausalLM"], num_hidden_layers=layers, **shape)
        config.save_pretrained(folders[-1])
    target, draft = folders
    sizes = [1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128, 160, 192, 224, 256]
    return LLM(
        model=target,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        seed=0,
        max_model_len=1024,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.3,
        kv_cache_memory_bytes=64 * 80 << 20,
        enable_prefix_caching=False,
        disable_log_stats=False,
        attention_backend="FLASH_ATTN",
        enable_flashinfer_autotune=False,
        worker_extension_cls="harness.plugins.vllm.WorkerExtension",
        compilation_config={"cudagraph_capture_sizes": sizes},
        speculative_config=dict(
            method="eagle",
            model=draft,
            num_speculative_tokens=3,
            draft_sample_method="probabilistic",
            rejection_sample_method="synthetic",
            synthetic_acceptance_rates=list(RATES),
        ),
    )


def spread_logits(worker):
    """Target logits of standard deviation 1 beside a nearly uniform draft: about .62 is accepted at a position."""
    import torch

    model = worker.model_runner.model
    model.model.norm.weight.data.fill_(1.0)
    weight = model.lm_head.weight.data
    weight.normal_(0, weight.shape[1] ** -0.5, generator=torch.Generator(device="cuda").manual_seed(7))


def counters(engine):
    found = engine.get_metrics()
    return {each.name.split("spec_decode_")[1]: each.value for each in found if each.name.endswith("s") and
            "spec_decode_num_" in each.name and hasattr(each, "value")}  # fmt: skip


def generate(engine, concurrency, num_tokens, seed):
    """One block: `concurrency` requests of 32 prompt tokens, all at once."""
    from vllm import SamplingParams

    rng = random.Random(seed)
    prompts = [{"prompt_token_ids": [rng.randrange(10, VOCAB_SIZE) for _ in range(32)]} for _ in range(concurrency)]
    sampling = [
        SamplingParams(temperature=1.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False, seed=seed * 1000 + i)
        for i in range(concurrency)
    ]
    before, start = counters(engine), time.perf_counter()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    seconds, after = time.perf_counter() - start, counters(engine)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    drafts, accepted = (after[name] - before.get(name, 0) for name in ("num_drafts", "num_accepted_tokens"))
    return dict(concurrency=concurrency, tokens=tokens, seconds=seconds, tok_s=tokens / seconds, drafts=drafts,
                accepted=accepted, length=1 + accepted / drafts)  # fmt: skip


def measure(output, seconds, arms):
    """Attest all laws if all arms run, warm up, then repeat every arm at 16 and 64 requests until the time is over.

    The order of the arms changes.
    """
    end = time.monotonic() + seconds
    engine = load_engine()

    def tell(**row):
        with Path(output).open("a") as file:
            file.write(json.dumps(row) + "\n")

    def switch(arm):
        engine.collective_rpc("set_verification", args=(arm, RATES if arm == "synthetic" else (), False))

    engine.collective_rpc(spread_logits)
    for name in ("block", "probabilistic", "strict", "vllm:standard", "vllm:block") if arms == ARMS else ():
        tell(event="attest", name=name, found=engine.collective_rpc("attest_verification", args=(name,))[0])
    for arm in arms:
        switch(arm)
        for concurrency in (64, 16):
            generate(engine, concurrency, 160, 5)
    repeat, longest = 0, 0.0
    while end - time.monotonic() > 1.1 * longest:
        start, turn = time.monotonic(), repeat // 2 % len(arms)
        order = arms[:: -1 if repeat % 2 else 1]
        for concurrency in (16, 64):
            for arm in order[turn:] + order[:turn]:
                switch(arm)
                tell(event="run", repeat=repeat, arm=arm, **generate(engine, concurrency, 160, 100 + repeat))
        repeat, longest = repeat + 1, max(longest, time.monotonic() - start)


def step_ms(row):
    """Milliseconds for each draft of a request, as if the batch were full to the end of the block."""
    return 1e3 * row["seconds"] * row["concurrency"] / row["drafts"]


def tables(path, first_repeat=0):
    """Tables of README.md: the laws, if they were tested, and the blocks of the repeats from one on."""
    import numpy as np
    from scipy.stats import t

    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    laws = list[tuple[str, ...]]()
    for row in rows:
        for kind, found in zip(("processed", "raw"), row["found"] if row["event"] == "attest" else (), strict=False):
            p = "< 1e-300" if found["p_value"] == 0 else f"{found['p_value']:.2g}"
            verdict = "passes" if found["passes"] else "rejected"
            numbers = f"{found['chi_square']:,.0f}", p, f"{found['mean_accepted']:.3f}"
            laws.append((row["name"], kind, *numbers, verdict))
    blocks = defaultdict(list)
    for row in rows:
        if row["event"] == "run" and row["repeat"] >= first_repeat:
            blocks[row["concurrency"], row["arm"]].append(row)
    lines = list[tuple[Entry, ...]]()

    def interval(ratios):
        half = t.ppf(0.975, len(ratios) - 1) * ratios.std(ddof=1) / len(ratios) ** 0.5
        middle, low, high = np.exp(ratios.mean() + half * np.array([0, -1, 1]))
        return Number(middle, low, high, decimals=3)

    for concurrency in (16, 64):
        of_pairs = []
        for pair in PAIRS:
            if not blocks[concurrency, pair[0]]:
                continue
            cells = [blocks[concurrency, arm] for arm in pair]
            of_pairs.append(np.log([ours["tok_s"] / own["tok_s"] for own, ours in zip(*cells, strict=True)]))
            steps = np.log([step_ms(ours) / step_ms(own) for own, ours in zip(*cells, strict=True)])
            shown = [
                (
                    CALLED.get(arm, arm),
                    f"{np.mean([row['tok_s'] for row in cell]):,.0f}",
                    f"{1 + sum(row['accepted'] for row in cell) / sum(row['drafts'] for row in cell):.2f}",
                    f"{np.mean([step_ms(row) for row in cell]):.2f}",
                )
                for arm, cell in zip(pair, cells, strict=True)
            ]
            lines.append((str(concurrency), *shown[0], *shown[1], interval(of_pairs[-1]), interval(steps)))
        if len(of_pairs) < len(PAIRS):
            continue
        # the pairs of a repeat share its drift
        together = interval(np.mean(of_pairs, axis=0))
        lines.append((str(concurrency), "the three together", *[NONE] * 7, together, NONE))
    found = [Table("", LAW_HEADER, tuple(laws))] * bool(laws) + [Table("", HEADER, tuple(lines))]
    return [table.to_markdown(title=False, compact=False).rstrip() for table in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", help="lines of JSON: appended to, read with --table")
    parser.add_argument("seconds", nargs="?", help="how long to measure; with --table the first repeat shown", type=int)
    parser.add_argument(
        "arms", nargs="?", help="only these, such as vllm:standard,probabilistic; no law is tested then"
    )
    parser.add_argument("--table", action="store_true", help="print the tables of FILE, and measure nothing")
    given = parser.parse_args()
    if given.table:
        print("\n\n".join(tables(given.file, given.seconds or 0)))
    elif given.seconds is None:
        parser.error("expected SECONDS, found none: say how long to measure")
    else:
        measure(given.file, given.seconds, given.arms.split(",") if given.arms else ARMS)


if __name__ == "__main__":
    main()
