"""Reading checkpoints: a local folder or a Hugging Face id, config.json, safetensors weights, key by key.

Pickled weights (.bin, .pt) are refused: unpickling runs code. Every tensor is asked for by name and shape; unused
ones can be reported. Torch is needed only where a tensor is read. This module does not know what the keys mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from harness.models.safetensors_header import StoredTensor, read_header
from harness.records.strict_json import parse_json, shown

if TYPE_CHECKING:
    from torch import Tensor

WITHOUT_WEIGHTS = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
WEIGHTS = "*.safetensors"
DOWNLOADED = (WEIGHTS, *WITHOUT_WEIGHTS)
CODE = ("*.py",)
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Names the file of each tensor, for a checkpoint in several."""
_LONGEST_REASON = 400
"""Characters of what a library says that a message repeats."""


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete or of another shape than its configuration says."""


class WeightSource(Protocol):
    """Where a model's tensors come from, by name and shape: a `Checkpoint`, or random draws."""

    def holds(self, name: str) -> bool:
        """Whether there is a tensor of that name; where there is none, the experts of a layer come one by one."""
        ...

    def take(self, name: str, shape: Iterable[int]) -> Tensor: ...

    def put(self, name: str, place: Tensor) -> None:
        """Write the tensor of that name and of the place's shape there."""
        ...


def checkpoint_folder(
    path: str | Path, revision: str | None = None, patterns: Sequence[str] = DOWNLOADED, *, with_code: bool = False
) -> Path:
    """The local folder of a checkpoint; of a Hugging Face id the files of these patterns are downloaded.

    Packed weights are unpacked, if the patterns ask for weights (harness.models.packed_weights).
    with_code: also Python files, for a caller that runs the checkpoint's own code.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        # it raises this module's error
        from harness.models.packed_weights import unpacked

        return unpacked(folder) if WEIGHTS in patterns else folder
    name = str(path)
    if folder.exists() or folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise CheckpointError(
            f"{path}: expected a checkpoint folder or a Hugging Face id (owner/name), "
            f"found {'a file' if folder.exists() else 'no such folder'}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        fetched = [*patterns, *(CODE if with_code else ())]
        return Path(snapshot_download(name, revision=revision, allow_patterns=fetched))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"{name}: expected a checkpoint folder or a Hugging Face id (owner/name), found no such folder, and on the "
            f"Hub (revision {revision or 'main'}): {reason}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; errors name the file."""
    if not path.is_file():
        raise CheckpointError(f"{path}: expected this file in the checkpoint folder, found none")
    try:
        data = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data


NULL_IS_A_VALUE = frozenset(("bos_token_id", "eos_token_id", "pad_token_id", "q_lora_rank", "sliding_window"))
"""Fields in which null says that there is no such thing, where a field that is absent leaves it to a default."""


def read_fields(path: Path) -> dict[str, Any]:
    """A config.json as `read_json` reads it, `without_nulls`."""
    return without_nulls(read_json(path))


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object and of those in it that are there: null counts as absent, but for NULL_IS_A_VALUE."""
    kept = {name: value for name, value in fields.items() if value is not None or name in NULL_IS_A_VALUE}
    return {name: without_nulls(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


@contextmanager
def named(source: object) -> Iterator[None]:
    """Turn a ValueError about the contents of a file into a CheckpointError that names the file."""
    try:
        yield
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from error


@contextmanager
def configured_by(source: object) -> Iterator[None]:
    """Turn what transformers raises for the values of a configuration into a CheckpointError that names its file."""
    try:
        yield
    except Exception as error:
        raise CheckpointError(
            f"{source}: expected a configuration that transformers takes, found {reason_of(error)}"
        ) from error


def reason_of(error: Exception) -> str:
    """What a library says of a file, in one line that is not too long."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    half = _LONGEST_REASON // 2
    # what to do comes last
    return text if len(text) <= _LONGEST_REASON else f"{text[:half]} ... {text[-half:]}"


class StoredRows(NamedTuple):
    """Which rows are read of a tensor that a file has more of."""

    num_stored: int
    read: slice | Tensor
    """A slice, or [number] int64."""

    @classmethod
    def of_ids(cls, num_stored: int, num_ids: int) -> StoredRows:
        """A row for each of so many token ids; those that the file does not have take its last row."""
        if num_ids <= num_stored:
            return cls(num_stored, slice(num_ids))
        import torch

        return cls(num_stored, torch.arange(num_ids).clamp_max(num_stored - 1))


