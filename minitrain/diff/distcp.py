"""Folders of torch.distributed.checkpoint: pieces of tensors, put together again.

Its metadata is a pickle. What is read of it are the classes below, none of which runs
code of anybody else.
"""

import io
import pickle
from collections.abc import Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.core.errors import UserError
from minitrain.diff.unread import Entry, Unread

METADATA = ".metadata"
_CHECKPOINT = "torch.distributed.checkpoint"
# of torch 2.4 to 2.13
ALLOWED = {
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath", "Path"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
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


def read_distcp(folder: Path) -> Iterator[Entry]:
    """Every entry of the checkpoint in ``folder``: tensors unread, and values.

    Raises UserError where it is damaged or would have to run code.
    """
    metadata = _metadata(folder / METADATA)
    try:
        stored = list(metadata.state_dict_metadata.items())
    except AttributeError:
        raise _damaged(folder) from None
    for name, what in stored:
        if hasattr(what, "chunks"):
            yield name, Unread(partial(_tensor, folder, metadata, name))
        else:
            yield name, _piece(folder, metadata, name, None)


def _member(of: Any, name: str) -> Any:
    # how Python 3.11 writes one of an enumeration: by getattr
    if isinstance(of, type) and issubclass(of, Enum) and name in of.__members__:
        return of[name]
    raise UserError(f"needs code to be read (getattr {name}), so it is refused")


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        is_dtype = module == "torch" and isinstance(
            getattr(torch, name, None), torch.dtype
        )
        if is_dtype or name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise UserError(f"needs code to be read ({module}.{name}), so it is refused")


def _metadata(path: Path) -> Any:
    try:
        return _Metadata(io.BytesIO(path.read_bytes())).load()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OSError:
        raise
    except Exception:
        raise _damaged(path.parent) from None


def _tensor(folder: Path, metadata: Any, name: str) -> Tensor:
    what = metadata.state_dict_metadata[name]
    whole = torch.empty(what.size, dtype=what.properties.dtype)
    filled = 0
    for chunk in what.chunks:
        piece = _piece(folder, metadata, name, chunk.offsets)
        if not isinstance(piece, Tensor) or piece.shape != chunk.sizes:
            raise _damaged(folder)
        ends = zip(chunk.offsets, chunk.sizes, strict=True)
        whole[tuple(slice(start, start + size) for start, size in ends)] = piece
        filled += piece.numel()
    if filled != whole.numel():
        raise UserError(f"{folder}: tensor {name} is not whole")
    return whole


def _piece(folder: Path, metadata: Any, name: str, offsets: Any) -> Any:
    from torch.distributed.checkpoint.metadata import MetadataIndex

    try:
        where = metadata.storage_data[MetadataIndex(name, offsets)]
        # of this folder, whatever the metadata says
        with (folder / Path(where.relative_path).name).open("rb") as file:
            file.seek(where.offset)
            content = file.read(where.length)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:
        raise UserError(
            f"{folder}: cannot read {name} of it: damaged, or it needs code to be read"
        ) from None


def _damaged(folder: Path) -> UserError:
    return UserError(f"{folder}: not a whole checkpoint of {_CHECKPOINT}")
