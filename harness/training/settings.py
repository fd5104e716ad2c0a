"""What a training run of a head may be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from harness.config.schema import SettingsError
from harness.config.union import Member


class HeadKind(Enum):
    """Kinds of heads that can be trained for any target."""

    eagle3 = "eagle3"


class Output(Enum):
    """Where a head's output matrix comes from."""

    own = "own"
    target = "target"


class LossKind(Member):
    """What is minimised: its name, with its class."""

    kl_then_acceptance = "kl_then_acceptance", "harness.training.losses.kl_then_acceptance:KLThenAcceptance"
    kl = "kl", "harness.training.losses.kl:KL"
    lk = "lk", "harness.training.losses.lk:LK"
    acceptance = "acceptance", "harness.training.losses.acceptance:Acceptance"


BUILT_IN = "built_in"
"""In place of a folder: the head that is built in for the target."""


@dataclass(frozen=True)
class HeadTraining:
    """How a head is trained. With the folder of an earlier run, that one goes on."""

    kind: HeadKind = HeadKind.eagle3
    """Of head."""
    start: str = ""
    """Head to begin with, whose sizes, draft tokens and output are kept: a folder, a Hugging Face id, or built_in for
    the one that is built in for the target. Without one the weights are drawn."""
    out: str = "build/head"
    """Folder of the run: rows of text, checkpoint, log, and the head itself in OUT/head."""
    minutes: float = 20.0
    """Training time in all runs together, at whose end the learning rate reaches zero; that of writing text is not
    counted. 0 trains to the end of this run (run_minutes)."""
    steps: int = 0
    """Optimizer steps in place of minutes; 0 counts time."""
    run_minutes: float = 0.0
    """End this run after so long, whatever it is doing, to go on with the same command later; 0 does not."""
    tokens: int = 20_000_000
    """Tokens of text that the target writes before training. A head in training gets more only where this or
    generate_minutes is raised."""
    generate_minutes: float = 10.0
    """Stop writing text after so long in all runs together, with what is there; the first rows_at_once rows are
    finished."""
    only_text: bool = False
    """End when the text is written."""
    length: int = 1024
    """Tokens of a row of text."""
    rows_at_once: int = 256
    """Rows that a process writes at once."""
    temperatures: tuple[float, ...] = (0.0, 0.6, 1.0)
    """Of answers, in turn from row to row. 0 and 1 are those whose acceptance is measured on rows held out."""
    question_temperature: float = 1.0
    """Of questions that the target writes."""
    question_tokens: int = 256
    """Of a question at most."""
    answer_tokens: int = 512
    """Of an answer at most."""
    batch_rows: int = 16
    """Rows of a step, of each process."""
    keep_states: bool = False
    """Compute the target's states of all rows once and keep them on the device, in place of anew in every step: each
    process those of its share of the rows, which it learns alone."""
    num_unrolled: int = 5
    """Draft steps that are learnt."""
    draft_vocab_size: int = 8192
    """Tokens that the head can propose: the most frequent of the target's answers."""
    output: Output = Output.own
    """Output matrix: one of its own, which begins as the target's rows of those tokens, or these rows themselves, which
    are neither learnt nor written to its file."""
    intermediate_size: int = 0
    """Width of the head's MLP; 0 is that of the target's."""
    learning_rate: float = 1e-3
    """The highest."""
    loss: LossKind = LossKind.kl_then_acceptance
    """What is minimised: Kullback-Leibler divergence (kl), that mixed with total variation distance (lk), the draft
    tokens accepted at temperature 1 along the rows' text, negative (acceptance; their expected number over rows drawn
    at 1, see temperatures), or kl and from 55 % of the budget on acceptance."""
    late_cross_entropy: float = 0.05
    """Weight of kl beside acceptance."""
    processes: int = 1
    """Processes that write text and train together, each on a GPU of its own."""
    checkpoint_seconds: float = 60.0
    """Between checkpoints; each also writes the head."""
    log_seconds: float = 20.0
    """Between lines with acceptance on rows held out."""
    compile: bool = True
    """Let torch compile what is computed most, on a GPU."""

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            _require(getattr(self, name) >= least, name, f"{least} or more", getattr(self, name))
        is_bounded = self.minutes > 0 or self.steps > 0 or (self.minutes == 0 and self.run_minutes > 0)
        _require(is_bounded, "minutes", "more than 0, or 0 beside run_minutes", self.minutes)
        known = bool(self.temperatures) and all(0 <= value <= 2 for value in self.temperatures)
        _require(known, "temperatures", "numbers from 0 to 2", self.temperatures)
        for name in OF_FRESH if self.start else ():
            found = getattr(self, name)
            is_given = found != getattr(HeadTraining, name)
            _require(not is_given, name, "none beside start, whose head has its own", getattr(found, "value", found))
        least = 8 + self.num_unrolled
        _require(self.length >= least, "length", f"{least} or more with num_unrolled={self.num_unrolled}", self.length)

    @property
    def num_heldout(self) -> int:
        """Rows of the first file that are held out: two batches of each temperature."""
        return 2 * self.batch_rows * len(self.temperatures)


def _require(condition: bool, name: str, expected: str, found: object) -> None:
    if not condition:
        raise SettingsError(f"{name}: expected {expected}, found {found}")


OF_FRESH = ("draft_vocab_size", "output", "intermediate_size")
"""Settings of a head whose weights are drawn."""
_LEAST: dict[str, float] = {
    "steps": 0,
    "run_minutes": 0,
    "tokens": 1,
    "generate_minutes": 0,
    "rows_at_once": 1,
    "question_temperature": 0,
    "question_tokens": 1,
    "answer_tokens": 1,
    "batch_rows": 1,
    "num_unrolled": 1,
    "draft_vocab_size": 2,
    "intermediate_size": 0,
    "learning_rate": 1e-9,
    "late_cross_entropy": 0,
    "processes": 1,
    "checkpoint_seconds": 0,
    "log_seconds": 0,
}
