"""The alternatives of a head that are tried on known texts: each is one small function, and names what it would mend.

An alternative gives variants: a copy of the head that is changed, or other pairs for the head as it is. Where a head
has nothing that it could change it gives none. Add one to ALTERNATIVES.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from harness.checks.head.forced import AS_IT_IS, Reading
from harness.config.drafter import NetworkConfig
from harness.drafters.registry import LoadedHead, load_head
from harness.models.aux_layer_ids import default_aux_layers
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.decoder_layer import layer_types
from harness.models.head import Head
from harness.models.target import TargetModel


@dataclass(frozen=True)
class Trial:
    """What the alternatives are made of."""

    config: NetworkConfig
    target: TargetModel
    head: Head
    """As its files say, in layers that are not fused."""
    folder: Path | None
    """Of its files."""

    def copy(self) -> Head:
        """The head with weights of its own, on the same target."""
        return deepcopy(self.head, {id(self.target): self.target})

    def edited(self, edit: Callable[[Any], None]) -> Callable[[], Head]:
        """Makes a copy that is changed."""

        def make() -> Head:
            head = self.copy()
            with torch.inference_mode():
                edit(head)
            return head

        return make


class Variant(NamedTuple):
    """Something else to try in place of what was loaded."""

    name: str
    """What is tried, in a few words."""
    fault: str
    """What is wrong if it is better."""
    mend: str
    """What to set, or to change in its files."""
    make: Callable[[], Head] | None = None
    """Makes the head; None for the one that was loaded."""
    reading: Reading = AS_IT_IS


Alternative = Callable[[Trial], Iterator[Variant]]


def aux_layers(trial: Trial) -> Iterator[Variant]:
    """The target's states that enter other layers: one earlier, one later, the usual ones, in the other order."""
    there, num_layers = trial.head.aux_layers, trial.target.num_layers
    if not there:
        return
    last = num_layers - (trial.config.kind.value in BLOCK_HEADS)
    others = {
        "the auxiliary layers are one too low": tuple(layer + 1 for layer in there),
        "the auxiliary layers are one too high": tuple(layer - 1 for layer in there),
        "the auxiliary layers are in the wrong order": there[::-1],
    }
    if len(there) == 3:
        others["the auxiliary layers are not the usual ones"] = default_aux_layers(num_layers)
    tried = {there}
    for fault, layers in others.items():
        if layers in tried or not all(0 <= layer <= last for layer in layers):
            continue
        tried.add(layers)
        yield Variant(
            f"auxiliary layers {list(layers)}",
            f"{fault}: {list(there)}",
            f"drafter.aux_layers=[{','.join(map(str, layers))}]",
            trial.edited(partial(_set_layers, layers)),
        )


def near(layers: tuple[int, ...], num_layers: int) -> set[int]:
    """The layers that are looked at of a target beside those that a head reads."""
    if not layers:
        return set()
    around = {layer + step for layer in layers for step in (-1, 0, 1)} | {*default_aux_layers(num_layers)}
    return around & {*range(num_layers + 1)}


def _set_layers(layers: tuple[int, ...], head: Head) -> None:
    head.aux_layers = layers


def pairs(trial: Trial) -> Iterator[Variant]:
    """Pairs (token, state) that are shifted against each other by one."""
    mend = "pair x_{t+1} with the state of x_t where the head is trained and run, as all public readers do"
    for name, what, reading in (
        ("states one place later", "its states come one too early", Reading(late_features=1)),
        ("tokens one place later", "its tokens come one too early", Reading(late_tokens=1)),
        (
            "states one place earlier",
            # the state of the last token tells the next one by itself
            "its states come one too late, unless it has learned little and only passes them on",
            Reading(late_features=-1),
        ),
    ):
        yield Variant(name, f"positions are shifted by one: {what}", mend, reading=reading)


