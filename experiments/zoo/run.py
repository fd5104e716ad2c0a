"""Runs the stages of a training run, one after the other or the drafters as parallel processes."""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from experiments.zoo.assemble import assemble
from experiments.zoo.data import TrainingData, build_data, load_data, training_documents
from experiments.zoo.drafters import KINDS
from experiments.zoo.head_training import train_drafter
from experiments.zoo.sampling import decode_rows, load_trained, make_sampler, sample_text
from experiments.zoo.settings import SMOKE_SIZES, Settings, Sizes
from experiments.zoo.target_training import train_target
from experiments.zoo.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

SMOKE_STEPS = 20
_RELAY_SECONDS = 20.0
_LOG_TAIL = 2000
_GRACE_SECONDS = 150.0
"""For starting, compiling, measuring and saving, beyond the budget of a drafter's training."""


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings that the command line asks for."""
    sizes = SMOKE_SIZES if options.smoke else Sizes()
    if options.sample_batches is not None:
        sizes = replace(sizes, num_sample_batches=options.sample_batches)
    device = options.device or ("cuda:0" if torch.cuda.is_available() and not options.smoke else "cpu")
    return Settings(
        corpus=options.corpus,
        out=options.out,
        seed=options.seed,
        device=device,
        compile=device.startswith("cuda") and not options.no_compile,
        seconds_target=options.seconds_target,
        seconds_head=options.seconds_head,
        steps=SMOKE_STEPS if options.smoke and options.steps is None else options.steps,
        learning_rate_target=options.learning_rate_target,
        learning_rate_head=options.learning_rate_head,
        weight_decay=options.weight_decay,
        dropout=options.dropout,
        sizes=sizes,
    )


def run_stage(stage: str, settings: Settings) -> None:
    """One stage, from what earlier ones left in the folder."""
    if settings.device.startswith("cuda"):
        torch.cuda.set_device(torch.device(settings.device).index or 0)
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.enable_cudnn_sdp(False)  # its plans for many mask shapes are built at run time
    if stage == "tokenizer":
        make_tokenizer(settings)
    elif stage == "data":
        build_data(settings, load_tokenizer(settings.tokenizer_folder))
    elif stage == "card":
        assemble(settings)
    else:
        data = load_data(settings.data_path)
        if stage == "target":
            train_target(settings, data)
            show_text(settings, data)
        elif stage == "sample":
            sample_text(settings, data)
        else:
            train_drafter(stage, settings, data)


def make_tokenizer(settings: Settings) -> None:
    """Train the tokenizer on the training documents and save it."""
    began = time.perf_counter()
    texts = (document.text for document in training_documents(settings))
    tokenizer = train_tokenizer(texts, settings.sizes.vocab_size)
    save_tokenizer(tokenizer, settings.tokenizer_folder, settings.sizes.target_length)
    print(f"tokenizer: {tokenizer.get_vocab_size()} entries, {time.perf_counter() - began:.0f} s", flush=True)


def show_text(settings: Settings, data: TrainingData) -> None:
    """Print and keep a few texts that the target goes on with."""
    target = load_trained(settings)
    torch.manual_seed(settings.seed)
    num_rows, length = 8, min(192, settings.sizes.sample_length)
    tokens = make_sampler(target, data, num_rows, length, stride=num_rows).sample(torch.arange(num_rows)).tokens
    texts = decode_rows(target, tokens.cpu().numpy())
    (settings.out / "target_samples.txt").write_text("\n\n========\n\n".join(texts), encoding="utf-8")
    for text in texts:
        print(f"-------- target\n{text}", flush=True)


def run_together(kinds: list[str], options: argparse.Namespace) -> None:
    """Train drafters as parallel processes, on the GPUs there are in turn; their output goes to <out>/logs.

    Raises ValueError with the end of its log when one of them fails; the others are let finish first.
    """
    gc.collect()
    torch.cuda.empty_cache()  # what the stages before left cached is memory the processes may need
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
    running = {}
    for index, kind in enumerate(kinds):
        with (logs / f"{kind}.log").open("w") as log:
            running[kind] = subprocess.Popen(
                _command(kind, index, options), stdout=log, stderr=subprocess.STDOUT, env=environment
            )
    _wait(running, logs, None if options.steps or options.smoke else options.seconds_head + _GRACE_SECONDS)
    failed = [kind for kind, process in running.items() if process.returncode != 0]
    if failed:
        tails = "\n".join(f"== {kind}\n{(logs / f'{kind}.log').read_text()[-_LOG_TAIL:]}" for kind in failed)
        raise ValueError(f"training of {', '.join(failed)} failed; the logs end with:\n{tails}")


def _wait(running: dict[str, subprocess.Popen[bytes]], logs: Path, limit_seconds: float | None) -> None:
    """Wait for all, relaying the last line of each log; what runs beyond the limit is ended."""
    began, next_relay = time.perf_counter(), _RELAY_SECONDS
    while any(process.poll() is None for process in running.values()):
        time.sleep(0.2)
        elapsed = time.perf_counter() - began
        if elapsed >= next_relay:
            next_relay += _RELAY_SECONDS
            _relay(logs, list(running))
        if limit_seconds is not None and elapsed >= limit_seconds:
            for process in running.values():
                process.terminate()
            limit_seconds = None
    _relay(logs, list(running))


def _relay(logs: Path, kinds: list[str]) -> None:
    for kind in kinds:
        lines = (logs / f"{kind}.log").read_text().splitlines()
        print(lines[-1][:240] if lines else f"{kind}: nothing yet", flush=True)


def _command(kind: str, index: int, options: argparse.Namespace) -> list[str]:
    assert kind in KINDS
    num_devices = torch.cuda.device_count()
    device = options.device or (f"cuda:{index % num_devices}" if num_devices and not options.smoke else "cpu")
    command = [sys.executable, "-m", "experiments.train_zoo", "--stages", kind, "--device", device]
    for name in ("corpus", "out", "seed", "seconds_head", "learning_rate_head", "sample_batches", "steps"):
        value = getattr(options, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    return command + [flag for flag in ("--no-compile", "--smoke") if getattr(options, flag[2:].replace("-", "_"))]