class Checkpoint:
    """The safetensors weights of a folder, opened lazily; use as a context manager.

    Each tensor is taken by name and shape; `check_used` finds what was never taken.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = weight_files(self.folder)
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}
        self._taken: set[str] = set()
        self._rows: dict[str, StoredRows] = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def holds(self, name: str) -> bool:
        return name in self

    @property
    def names(self) -> list[str]:
        return sorted(self._files)

    def shape_of(self, name: str) -> list[int]:
        """The shape of a tensor that is there."""
        return list(self._handle(self._files[name]).get_slice(name).get_shape())

    def read_rows(self, name: str, rows: StoredRows) -> None:
        """Let `take` and `put` give some rows of a tensor, whose shape is then that of what they give."""
        self._rows[name] = rows

    def take(self, name: str, shape: Iterable[int], *, of_ids: bool = False) -> Tensor:
        """One tensor, on the CPU in the file's dtype: plain floating numbers, or with `of_ids` whole ones.

        Raises CheckpointError when it is missing, misshapen or of another kind of number.
        """
        expected, rows = list(shape), self._rows.get(name)
        if rows is not None:
            expected[0] = rows.num_stored
        if name not in self._files:
            raise CheckpointError(no_tensor(self.folder, name, expected, self.names))
        path, found = self._files[name], self.shape_of(name)
        if found != expected:
            raise CheckpointError(other_shape(path, name, expected, found))
        self._taken.add(name)
        stored_type = self._handle(path).get_slice(name).get_dtype()
        if stored_type not in (ID_TYPES if of_ids else WEIGHT_TYPES):
            raise CheckpointError(other_type(path, name, stored_type, of_ids))
        stored: Tensor = self._handle(path).get_tensor(name)
        return stored if rows is None else stored[rows.read]

    def put(self, name: str, place: Tensor) -> None:
        """Copy one tensor to a place of its shape, in the place's dtype. Raises CheckpointError as `take` does."""
        place.copy_(self.take(name, place.shape))

    def unused(self, prefix: str = "") -> list[str]:
        """The tensors that were never taken, of those whose names begin with a prefix."""
        return [name for name in self.names if name.startswith(prefix) and name not in self._taken]

    def check_used(self, left_alone: Collection[str], prefix: str = "") -> None:
        """Raise CheckpointError where a tensor was never taken, other than those that may be left alone.

        prefix: of the names that are looked at.
        """
        left = [name for name in self.unused(prefix) if name not in left_alone]
        if left:
            raise CheckpointError(
                f"{self.folder}: expected config.json to account for every tensor, found {len(left)} that it does not: "
                f"{first_names(left)}"
            )

    def _handle(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = self._stack.enter_context(opened(path))
        return self._open[path]


def weight_files(folder: Path) -> dict[str, Path]:
    """Which safetensors file of a folder holds each tensor; raises CheckpointError as `stored_tensors` does."""
    return {name: path for path, header in _headers(folder).items() for name in header}


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Type and shape of every tensor of a folder, from the headers of the files that are read.

    These are the files that the index names, else model.safetensors, else all. What they hold counts, as it does for
    other readers, whether or not the index names each tensor; `files_beside` has the others.

    Raises CheckpointError when there is none, one is missing or damaged, or a tensor lies in two or not where the index
    says.
    """
    return {name: tensor for header in _headers(folder).values() for name, tensor in header.items()}


def files_beside(folder: Path) -> dict[str, list[str]]:
    """The safetensors files of a folder that are not read -> the tensors of each; none of one that is damaged."""
    read, found = {path.name for path in _headers(folder)}, {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in read:
            try:
                found[path.name] = list(tensors_of_file(path))
            except CheckpointError:
                found[path.name] = []
    return found


def _headers(folder: Path) -> dict[Path, dict[str, StoredTensor]]:
    """The tensors of each file that is read."""
    placed = _placed(folder)
    headers = {path: tensors_of_file(path) for path in dict.fromkeys(placed.values() if placed else _files(folder))}
    for name, path in placed.items():
        if name not in headers[path]:
            raise CheckpointError(not_in_file(name, path))
    owners: dict[str, Path] = {}
    for path, header in headers.items():
        for name in header:
            other = owners.setdefault(name, path)
            if other != path:
                raise CheckpointError(
                    f"{folder}: expected each tensor in one file, found {name} in {other.name} and {path.name}; take "
                    "the file away that is not of this checkpoint"
                )
    return headers


def _placed(folder: Path) -> dict[str, Path]:
    """Where the index says that tensors lie; nothing without an index."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: expected a checkpoint folder, found none")
    if not (folder / INDEX).is_file():
        return {}
    listed = read_json(folder / INDEX).get("weight_map")
    if not listed or not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise CheckpointError(
            f"{folder / INDEX}: expected the file of each tensor in weight_map, found {shown(listed)}"
        )
    outside = [file for file in listed.values() if not _lies_inside(file)]
    if outside:
        raise CheckpointError(
            f"{folder / INDEX}: expected files of its folder in weight_map, found {shown(outside[0])}"
        )
    missing = sorted({Path(file).name for file in listed.values() if not (folder / file).is_file()})
    if missing:
        raise CheckpointError(
            f"{folder / INDEX}: expected the files it names, found no {', '.join(missing)}; fetch them again"
        )
    return {name: folder / file for name, file in listed.items()}