def vocabulary(trial: Trial) -> Iterator[Variant]:
    """Other target ids for the draft ids: d2t left out, read as ids, or shifted by one; by the likeness of rows."""
    head, num_ids = trial.head, trial.target.vocab_size
    if not head.has_own_output:  # it takes the target's rows, of whatever tokens it names
        return
    own = torch.arange(head.vocab_size, device=trial.target.device)
    ids = own if head.draft_to_target is None else head.draft_to_target
    others = {
        "d2t as target ids": (
            ids - own,
            "its d2t holds target ids, and readers add the draft id to them",
            "subtract 0 .. n - 1 from d2t",
        ),
        "d2t left out": (
            own,
            "its draft ids are the target's first ones, and its d2t says otherwise",
            "fill d2t with zeros",
        ),
        "d2t + 1": (ids + 1, "the ids that its d2t gives are one too low", "add 1 to d2t"),
        "d2t - 1": (ids - 1, "the ids that its d2t gives are one too high", "subtract 1 from d2t"),
    }
    if head.has_own_output and head.hidden_size == trial.target.hidden_size:
        others["ids by rows of lm_head"] = (
            _most_alike(head.output_matrix, trial.target.output_matrix),
            "its d2t names other tokens than its output matrix was made for",
            "rebuild d2t and t2d: the rows of lm_head are most like those of other tokens of the target",
        )
    for name, (given, fault, mend) in others.items():
        fits = int(given.min()) >= 0 and int(given.max()) < num_ids
        if fits and not torch.equal(given, ids):
            edit = trial.edited(partial(_set_ids, given))
            yield Variant(name, f"the vocabulary mapping is off: {fault}", mend, edit)


def _set_ids(ids: Tensor, head: Head) -> None:
    head.draft_to_target = ids.clone()


def _most_alike(rows: Tensor, of_target: Tensor) -> Tensor:
    """[V_draft] for each row the target's with the largest cosine."""
    unit = nn.functional.normalize(of_target.float(), dim=1)
    parts = [(nn.functional.normalize(part.float(), dim=1) @ unit.T).argmax(1) for part in rows.split(1024)]
    return torch.cat(parts)


def embeddings(trial: Trial) -> Iterator[Variant]:
    """The target's embedding or output matrix in the place of the head's own."""
    head, target = trial.head, trial.target
    width = head.hidden_size == target.hidden_size
    if width and head.embed_weight is not target.embed_weight and "embed_tokens" in head._modules:
        yield Variant(
            "the target's embedding",
            "its embedding is not the target's, and should be",
            "leave embed_tokens.weight out of its file, so that the target's is shared",
            trial.edited(_share_embedding),
        )
    if width and head.has_own_output:
        yield Variant(
            "the target's output matrix",
            "its output matrix is not that of the target, and should be",
            "write the target's rows of its draft ids to its lm_head",
            trial.edited(_share_output),
        )


def _share_embedding(head: Any) -> None:
    del head._modules["embed_tokens"]


def _share_output(head: Head) -> None:
    rows = head.target.output_matrix
    head.output_matrix.copy_(rows if head.draft_to_target is None else rows[head.draft_to_target])


def norms(trial: Trial) -> Iterator[Variant]:
    """Norms in other places, left out, or stored around zero; the target's final norm in the place of the head's."""
    head, config = trial.head, trial.head.config
    for name, what in (
        ("norm_before_residual", "the residual starts from features with and without their norm"),
        ("norm_output", "the next step's features are those before and after the final norm"),
    ):
        if hasattr(config, name):
            value = not getattr(config, name)
            yield Variant(
                f"{name} {str(value).lower()}",
                f"a norm is in the wrong place: {name} ({what})",
                f"{name}: {str(value).lower()} in its config.json",
                trial.edited(partial(_set_field, name, value)),
            )
    if not head.aux_layers:
        yield Variant(
            "states before the final norm",
            "a norm is in the wrong place: its features are those before the target's final norm",
            "take the target's states before its final norm where the head is run",
            reading=Reading(before_norm=True),
        )
    if _norms(head):
        yield Variant(
            "norms + 1",
            "the weights of its norms are stored around zero, and are read as factors",
            "add 1 to the weights of its norms",
            trial.edited(_add_one),
        )
    final = getattr(getattr(getattr(trial.target.causal_lm, "model", None), "norm", None), "weight", None)
    own = _final_norm(head)
    if own is not None and isinstance(final, Tensor) and own.shape == final.shape:
        yield Variant(
            "the target's final norm",
            "its final norm is wrong",
            "write the weight of its final norm anew; the target's final norm in its place is better",
            trial.edited(partial(_set_final_norm, final)),
        )


def _set_field(name: str, value: object, head: Head) -> None:
    head.config = replace(head.config, **{name: value})


def _norms(head: Head) -> list[Tensor]:
    return [weight for name, weight in head.named_parameters() if "norm" in name and weight.dim() == 1]


def _add_one(head: Head) -> None:
    for weight in _norms(head):
        weight.add_(1)


