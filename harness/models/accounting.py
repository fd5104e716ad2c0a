"""Accounts for every field and tensor of a model's files: it is computed, has no effect here, or the cell is refused.

What is neither, the user can vouch for (`accept_unknown`): it is left out, and the record says so. Loaders and the
checks before a run ask the same functions; only names and JSON are read. The tables are `known_fields`,
`known_head_fields` and `known_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.models import Layers
from harness.models.checkpoint import (
    INDEX,
    SINGLE,
    CheckpointError,
    files_beside,
    first_names,
    read_fields,
    read_json,
    without_nulls,
)
from harness.models.checkpoint_kind import check_own_cache
from harness.models.contradictions import TAKE_OUT, contradictions
from harness.models.field_forms import CORRECT, FORMS, NEEDED_OF_ROPE, OBJECT, Form
from harness.models.known_fields import (
    DEFAULTS,
    GENERATION,
    NOT_QUANTIZED,
    OF_ANY_FILE,
    Fields,
    Known,
    Layout,
    Unread,
    model_layout,
    tokenizer_layout,
)
from harness.models.known_head_fields import HEAD_LAYOUTS
from harness.models.known_tensors import OTHER_LAYOUTS, Tensors, head_tensors, model_tensors, mtp_tensors
from harness.models.model_types import CONVERTED, MODEL_TYPES, is_quantized, takes_general_path
from harness.models.mtp_layouts import general_mtp, text_fields
from harness.models.rounded_weights import rounded_weights
from harness.models.tokenizer import overruled_eos
from harness.records.strict_json import shown

CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
ADAPTER, OTHER_QUANTIZATION = "adapter_config.json", "hf_quant_config.json"
_NUM_SHOWN = 6


@dataclass(frozen=True)
class Accepted:
    """What the user vouches for of the files of a model."""

    section: str = "target"
    """Of the settings: whose accept_unknown it is."""
    names: tuple[str, ...] = ()
    option: str | None = None
    """Of a command without sections: what takes the names in its place."""

    @property
    def setting(self) -> str:
        """What messages call it."""
        return self.option or f"{self.section}.accept_unknown"

    def given(self, names: str) -> str:
        """How a command line vouches for names, joined by commas."""
        return f"{self.option} {names}" if self.option is not None else f"'{self.setting}=[{names}]'"


OF_TARGET, OF_DRAFTER = Accepted(), Accepted("drafter")


class Settled(NamedTuple):
    """What there is to know of a model's files once all of them are accounted for."""

    assumptions: tuple[str, ...]
    """What they do not say and is taken, what they ask for and is not done, and what the user vouches for."""
    left_alone: frozenset[str]
    """Tensors that the loader need not read."""


def model_account(
    folder: Path,
    fields: Fields,
    accepted: Accepted,
    *,
    runs_code: bool = False,
    names: Collection[str] | None = None,
    layers: Layers = Layers.auto,
) -> Account:
    """The account of a target or draft model.

    Args:
        folder: with generation_config.json and tokenizer_config.json, if it has them.
        fields: of config.json, or of the configuration that its own code made of it.
        accepted: what the user vouches for.
        runs_code: whether code that comes with it is run.
        names: of its tensors; None where they are not known. Those of the general path its loader accounts for.
        layers: whose code computes them.

    Raises:
        CheckpointError: its type does not run, it is quantized, or sizes are missing.
    """
    model_type = fields.get("model_type")
    if takes_general_path(fields, layers):
        return _general_account(folder, fields, accepted, runs_code, names)
    if not isinstance(model_type, str) or model_type not in MODEL_TYPES:
        raise CheckpointError(
            f"{folder / CONFIG}: expected model_type {' or '.join(MODEL_TYPES)}, found {shown(model_type)}, which this "
            "version has no layers of its own for; target.layers=auto takes those of transformers"
            + _code_may_help(fields, runs_code)
        )
    account = Account(folder, accepted, fields, model_layout(model_type, runs_code=runs_code))
    account.take_defaults(CONFIG, account.fields, model_type)
    account.read_beside(runs_code=runs_code)
    account.take_source()
    if names is not None:
        account.add(names, lambda found: model_tensors(found, account.fields))
    if accepted.setting == OF_TARGET.setting:
        # other models have no such setting
        account.offer_transformers(lambda: _general_account(folder, fields, accepted, runs_code, names))
    account.check_final()
    return account


