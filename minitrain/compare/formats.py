"""Formats of stored states, read entry by entry without running code.

Tensors stay on disk until they are looked up: a file of ``torch.save`` is mapped (one
from before torch 1.6 is loaded), all others are read one tensor at a time. Checkpoints
hold objects (``argparse.Namespace``, enums, NumPy arrays) next to the tensors, and the
metadata of ``torch.distributed.checkpoint`` is a pickle: each class that they name is
replaced by a stand-in (:class:`Inert`) that keeps its arguments, or by a list or dict.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minitrain.core.errors import UserError
from minitrain.core.files import require_regular

# suffix of the Hugging Face index, which maps tensors to shards
INDEX = ".index.json"
# file names of torch.distributed.checkpoint
METADATA, PIECES = ".metadata", "*.distcp"
# a name, and a Tensor, Unread, Inert, a plain value, or NESTED
Entry = tuple[str, object]
# value of the entry of a dict or a list that is not empty, before what is in it
NESTED = object()
# containers of the standard library, which torch.load does not fill, and empty bytes
PLAIN: dict[str, Any] = {
    "collections.defaultdict": dict,
    "collections.deque": list,
    "collections.OrderedDict": dict,
    "builtins.bytes": bytes,
}
NUMPY = "numpy."


@dataclass(frozen=True)
class Unread:
    """Lazily loaded tensor; ``read()`` loads and returns it."""

    read: Callable[[], Tensor]


def loaded(entry: Any) -> Any:
    """Return ``entry``: if Unread, its tensor. Raises UserError if that is damaged."""
    return entry.read() if isinstance(entry, Unread) else entry


class Inert:
    """Stand-in for an object of a class that was not imported: ``path`` is the name of
    the class, ``held`` the arguments and state of the object.
    """

    path = ""
    held: list[Any]

    def __new__(cls, *arguments: Any) -> "Inert":
        made = object.__new__(cls)
        made.held = [*arguments]
        return made

    def __setstate__(self, state: Any) -> None:
        self.held.append(state)

    # by content, since the stand-ins of one object in two files are two objects
    def __repr__(self) -> str:
        return f"{self.path}{vars(self).get('held', [])}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inert) and repr(self) == repr(other)

    def __hash__(self) -> int:
        # not of the path alone: keys of one class would all collide
        return hash(repr(self))

    def __getattr__(self, name: str) -> Any:
        for held in vars(self).get("held", ()):
            if isinstance(held, dict) and name in held:
                return held[name]
        raise AttributeError(name)


@cache
def _stand_in(path: str) -> Any:
    # one for each path: classes in two files, or in a set, are equal if their names are
    if path in PLAIN:
        return lambda *_: PLAIN[path]()
    if path.startswith("numpy._core."):  # as NumPy 2 names it
        return _stand_in(path.replace("._core.", ".core."))
    module, _, name = path.rpartition(".")
    return type(name, (Inert,), {"path": path, "__module__": module})


def is_state(path: Path) -> bool:
    """Return whether ``path`` may be one saved state: a file, or a folder with the
    metadata of torch.distributed.checkpoint or with one index of shards.
    """
    return path.is_file() or (path / METADATA).is_file() or _index(path) is not None


def files_of(folder: Path) -> dict[Path, set[Path]]:
    """Map each state in ``folder`` that has several files to these files. The key is
    the folder for torch.distributed.checkpoint, the index file for a set of shards.
    """
    found = {index: {index, *_shards_of(index)} for index in folder.glob(f"*{INDEX}")}
    if (folder / METADATA).is_file():
        found[folder] = {folder / METADATA, *folder.glob(PIECES)}
    return found


def entries(path: Path) -> Iterator[Entry]:
    """Yield (name, value) for each entry of the state at ``path``; names of nested
    entries are joined by dots.

    Raises:
        UserError: it is empty, truncated, of unknown format, or needs code to be read.
    """
    index = _index(path) if path.is_dir() else path
    if (path / METADATA).is_file():
        for name, stored in _distcp(path):
            yield from _leaves(stored, name)
    elif index is None:
        raise UserError(
            f"{path}: no folder of one state: it has neither {METADATA} (of "
            f"torch.distributed.checkpoint) nor one *{INDEX} (of shards)"
        )
    elif index.name.endswith(INDEX):
        yield from _sharded(index)
    elif path.suffix == ".safetensors":
        yield from _safetensors(path)
    else:
        yield from _leaves(_torch(path))


def _leaves(entry: object, name: str = "") -> Iterator[Entry]:
    inside = [*_inside(entry)]
    if isinstance(entry, Inert) or not inside:
        yield name or "object" if isinstance(entry, Inert) else name, entry
    elif name:
        yield name, NESTED
    kept: Any = object
    if isinstance(entry, Inert):
        # plain attributes may be caches: not compared; NumPy data are, as a whole
        kept = Tensor if entry.path.startswith(NUMPY) else Tensor | Inert
    for key, child in inside:
        for found in _leaves(child, f"{name}.{key}" if name else key):
            if isinstance(found[1], kept):
                yield found


def _inside(entry: object) -> Iterator[tuple[str, object]]:
    if isinstance(entry, Inert):
        for place, held in enumerate(entry.held):
            if len(entry.held) > 1 or isinstance(held, Tensor | Inert):
                yield f"({place})", held
            else:
                yield from _inside(held)
    elif isinstance(entry, Mapping):
        yield from ((str(key), value) for key, value in entry.items())
    elif isinstance(entry, list | tuple):
        yield from ((str(place), value) for place, value in enumerate(entry))


def _index(folder: Path) -> Path | None:
    found = [*folder.glob(f"*{INDEX}")]
    return found[0] if len(found) == 1 else None


def _shards_of(index: Path) -> dict[Path, list[str]]:
    # tensor names by file; only files in the folder of the index are read
    found: dict[Path, list[str]] = {}
    try:
        text = require_regular(index).read_text("utf-8")
        for name, file in json.loads(text)["weight_map"].items():
            found.setdefault(index.parent / file, []).append(name)
    # JSON that is nested too deeply raises RecursionError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{index}: not an index of shards (weight_map)") from None
    for shard in found:
        if shard.parent != index.parent or not shard.is_file():
            raise UserError(f"{index}: {shard.name} is no shard file in its folder")
    return found


def _sharded(index: Path) -> Iterator[Entry]:
    shards = _shards_of(index)
    wanted = {name for names in shards.values() for name in names}
    found = [entry for shard in shards for entry in entries(shard)]
    if missing := sorted(wanted - {name for name, _ in found}):
        raise UserError(f"{index}: no shard holds {missing[0]}")
    yield from found


def _safetensors(path: Path) -> Iterator[Entry]:
    with require_regular(path).open("rb"):
        pass  # the error of the operating system names the file
    try:
        file = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118
            yield name, Unread(partial(_tensor_of, path, file, name))
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole .safetensors file: {error}") from None


def _tensor_of(path: Path, file: Any, name: str) -> Tensor:
    try:
        return cast(Tensor, file.get_tensor(name))
    except SafetensorError as error:
        raise UserError(f"{path}: cannot read {name}: {error}") from None


def _torch(path: Path) -> object:
    # the error of the operating system names the file
    with require_regular(path).open("rb"):
        # the format before torch 1.6 cannot be mapped
        mapped = zipfile.is_zipfile(path)
    try:
        names: list[str] = []
        if mapped:
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        with torch.serialization.safe_globals([(_stand_in(n), n) for n in names]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception:
        # a damaged stream may raise anything
        raise UserError(
            f"{path}: not a whole state file, or it needs code to be read"
        ) from None


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch", "Size"):
            return lambda sizes=(): tuple(map(int, sizes))
        return _stand_in(f"{module}.{name}")


def _distcp(folder: Path) -> Iterator[Entry]:
    content = require_regular(folder / METADATA).read_bytes()
    try:
        metadata = _Metadata(io.BytesIO(content)).load()
        stored = {str(n): what for n, what in metadata.state_dict_metadata.items()}
        paths = [*(getattr(metadata, "planner_data", None) or {}).values()]
        dicts = {".".join(map(str, of[:n])) for of in paths for n in range(1, len(of))}
        where = {
            (key.fqn, getattr(key, "offset", None)): info
            for key, info in metadata.storage_data.items()
        }
    except Exception:
        # a damaged stream may raise anything
        raise UserError(
            f"{folder}: not a whole checkpoint of torch.distributed.checkpoint"
        ) from None
    yield from ((name, NESTED) for name in dicts)
    for name, what in stored.items():
        read = partial(_stored, folder, where, name, what)
        yield name, Unread(read) if hasattr(what, "chunks") else read()


def _stored(folder: Path, where: Mapping[Any, Any], name: str, what: Any) -> Any:
    # the value of an entry, or its tensor, which is put together from its pieces
    try:
        if not hasattr(what, "chunks"):
            return _piece(folder, where[name, None])
        # the properties are pickled as a tuple that begins with the dtype
        whole = torch.empty(tuple(what.size), dtype=what.properties.held[-1][0])
        lacking = torch.ones(whole.shape, dtype=torch.bool)
        for chunk in what.chunks:
            piece = _piece(folder, where[name, tuple(chunk.offsets)])
            corner = zip(chunk.offsets, chunk.sizes, strict=True)
            box = tuple(slice(start, start + size) for start, size in corner)
            fits = (whole[box].shape, whole.dtype) == (piece.shape, piece.dtype)
            if not fits or not lacking[box].all():
                raise ValueError("another shape or dtype, or pieces that overlap")
            whole[box], lacking[box] = piece, False
        if lacking.any():
            raise ValueError("the pieces are not the whole")
        return whole
    except Exception:
        raise UserError(
            f"{folder}: cannot read {name} of it: damaged, or it needs code to be read"
        ) from None


def _piece(folder: Path, info: Any) -> Any:
    file = folder / info.relative_path
    if file.parent != folder:
        raise ValueError("a file outside of the checkpoint")
    with require_regular(file).open("rb") as stream:
        stream.seek(info.offset)
        content = stream.read(info.length)
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