def _final_norm(head: Any) -> Tensor | None:
    for name, weight in head.named_parameters():
        if name == "norm.weight" or name.endswith("shared_head.norm.weight"):
            found: Tensor = weight
            return found
    return None


def _set_final_norm(weight: Tensor, head: Head) -> None:
    own = _final_norm(head)
    assert own is not None
    own.copy_(weight)


def joining(trial: Trial) -> Iterator[Variant]:
    """Embedding and features joined in the other order."""
    if _joins(trial.head):
        yield Variant(
            "halves swapped",
            "embedding and features are joined in the wrong order",
            "swap the halves, by columns, of the first projection of its file (fc, eh_proj, or q, k and v)",
            trial.edited(_swap_joins),
        )


def _joins(head: Head) -> list[Tensor]:
    """Matrices over embedding and features side by side."""
    width = 2 * head.hidden_size
    names = ("fc.weight", "eh_proj.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight")
    if len(head.aux_layers) == 2:
        # fc is over two states of the target
        return []
    return [item for name, item in head.named_parameters() if name.endswith(names) and item.shape[-1] == width]


def _swap_joins(head: Head) -> None:
    for weight in _joins(head):
        weight.copy_(weight.roll(weight.shape[-1] // 2, dims=-1).clone())


def rotation(trial: Trial) -> Iterator[Variant]:
    """The target's rotary embedding in the place of the head's."""
    own, theirs = (getattr(item, "rope_parameters", None) for item in (trial.head.layer_config, trial.target.config))
    if own and theirs and own != theirs:
        config = deepcopy(trial.head.layer_config)
        config.rope_parameters = deepcopy(theirs)
        yield Variant(
            "the target's rotary embedding",
            f"its rotary embedding is another than the target's: {_rope(own)}",
            f"{_rope(theirs)} in its config.json, as the target has it",
            trial.edited(partial(_set_rotary, config)),
        )


def _rope(parameters: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in parameters.items())


def _set_rotary(config: Any, head: Head) -> None:
    head.rotary = layer_types(config, "head").rotary(config).to(head.target.device)


OTHER_BITS = {"F16": "BF16", "BF16": "F16"}


def stored_type(trial: Trial) -> Iterator[Variant]:
    """Numbers of 16 bits that are of the other type of 16 bits than their file says."""
    files = sorted(trial.folder.glob("*.safetensors")) if trial.folder is not None else []
    if trial.config.traits.in_target or not any(_of_16_bits(path) for path in files):
        return
    yield Variant(
        "the other 16 bits",
        "dtype: the numbers of its file are of another type of 16 bits than the file says",
        "write its file anew: float16 and bfloat16 are exchanged in the header",
        partial(_reread, trial),
    )


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return dict(json.loads(stream.read(int.from_bytes(stream.read(8), "little"))))


def _of_16_bits(path: Path) -> bool:
    return any(item.get("dtype") in OTHER_BITS for name, item in _header(path).items() if name != "__metadata__")


def _reread(trial: Trial) -> Head:
    """The head of a copy of its folder whose headers name the other type."""
    assert trial.folder is not None
    with tempfile.TemporaryDirectory(prefix="check_head.") as made:
        folder = Path(made) / "head"
        shutil.copytree(trial.folder, folder)
        for path in folder.glob("*.safetensors"):
            header, content = _header(path), path.read_bytes()
            for name, item in header.items():
                if name != "__metadata__":
                    item["dtype"] = OTHER_BITS.get(item["dtype"], item["dtype"])
            before = 8 + int.from_bytes(content[:8], "little")
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            path.chmod(0o644)
            path.write_bytes(len(text).to_bytes(8, "little") + text + content[before:])
        loaded = load_head(replace(trial.config, path=str(folder), revision=None), trial.target)
    assert loaded is not None and isinstance(loaded.head, Head)
    return loaded.head


ALTERNATIVES: dict[str, Alternative] = {
    "auxiliary layers": aux_layers,
    "pairs": pairs,
    "vocabulary": vocabulary,
    "embeddings": embeddings,
    "norms": norms,
    "joining": joining,
    "rotation": rotation,
    "dtype": stored_type,
}
"""Of heads that lean on the target's states."""


def variants_of(trial: Trial) -> Iterator[tuple[str, Variant]]:
    """All alternatives of a head, each with its name."""
    for name, alternative in ALTERNATIVES.items():
        for variant in alternative(trial):
            yield name, variant


def loaded_as(head: Head, folder: Path | None) -> LoadedHead:
    """A head as drafters take it."""
    return LoadedHead(head, folder)