def _code_may_help(fields: Fields, runs_code: bool) -> str:
    """What to do about a type that does not run, where the checkpoint has code of its own."""
    may_become_one = fields.get("auto_map") and not runs_code
    return "; its own code may make one that does of it: target.trust_remote_code=true" if may_become_one else ""


def _general_account(
    folder: Path, fields: Fields, accepted: Accepted, runs_code: bool, names: Collection[str] | None
) -> Account:
    """The account of a model whose config.json transformers interprets."""
    from harness.models.general.known_types import architecture_of, check_quantization, general_layout, what_it_means

    check_own_cache(fields, folder / CONFIG)
    architecture = architecture_of(fields.get("model_type"))
    if architecture is None:
        raise CheckpointError(
            f"{folder / CONFIG}: expected a model_type that the installed transformers has a causal language model of, "
            f"found {shown(fields.get('model_type'))}, which does not run here{_code_may_help(fields, runs_code)}"
        )
    account = Account(folder, accepted, fields, general_layout(fields), by_transformers=True)
    account.assume(what_it_means(architecture, fields["model_type"]))
    rounded = rounded_weights(fields)
    if is_quantized(fields):
        check_quantization(fields, folder)
        is_random = names is not None and not names
        account.assume(
            f"the checkpoint has {rounded}; random ones of its sizes are not rounded"
            if is_random
            else f"{rounded}, run as transformers loads them on the device"
        )
    if names:
        account.look_at_files(lambda found: Tensors((), frozenset()))
    account.read_beside(runs_code=runs_code)
    account.take_source()
    account.check_final()
    return account


def head_account(
    kind: str, folder: Path, fields: Fields, accepted: Accepted, names: Collection[str] | None = None
) -> Account:
    """The account of a draft head of a kind that has a config.json of its own; see `model_account`."""
    account = Account(folder, accepted, fields, HEAD_LAYOUTS[kind](fields))
    layer = account.fields.get("transformer_layer_config", account.fields)
    if isinstance(layer, Mapping) and kind != "medusa":
        # what is no object the loader refuses; Medusa heads have no layers
        place = CONFIG if layer is account.fields else f"transformer_layer_config of {CONFIG}"
        account.take_defaults(place, layer, layer.get("model_type") or "llama")
    if names is not None:
        account.add(names, lambda found: head_tensors(kind, found, account.fields))
    account.check_final()
    return account


def mtp_account(
    folder: Path,
    fields: Fields,
    accepted: Accepted,
    names: Collection[str] | None = None,
    *,
    target: Fields | None = None,
) -> Account:
    """The account of the first MTP layer in the folder of a target. Tensors of a type whose layers are transformers'
    its loader accounts for.

    fields: of the folder's config.json; they are in the account of the target, if it is the target's own.
    target: fields of the target, with whose layers and norms the layer is run, where it lies in another folder.
    """
    model_type = str(fields.get("model_type"))
    if model_type not in MODEL_TYPES:
        return _general_mtp_account(folder, fields, accepted, names, target)
    layout = {} if target is None else model_layout(model_type, runs_code=False)
    account, index = Account(folder, accepted, fields, layout), fields.get("num_hidden_layers")
    if target is not None:
        account.compare(target, {name for name, known in layout.items() if not known.note} - _OF_FOLDER)
    if names is not None and isinstance(index, int):
        account.add(names, lambda found: mtp_tensors(found, index, fields), prefix=f"model.layers.{index}.")
    if model_type == "glm4_moe_lite":
        account.assume(
            "no file states whether the next step reads states before or after shared_head.norm, and after it is "
            "taken, as transformers and SGLang do, while vLLM reads them before"
        )
    _tell_further(account, fields.get("num_nextn_predict_layers"))
    account.check_final()
    return account