def _files(folder: Path) -> list[Path]:
    """The files of a folder without an index."""
    paths = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(no_weights(folder))
    return paths


def tensors_of_file(path: Path) -> dict[str, StoredTensor]:
    """The header of a safetensors file. Raises CheckpointError when it is damaged or something else."""
    try:
        return read_header(path)
    except (ValueError, OSError) as error:
        raise CheckpointError(not_safetensors(path, error)) from error


def not_safetensors(path: Path, reason: Exception) -> str:
    """What to say about a file that is none, or not whole."""
    return (
        f"{path}: expected a safetensors file, found {path.stat().st_size} bytes that are none ({reason}); fetch it "
        "again (a clone without Git LFS holds pointers in place of weights)"
    )


def no_tensor(folder: Path, name: str, expected: Sequence[int], names: Sequence[str]) -> str:
    """What to say about a tensor that is missing among those of some names."""
    return (
        f"{folder}: expected a tensor {name} of shape {list(expected)}, found none of that name among {len(names)} "
        f"tensors ({', '.join(names[:4])}, ...)"
    )


WEIGHT_TYPES, ID_TYPES = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16", "BOOL")
"""Types of tensors, as safetensors names them: what weights are read from, and ids of tokens or which are kept."""


def other_type(place: Path, name: str, found: str, of_ids: bool = False) -> str:
    """What is wrong with a tensor of another kind of number."""
    if of_ids:
        return f"{place}: expected tensor {name} in whole numbers ({', '.join(ID_TYPES)}), found {found}"
    return (
        f"{place}: expected tensor {name} in plain numbers ({', '.join(WEIGHT_TYPES)}), found {found}: it is "
        "quantized, and how to read it is not known here; give the checkpoint before it was quantized"
    )


def other_shape(path: Path, name: str, expected: Sequence[int], found: Sequence[int]) -> str:
    """What to say about a tensor of another shape than its configuration asks for."""
    return (
        f"{path}: expected {name} of shape {list(expected)}, found {list(found)}; config.json and weights do not "
        "belong together, or not to this target"
    )


def not_in_file(name: str, path: Path) -> str:
    """What to say about a tensor that the index places in a file without it."""
    return f"{path}: expected {name}, which {INDEX} places there, found none"


def _lies_inside(file: str) -> bool:
    """Whether a name stays in its folder; its file may be a link, as in a Hub cache."""
    path = PurePath(file)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in file


def opened(path: Path) -> Any:
    """A safetensors file, to read tensors from. Raises CheckpointError when it is damaged or something else."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise CheckpointError(not_safetensors(path, error)) from error


def no_weights(folder: Path) -> str:
    """What to say about a folder without safetensors."""
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if not pickled:
        return (
            f"{folder}: expected weights in {SINGLE} (or with {INDEX}), found no safetensors file (pickled ones "
            f"are refused, and not fetched from Hugging Face)"
        )
    return (
        f"{folder}: expected weights in {SINGLE}, found only pickled ones ({', '.join(pickled)}), which are refused "
        f"because loading a pickle runs code; convert them where you trust them: "
        f'safetensors.torch.save_file(torch.load("{pickled[0]}", weights_only=True), "{SINGLE}")'
    )


def first_names(names: list[str], num_shown: int = 6) -> str:
    return ", ".join(names[:num_shown]) + (", ..." if len(names) > num_shown else "")
