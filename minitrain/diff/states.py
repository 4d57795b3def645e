"""Reading state files: ours and foreign ones, .pt and .safetensors, never running code.

Tensors stay on disk (memory-mapped) until somebody looks at them.
"""

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minitrain.core.errors import UserError


@dataclass(frozen=True)
class State:
    """What a file holds, by name; names of nested entries are joined by dots."""

    tensors: dict[str, Tensor]
    values: dict[str, object]


def read_state(path: Path, prefix: str = "") -> State:
    """Read ``path``; a leading ``prefix`` is taken off every name that has it.

    Raises UserError for a file that is empty, torn, of another kind, that would have to
    run code to be read, or that holds tensors which are not plain (sparse, quantized).
    """
    content = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    state = State({}, {})
    for name, leaf in _leaves(content):
        name = name.removeprefix(prefix)
        if name in state.tensors or name in state.values:
            raise UserError(f"{path}: two entries are named {name!r}")
        if not isinstance(leaf, Tensor):
            state.values[name] = leaf
        elif leaf.layout is not torch.strided or leaf.is_quantized:
            raise UserError(f"{path}: tensor {name} is sparse or quantized, not plain")
        else:
            state.tensors[name] = leaf
    return state


def _safetensors(path: Path) -> object:
    with path.open("rb"):
        pass  # a missing file is told by the operating system, with its name
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path}: not a whole .safetensors file: {error}") from None


def _torch(path: Path) -> object:
    with path.open("rb") as file:
        if not file.read(1):
            raise UserError(f"{path}: the file is empty")
    # before 1.6, torch wrote a stream that cannot be mapped
    mapped = zipfile.is_zipfile(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:
        # whatever a damaged stream makes of the reader
        raise UserError(f"{path}: {_reason(str(error))}") from None


def _reason(message: str) -> str:
    needed = re.search(r"\bGLOBAL ([\w.]+)", message)
    if needed:
        return f"needs code to be read ({needed[1]}), so it is refused"
    return "not a whole state file: torch.load cannot read it"


def _leaves(entry: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(entry, Mapping) and entry:
        children = list(entry.items())
    elif isinstance(entry, list | tuple) and entry:
        children = list(enumerate(entry))
    else:
        yield name, entry
        return
    for key, child in children:
        yield from _leaves(child, f"{name}.{key}" if name else str(key))