def _general_mtp_account(
    folder: Path, fields: Fields, accepted: Accepted, names: Collection[str] | None, target: Fields | None
) -> Account:
    """The same of a type whose layers are transformers'."""
    account, text = Account(folder, accepted, fields, {}), text_fields(fields)
    layout = general_mtp(folder, fields, names)
    if target is not None:
        of_folder = {*OF_ANY_FILE, *_OF_FOLDER, *layout.counted_by, "architectures", "auto_map", "text_config"}
        account.compare(target, {*fields, *target} - of_folder - {"mtp_use_dedicated_embeddings"})
    if names:
        prefix = layout.first(text.get("num_hidden_layers", 0))
        account.look_at_files(lambda found: Tensors((), frozenset()), prefix)
    if layout.told is not None:
        account.assume(layout.told)
    _tell_further(account, layout.count(text))
    account.check_final()
    return account


def _tell_further(account: Account, count: object) -> None:
    """Note that of several MTP layers one is run."""
    if isinstance(count, int) and count > 1:
        account.assume(f"of its {count} MTP layers the first is run, once for each draft token")


_OF_FOLDER = {"vocab_size", "eos_token_id", "num_nextn_predict_layers", "num_local_experts", "max_position_embeddings"}
"""Used fields of a model in which an MTP layer of another folder may differ from its target."""


