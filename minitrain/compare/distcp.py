"""Folders of torch.distributed.checkpoint: pieces of tensors, put together again.

Its metadata is a pickle. Whatever class that names is read into a :class:`_Record` made
for this one load, so that it can neither run code nor change anything of this process.
"""

import io
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.compare.entries import Entry, Unread
from minitrain.core.errors import UserError
from minitrain.core.regular import MOST_OF_METADATA, require_regular

METADATA = ".metadata"
PIECES = "*.distcp"
_CHECKPOINT = "torch.distributed.checkpoint"
# of torch 2.4 to 2.13
RECORDS = {
    f"{_CHECKPOINT}.filesystem": {"_StorageInfo"},
    f"{_CHECKPOINT}.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}
PATHS = {"PosixPath", "PurePosixPath", "Path"}


def read_distcp(folder: Path) -> Iterator[Entry]:
    """Every entry of the checkpoint in ``folder``: tensors unread, and values.

    Raises UserError where it is damaged or would have to run code.
    """
    metadata = _metadata(folder / METADATA)
    try:
        stored = dict(metadata.state_dict_metadata)
        where = {
            (key.fqn, getattr(key, "offset", None)): info
            for key, info in metadata.storage_data.items()
        }
        if not all(isinstance(name, str) for name in stored):
            raise _damaged(folder)
    except (AttributeError, TypeError, ValueError):
        raise _damaged(folder) from None
    for name, what in stored.items():
        if hasattr(what, "chunks"):
            yield name, Unread(partial(_tensor, folder, where, name, what))
        else:
            yield name, _piece(folder, where, name, None)


class _Record:
    """What a class of the checkpoint holds: fields, or a tuple of them."""

    def __new__(cls, *arguments: Any) -> "_Record":
        return object.__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        self.fields: tuple[Any, ...] = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)
        else:
            self.fields = tuple(state)


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in RECORDS.get(module, ()):
            return type(name, (_Record,), {})
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        # functions of this load alone, which give what is plain
        plain = {
            ("builtins", "getattr"): lambda of, name: str(name),
            ("collections", "OrderedDict"): lambda *items: dict(*items),
            ("torch", "Size"): lambda sizes=(): tuple(map(int, sizes)),
            ("torch.serialization", "_get_layout"): lambda name: str(name),
        }
        if module == "pathlib" and name in PATHS:
            return lambda *parts: "/".join(map(str, parts))
        if (module, name) in plain:
            return plain[module, name]
        raise UserError(f"needs code to be read ({module}.{name}), so it is refused")


def _metadata(path: Path) -> Any:
    content = require_regular(path, MOST_OF_METADATA).read_bytes()
    try:
        return _Metadata(io.BytesIO(content)).load()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception:
        # whatever a damaged stream makes of the reader
        raise _damaged(path.parent) from None


def _tensor(folder: Path, where: Mapping[Any, Any], name: str, what: Any) -> Tensor:
    try:
        # the properties are written as a tuple, in this order
        dtype = getattr(what.properties, "dtype", None) or what.properties.fields[0]
        whole = torch.empty(tuple(what.size), dtype=dtype)
        there = torch.zeros(whole.shape, dtype=torch.bool)
        boxes = [(tuple(one.offsets), tuple(one.sizes)) for one in what.chunks]
    except (AttributeError, TypeError, IndexError, RuntimeError):
        raise _damaged(folder) from None
    for offsets, sizes in boxes:
        box = tuple(slice(x, x + n) for x, n in zip(offsets, sizes, strict=False))
        # pieces that leave the tensor, or overlap
        if there[box].shape != sizes or len(offsets) != len(sizes) or there[box].any():
            raise _torn(folder, name)
        piece = _piece(folder, where, name, offsets)
        fits = isinstance(piece, Tensor) and tuple(piece.shape) == sizes
        if not fits or piece.dtype != dtype:
            raise UserError(f"{folder}: a piece of tensor {name} is of another kind")
        whole[box], there[box] = piece, True
    if not there.all():
        raise _torn(folder, name)
    return whole


def _piece(folder: Path, where: Mapping[Any, Any], name: str, offsets: Any) -> Any:
    try:
        info = where[name, offsets]
        file = folder / info.relative_path
        # of this folder, whatever the metadata says
        if file.parent != folder or file.name in ("", "..") or not file.is_file():
            raise ValueError
        with file.open("rb") as stream:
            stream.seek(info.offset)
            content = stream.read(info.length)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:
        raise UserError(
            f"{folder}: cannot read {name} of it: damaged, or it needs code to be read"
        ) from None


def _damaged(folder: Path) -> UserError:
    return UserError(f"{folder}: not a whole checkpoint of {_CHECKPOINT}")


def _torn(folder: Path, name: str) -> UserError:
    return UserError(f"{folder}: the pieces of tensor {name} are not the whole of it")
