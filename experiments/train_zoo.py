"""Train the built-in models from a text corpus: tokenizer, target, heads, draft model, model card.

    python -m experiments.train_zoo --corpus ../shared/data/corpus --out build/zoo --install

Stages run in their order and read what earlier ones left in --out, so a run can be stopped and taken up again.
Budgets are in seconds; --steps fixes the number of optimizer steps instead. One GPU is meant; --smoke runs tiny
sizes on a CPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

STAGES = ("tokenizer", "data", "target", "sample", "eagle", "eagle3", "mtp", "draft_model", "peagle", "card")
INDEPENDENT = ("eagle", "eagle3", "mtp", "draft_model")
"""Drafters that need no other one; P-EAGLE starts from the weights of EAGLE-3."""


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus = Path(__file__).parents[2] / "shared" / "data" / "corpus"
    parser.add_argument("--corpus", type=Path, default=corpus, help="folder of corpus_{train,heldout}.jsonl.gz")
    parser.add_argument(
        "--out", type=Path, default=Path("build/zoo"), help="folder of the run; its layout is the zoo's"
    )
    parser.add_argument(
        "--stages", default=",".join(STAGES), help="comma-separated, among these, which are the default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=20_261_120)
    parser.add_argument("--device", default=None, help="default: cuda where there is one")
    parser.add_argument("--no-compile", action="store_true", help="run without torch.compile")
    parser.add_argument("--seconds-target", type=float, default=430.0, help="training time of the target")
    parser.add_argument("--seconds-head", type=float, default=420.0, help="training time of each drafter")
    parser.add_argument("--steps", type=int, default=None, help="optimizer steps of every model, instead of seconds")
    parser.add_argument("--learning-rate-target", type=float, default=3e-3)
    parser.add_argument("--learning-rate-head", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--sample-batches", type=int, default=None, help="batches of sampled rows")
    parser.add_argument(
        "--parallel-heads", action="store_true", help="train drafters as parallel processes, but P-EAGLE"
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes and 20 steps each, on a CPU")
    parser.add_argument("--pack", type=Path, default=None, help="folder for the result as parts of one tar")
    parser.add_argument("--pack-sampled", action="store_true", help="put the sampled text into the archive too")
    parser.add_argument("--install", action="store_true", help="put the result into harness/models/zoo, packed")
    return parser


def chosen_stages(text: str) -> list[str]:
    """Stages in their order. Raises ValueError for an unknown one."""
    named = [name for name in text.split(",") if name]
    unknown = [name for name in named if name not in STAGES]
    if unknown:
        raise ValueError(f"--stages: expected some of {', '.join(STAGES)}, found {', '.join(unknown)}")
    return [stage for stage in STAGES if stage in named]


def main(argv: list[str] | None = None) -> None:
    parser = arguments()
    options = parser.parse_args(argv)
    try:
        stages = chosen_stages(options.stages)
    except ValueError as error:
        parser.error(str(error))
    from experiments.zoo.assemble import install, pack
    from experiments.zoo.run import run_stage, run_together, settings_from
    from harness.models.zoo import ZOO

    settings = settings_from(options)
    settings.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    together = [stage for stage in stages if stage in INDEPENDENT] if options.parallel_heads else []
    for stage in stages:
        if stage in together[1:]:
            continue
        if stage in together:
            run_together(together, options)
        else:
            run_stage(stage, settings)
        print(
            f"== {'+'.join(together) if stage in together else stage} done at {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    if options.pack is not None:
        pack(settings, options.pack, options.pack_sampled)
    if options.install:
        install(settings.out, ZOO)


if __name__ == "__main__":
    main()