class Account:
    """Adds up what is not computed of the files of one model.

    `fields` are those of config.json that are computed or have no effect.
    """

    def __init__(
        self, folder: Path, accepted: Accepted, fields: Fields, layout: Layout, *, by_transformers: bool = False
    ) -> None:
        """layout: of config.json; empty where another account has its fields. by_transformers: whether its class says
        what their values may be, and what null means."""
        check_own_cache(fields, folder / CONFIG)
        self._folder = folder
        self._accepted = accepted
        self._unread: list[Unread] = []
        self._names: set[str] = set()
        self._missing: list[str] = []
        self._assumptions: list[str] = []
        self._harmless: frozenset[str] | None = None
        self._by_transformers = by_transformers
        self._layout = layout
        self._of_transformers: Callable[[], Account] | None = None
        stated = dict(fields) if by_transformers else without_nulls(fields)
        self.fields = self._read(CONFIG, stated, layout) if layout else stated
        self._look_beside()

    def _read(self, file: str, fields: Fields, layout: Layout, prefix: str = "") -> dict[str, Any]:
        """Account for the fields of an object."""
        for item in contradictions(fields):
            self._add(
                file,
                f"{prefix}{item.name}",
                item.value,
                f"beside {prefix}{item.other} = {shown(item.other_value)}",
                TAKE_OUT,
            )
        kept = {}
        for name, value in fields.items():
            known, full_name = layout.get(name), f"{prefix}{name}"
            self._names.add(full_name)
            if value is None or value in ({}, []):
                # asks for nothing
                kept[name] = value
            elif known is None:
                self._add(file, full_name, value, "which this version does not know", None)
            elif (form := self._form(file, name, known)) is not None and not form.holds(value):
                self._add(file, full_name, value, f"where {form.text} is expected", CORRECT)
            elif known.layout is not None:
                kept[name] = self._read(file, value, known.layout(value), f"{full_name}.")
            elif known.is_computed is None or known.is_computed(value, fields):
                kept[name] = value
            elif known.is_told:
                kept[name] = value
                self.assume(f"{file} asks for {full_name} = {shown(value)}, which {known.note}")
            else:
                remedy = known.remedy(value) if callable(known.remedy) else known.remedy
                self._add(file, full_name, value, _what_it_changes(known), remedy)
        return kept

    def _form(self, file: str, name: str, known: Known) -> Form | None:
        """What a field must be; None where any value will do."""
        if known.layout is not None:
            return OBJECT
        # in other files, those without effect are not read by anything
        is_read = not self._by_transformers if file == CONFIG else not known.note
        return FORMS.get(name) if is_read else None

    def _look_beside(self) -> None:
        """Note files that say that the weights are not all, or not plain."""
        if (self._folder / ADAPTER).is_file():
            self._unread.append(Unread(ADAPTER, f"{ADAPTER}, of an adapter that is not merged into the weights"))
        if (self._folder / OTHER_QUANTIZATION).is_file():
            stated = read_json(self._folder / OTHER_QUANTIZATION).get("quantization")
            for name, value in stated.items() if isinstance(stated, Mapping) else ():
                if name in ("quant_algo", "kv_cache_quant_algo") and value is not None:
                    what = "weights or caches of fewer bits, which this version does not run"
                    self._add(OTHER_QUANTIZATION, name, value, what, NOT_QUANTIZED)

    def compare(self, others: Fields, names: Collection[str]) -> None:
        """Note fields that are other ones in another model."""
        for name in sorted(names):
            found, expected = self.fields.get(name), others.get(name)
            if found != expected:
                self._add(CONFIG, name, found, f"{shown(expected)} in that of the target, with which it is run", None)

    def _add(self, file: str, name: str, value: Any, what: str, remedy: str | None) -> None:
        self._unread.append(Unread(name, f"{name} = {shown(value)} in {file}, {what}", remedy))

    def read_file(self, file: str, layout: Layout) -> None:
        """Account for the fields of another file, where there is one."""
        if (self._folder / file).is_file():
            self._read(file, read_fields(self._folder / file), layout)

    def read_beside(self, *, runs_code: bool) -> None:
        """Account for the other files of a target: a drafter's tokens are the target's, and so is how they are
        sampled."""
        if self._accepted.section == "target":
            self.read_file(GENERATION_CONFIG, GENERATION)
            self.read_file(TOKENIZER_CONFIG, tokenizer_layout(runs_code=runs_code))
            overruled = overruled_eos(self._folder, self.fields.get("eos_token_id"))
            if overruled is not None:
                self.assume(overruled)

    def take_source(self) -> None:
        """Note which GGUF file the weights were written out from."""
        source = self.fields.get(CONVERTED)
        if isinstance(source, Mapping):
            self.assume(f"weights are those of {source.get('file')} ({source.get('type')}), written out in float32")

    def take_defaults(self, place: str, fields: Fields, model_type: str) -> None:
        """Note what the configuration class fills in for fields that are not stated."""
        # of a type that does not run the loader tells
        for name, default in DEFAULTS.get(str(model_type), {}).items():
            if any(_states(fields, name, other) for other in (name, *default.instead)):
                continue
            if default.value is None:
                self._missing.append(name)
            else:
                self.assume(f"{place} does not state {name}, and {shown(default.value)} is taken")
        for outer in ("rope_parameters", "rope_scaling"):
            rope = fields.get(outer)
            if isinstance(rope, Mapping):
                needed = NEEDED_OF_ROPE.get(str(rope.get("rope_type") or rope.get("type") or "default"), ())
                self._missing += [f"{outer}.{name}" for name in needed if name not in rope]

    def add(self, names: Collection[str], sort: Callable[[Collection[str]], Tensors], prefix: str = "") -> None:
        """Note tensors, and which of them nothing reads; those of other files of the folder too.

        names: of the files that are read; none where weights are random. sort: what they are. prefix: of the names that
        are looked at.
        """
        tensors = sort(names)
        self._names.update(names)
        self._unread += tensors.unread
        self._harmless = tensors.harmless
        if names:
            self.look_at_files(sort, prefix)

    def look_at_files(self, sort: Callable[[Collection[str]], Tensors], prefix: str = "") -> None:
        """Note files of tensors that are not read; arguments as of `add`."""
        for file, held in files_beside(self._folder).items():
            own = [name for name in held if name.startswith(prefix)]
            if any(fnmatch(file, pattern) for pattern in OTHER_LAYOUTS) or (held and not own):
                continue
            found = sort(own)
            # what a file tells of its kind is said of it too
            final = [item for item in found.unread if item.remedy is not None]
            left = [name for name in own if name not in found.harmless and name not in {item.name for item in final}]
            self._unread += final
            if left or not held:
                why = f"{INDEX} does not name" if (self._folder / INDEX).is_file() else f"lies beside {SINGLE}"
                holds = f"with {first_names(left)}" if left else "and which is damaged"
                self._unread.append(Unread(file, f"{file}, which {why}, {holds}"))

    def assume(self, text: str) -> None:
        """Note what is assumed, in one sentence without its end."""
        self._assumptions.append(text)

    def offer_transformers(self, account: Callable[[], Account]) -> None:
        """Where layers of our own do not compute a field and those of transformers do, name them in the error.

        account: makes that of the same files with the layers of transformers; it imports their code.
        """
        self._of_transformers = account

    def _is_computed_by_transformers(self, items: Sequence[Unread]) -> bool:
        """Whether the layers of transformers read these fields and take everything else of the files too."""
        if self._of_transformers is None:
            return False
        try:
            other = self._of_transformers()
            other.settled()
        except CheckpointError:
            return False
        known = (other._layout.get(item.name) for item in items)
        return all(row is not None and not row.note for row in known)

    def check_final(self) -> None:
        """Raise CheckpointError for what accept_unknown cannot take."""
        final = [item for item in self._unread if item.remedy is not None]
        if final:
            raise CheckpointError(f"{self._folder}: {_found(final)}; {final[0].remedy}")

    def settled(self) -> Settled:
        """What there is to know, once everything is noted.

        Raises CheckpointError for what is neither computed nor vouched for, and for a name that is vouched for in vain.
        """
        if self._missing:
            raise CheckpointError(
                f"{self._folder / CONFIG}: expected {', '.join(self._missing)}, found none; the sizes of a model are "
                "never guessed"
            )
        left = [item for item in self._unread if not any(means(name, item.name) for name in self._accepted.names)]
        if left:
            asked = ",".join(item.name for item in left[:_NUM_SHOWN]) + (",..." if len(left) > _NUM_SHOWN else "")
            own = (
                "use target.layers=transformers, which computes it, or "
                if self._is_computed_by_transformers(left)
                else ""
            )
            raise CheckpointError(
                f"{self._folder}: {_found(left)}; {own}choose another checkpoint or, if you know that nothing here "
                f"depends on it, {self._accepted.given(asked)}"
            )
        vouched = [text for name in self._accepted.names for text in self._vouched(name)]
        left_alone = (self._harmless or frozenset()) | {item.name for item in self._unread}
        return Settled((*self._assumptions, *vouched), left_alone)

    def _vouched(self, name: str) -> list[str]:
        """What the user vouches for by a name, as a sentence; none where tensors are not known and it may be one."""
        items = [item for item in self._unread if means(name, item.name)]
        if items:
            return [f"{_listed(items)}: left out, because {self._accepted.setting} vouches for it"]
        if any(means(name, other) for other in self._names):
            raise CheckpointError(
                f"{self._accepted.setting}: expected fields and tensors of {self._folder} that this version does not "
                f"compute, found {name}, which it computes or which has no effect; leave it out"
            )
        if self._harmless is not None:
            raise CheckpointError(
                f"{self._accepted.setting}: expected names of fields and tensors in {self._folder}, found {name}, "
                "which is none of them; leave it out"
            )
        return []


