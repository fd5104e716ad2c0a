"""The settings of the certification of a server. Needs neither Hydra nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from itertools import product
from typing import Any

from harness.config.sampling import SamplingSettings
from harness.config.schema import SettingsError, check_seed, check_setting
from harness.config.server import Engine


class ServedDtype(Enum):
    """In what the server computes."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass(frozen=True)
class CertifyServerConfig:
    """What is asked of a server, how often, and where the report goes."""

    engine: Engine = Engine.vllm
    """What serves; it must give token ids."""
    model: str = ""
    """Name of the model in requests; the one that the server lists unless given."""
    target: str = ""
    """Folder or Hugging Face id of the target that is served; the built-in one unless given."""
    accept_unknown: tuple[str, ...] = ()
    """Fields, tensors and files of the target that you vouch for: they are left out."""
    dtype: ServedDtype = ServedDtype.float32
    """What the server computes in. Below float32 the test tolerates twice the deviation that rounding makes here."""
    requests: int = 20_000
    """Requests of each case at most."""
    budget_s: int = 600
    """Seconds after which no more requests are sent; a case that fails is asked once more, with as many."""
    concurrency: int = 16
    """Requests in flight."""
    tokens: int = 4
    """Output tokens of a request: their joint law is tested."""
    prompts: int = 4
    """Prompts that the requests take in turn: those of the built-in set whose answers can begin in many ways."""
    temperature: tuple[float, ...] = (1.0, 0.7)
    """Each temperature with each cut is a case; 1 alone would not show one that is forgotten."""
    top_p: tuple[float, ...] = (1.0,)
    """1 is off. Cuts need float32: rounding moves the place of the cut."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """0 is off; not together with another cut, because engines differ in their order."""
    seeds: bool = True
    """Send each request a seed of its own; without, the server draws from its own random numbers."""
    seed: int = 0
    """The requests' seeds are made from it."""
    remark: str = ""
    """What the report says about the server, such as how it was started."""
    output: str = "results/runs/server_certification"
    """Folder for report.md and certification.json."""

    def __post_init__(self) -> None:
        for name, least in (("requests", 1000), ("budget_s", 1), ("concurrency", 1), ("prompts", 1)):
            check_setting(getattr(self, name) >= least, name, f"{least} or more", getattr(self, name))
        check_setting(1 <= self.tokens <= 8, "tokens", "1 to 8", self.tokens)
        check_setting(bool(self.temperature), "temperature", "one or more", "none")
        check_setting(bool(self.top_p), "top_p", "one or more", "none")
        try:
            for sampling in self.cases:
                sampling.check("requests")
        except ValueError as error:
            raise SettingsError(str(error)) from error
        check_setting(min(self.temperature) > 0, "temperature", "more than 0 (0 is checked first)", 0)
        cuts = [name for name, is_on in (("top-p", min(self.top_p) < 1), ("top-k", self.top_k)) if is_on]
        check_setting(not (self.min_p and cuts), "min_p", "no other cut beside it", " and ".join(cuts))
        cuts += ["min-p"] if self.min_p else []
        check_setting(
            not cuts or self.dtype is ServedDtype.float32,
            "dtype",
            f"float32 beside {' and '.join(cuts)}, since rounding moves the place of a cut",
            self.dtype.value,
        )
        check_seed(self.seed)
        check_setting(bool(self.output), "output", "a folder", "nothing")

    @property
    def cases(self) -> tuple[SamplingSettings, ...]:
        """The sampling parameters that are tested."""
        return tuple(
            SamplingSettings(temperature, self.top_k, top_p, self.min_p)
            for temperature, top_p in product(dict.fromkeys(self.temperature), dict.fromkeys(self.top_p))
        )


def case_name(sampling: SamplingSettings) -> str:
    """How reports call a case."""
    cuts = (("top-k", sampling.top_k, 0), ("top-p", sampling.top_p, 1), ("min-p", sampling.min_p, 0))
    return ", ".join([f"temperature {sampling.temperature:g}", *(f"{name} {value:g}" for name, value, off in cuts
                                                                 if value != off)])  # fmt: skip


def options_of(config: Mapping[str, Any]) -> list[str]:
    """The options of a command line that ask for what a record's settings ask for, URL, remark and output left out."""
    default, shown = CertifyServerConfig(), []
    for name in (item.name for item in fields(CertifyServerConfig) if item.name not in ("remark", "output", "seeds")):
        usual = getattr(default, name)
        usual = list(usual) if isinstance(usual, tuple) else getattr(usual, "value", usual)
        # of a record that is older than the setting
        value = config.get(name, usual)
        if value != usual:
            numbers_or_names = value if isinstance(value, list) else [value]
            text = ",".join(each if isinstance(each, str) else f"{each:g}" for each in numbers_or_names)
            shown.append(f"--{name.replace('_', '-')} {text}")
    return [*shown, *([] if config["seeds"] else ["--no-seeds"])]
