"""Folders of torch.distributed.checkpoint: pieces of tensors, put together again.

Its metadata is a pickle. Each class that it names is read into a stand-in
(:class:`Inert`), so that it can neither run code nor change anything of this process.
"""

import io
import pickle
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitrain.compare.entries import Entry, Inert, Unread
from minitrain.core.errors import UserError
from minitrain.core.files import MOST_OF_METADATA, require_regular

METADATA = ".metadata"
PIECES = "*.distcp"


def read_distcp(folder: Path) -> Iterator[Entry]:
    """Yield every entry of the checkpoint in ``folder``: tensors unread, and values.

    Raises UserError where it is damaged or would have to run code.
    """
    content = require_regular(folder / METADATA, MOST_OF_METADATA).read_bytes()
    try:
        metadata = _Metadata(io.BytesIO(content)).load()
        stored = {
            str(name): what for name, what in metadata.state_dict_metadata.items()
        }
        where = {
            (key.fqn, getattr(key, "offset", None)): info
            for key, info in metadata.storage_data.items()
        }
    except Exception:
        # a damaged stream may raise anything
        raise UserError(
            f"{folder}: not a whole checkpoint of torch.distributed.checkpoint"
        ) from None
    for name, what in stored.items():
        if hasattr(what, "chunks"):
            yield name, Unread(partial(_tensor, folder, where, name, what))
        else:
            yield name, _piece(folder, where, name, None)


class _Metadata(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("torch", "Size"):
            return lambda sizes=(): tuple(map(int, sizes))
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        return type(name, (Inert,), {"path": f"{module}.{name}"})


def _tensor(folder: Path, where: Mapping[Any, Any], name: str, what: Any) -> Tensor:
    try:
        # the properties are written as a tuple, the type first
        whole = torch.empty(tuple(what.size), dtype=what.properties.held[-1][0])
        there = torch.zeros(whole.shape, dtype=torch.bool)
        for chunk in what.chunks:
            piece = _piece(folder, where, name, tuple(chunk.offsets))
            corner = zip(chunk.offsets, chunk.sizes, strict=True)
            box = tuple(slice(start, start + size) for start, size in corner)
            fits = (whole[box].shape, whole.dtype) == (piece.shape, piece.dtype)
            # nor may pieces overlap
            if not fits or there[box].any():
                raise ValueError
            whole[box], there[box] = piece, True
    except (AttributeError, TypeError, IndexError, RuntimeError, ValueError):
        raise _damaged(folder, name) from None
    if not there.all():
        raise UserError(
            f"{folder}: the pieces of tensor {name} are not the whole of it"
        )
    return whole


def _piece(folder: Path, where: Mapping[Any, Any], name: str, offsets: Any) -> Any:
    try:
        info = where[name, offsets]
        file = folder / info.relative_path
        # a file of this folder alone
        if file.parent != folder:
            raise ValueError
        with require_regular(file).open("rb") as stream:
            stream.seek(info.offset)
            content = stream.read(info.length)
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:
        raise _damaged(folder, name) from None


def _damaged(folder: Path, name: str) -> UserError:
    return UserError(
        f"{folder}: cannot read {name} of it: damaged, or it needs code to be read"
    )