def _what_it_changes(known: Known) -> str:
    is_whole = known.remedy is not None or known.note.startswith("which ")
    return known.note if is_whole else f"which would change {known.note}"


def _states(fields: Fields, name: str, place: str) -> bool:
    """Whether a field, or an object that may hold it, states a value."""
    return place in fields and (not isinstance(fields[place], Mapping) or name in fields[place])


def means(pattern: str, name: str) -> bool:
    """Whether what the user wrote means a field or tensor."""
    if pattern.endswith("*") and len(pattern) > 1:
        return name.startswith(pattern[:-1])
    return name == pattern


def _found(items: Sequence[Unread]) -> str:
    return f"expected fields and tensors that this version computes, found {_listed(items)}"


def _listed(items: Sequence[Unread]) -> str:
    """Fields and tensors in words; many tensors that nothing reads in one."""
    others = [item for item in items if item.text is not None]
    texts = [item.text for item in others[:_NUM_SHOWN] if item.text is not None]
    texts += [f"{len(others) - _NUM_SHOWN} more"] if len(others) > _NUM_SHOWN else []
    tensors = [item.name for item in items if item.text is None]
    if tensors:
        rest = f" and {len(tensors) - _NUM_SHOWN} more" if len(tensors) > _NUM_SHOWN else ""
        which = "a tensor that nothing reads" if len(tensors) == 1 else f"{len(tensors)} tensors that nothing reads"
        texts.append(f"{which}: {', '.join(tensors[:_NUM_SHOWN])}{rest}")
    return "; ".join(texts)
