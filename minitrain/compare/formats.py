"""The formats in which people keep states, read entry by entry, never running code.

Tensors stay on disk until they are looked up: a file of torch.save is mapped, all
others are read one tensor at a time.
"""

import json
import re
import zipfile
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from minitrain.compare.distcp import METADATA, PIECES, read_distcp
from minitrain.compare.entries import Entry, Unread, leaves, load_inert
from minitrain.core.errors import UserError
from minitrain.core.files import MOST_OF_INDEX, require_regular

# beside shards, as Hugging Face writes it: which tensor is in which
INDEX = ".index.json"


def is_state(path: Path) -> bool:
    """Return whether ``path`` is one state, by its name or content."""
    return path.is_file() or (path / METADATA).is_file() or _index(path) is not None


def files_of(folder: Path) -> dict[Path, set[Path]]:
    """The states in ``folder`` that are several files, and these files: the folder
    itself for a distributed checkpoint, the index for shards.
    """
    found = {index: {index, *shards_of(index)} for index in folder.glob(f"*{INDEX}")}
    if (folder / METADATA).is_file():
        found[folder] = {folder / METADATA, *folder.glob(PIECES)}
    return found


def entries(path: Path) -> Iterator[Entry]:
    """Yield entries of ``path`` by name: a Tensor, :class:`Unread` or a plain value;
    names of nested entries are joined by dots.

    Raises UserError for what is empty, torn, of another kind, or would have to run code
    to be read.
    """
    if path.is_dir():
        if (path / METADATA).is_file():
            for name, stored in read_distcp(path):
                yield from leaves(stored, name)
            return
        index = _index(path)
        if index is None:
            raise UserError(
                f"{path}: no folder of one state: it has neither {METADATA} (of "
                f"torch.distributed.checkpoint) nor one *{INDEX} (of shards)"
            )
        yield from _sharded(index)
    elif path.name.endswith(INDEX):
        yield from _sharded(path)
    elif path.suffix == ".safetensors":
        yield from _safetensors(path)
    else:
        yield from leaves(_torch(path))


def _index(folder: Path) -> Path | None:
    found = [*folder.glob(f"*{INDEX}")]
    return found[0] if len(found) == 1 else None


def shards_of(index: Path) -> dict[Path, list[str]]:
    """The files that an index names, beside it, and the tensors in each; UserError
    where it is damaged, or names something else than files beside it.
    """
    found: dict[Path, list[str]] = {}
    try:
        text = require_regular(index, MOST_OF_INDEX).read_text("utf-8")
        for name, file in json.loads(text)["weight_map"].items():
            found.setdefault(index.parent / file, []).append(name)
    # what is nested too deeply is a RecursionError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{index}: not an index of shards (weight_map)") from None
    for shard in found:
        if shard.parent != index.parent or not shard.is_file():
            raise UserError(f"{index}: {shard.name} is no file of a shard beside it")
    return found


def _sharded(index: Path) -> Iterator[Entry]:
    shards = shards_of(index)
    wanted = {name for names in shards.values() for name in names}
    found = [entry for shard in shards for entry in entries(shard)]
    if missing := sorted(wanted - {name for name, _ in found}):
        raise UserError(f"{index}: no shard holds {missing[0]}")
    yield from found


def _safetensors(path: Path) -> Iterator[Entry]:
    require_regular(path)
    with path.open("rb"):
        pass  # the operating system names a missing file
    try:
        file = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118
            yield name, Unread(partial(file.get_tensor, name))
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole .safetensors file: {error}") from None


def _torch(path: Path) -> object:
    require_regular(path)
    with path.open("rb") as file:
        if not file.read(1):
            raise UserError(f"{path}: the file is empty")
    # before 1.6, torch wrote a stream that cannot be mapped
    mapped = zipfile.is_zipfile(path)
    load = partial(torch.load, path, map_location="cpu", weights_only=True, mmap=mapped)
    try:
        try:
            return load()
        except Exception as error:
            if mapped and _needed(str(error)):
                return load_inert(path, map_location="cpu", mmap=True)
            if "must be imported to load DTensors" not in str(error):
                raise
        import_module("torch.distributed.tensor")
        return load()
    except Exception as error:
        # a damaged stream may raise anything
        raise UserError(f"{path}: {_reason(str(error))}") from None


def _needed(message: str) -> re.Match[str] | None:
    """The class or function that a file names and the reader does not know."""
    return re.search(r"\bGLOBAL ([\w.]+)", message)


def _reason(message: str) -> str:
    if needed := _needed(message):
        return f"needs code to be read ({needed[1]}), so it is refused"
    return "not a whole state file: torch.load cannot read it"
