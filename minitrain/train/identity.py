"""Identity of a run: everything that its bits depend on, and nothing else.

Its hash names the folder of checkpoints: after a change of parameters, data, code or
torch a run starts from step 0, and after the change is undone it resumes.
"""

import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minitrain.comm.store import differing_fact
from minitrain.core.files import read_json, sha256_file
from minitrain.core.params import Params
from minitrain.core.provenance import bits_depend_on
from minitrain.sync.catalog import find_strategy
from minitrain.train.checkpoint import Checkpoints, sum_of

# relative to the project's root; git and DVC ignore it
CHECKPOINTS = Path(".minitrain/checkpoints")
# affects only which steps are timed
NOT_OF_THE_BITS = ("num_warmup_steps",)
# may differ if another number of ranks resumes
OF_THE_RANKS = ("run", "world_size", "began with")
PACKAGE = Path(__file__).parents[1]
# packages that the bits depend on
COMPUTE = ("comm", "core", "data", "model", "proof", "sync", "train")


def checkpoints_of(
    params: Params, shards: Path, run: str, world_size: int, **more: Any
) -> Checkpoints:
    """Return the checkpoints of ``run``, in a folder keyed by :func:`identity_of`."""
    identity = identity_of(params, shards, run, world_size, **more)
    name = f"{run}-{sum_of(identity)[:12]}"
    every, keep = params.checkpoint.every_steps, params.checkpoint.keep
    return Checkpoints(CHECKPOINTS / name, identity, every, keep)


def identity_of(
    params: Params, shards: Path, run: str, world_size: int, **more: Any
) -> dict[str, Any]:
    """Return everything that the bits of ``run`` depend on, by name, plus the entries
    ``more``. ``shards``: folder of the run's data. Raises OSError for a missing file.
    """
    train = params.train.model_dump(exclude={*NOT_OF_THE_BITS})
    model = params.model.model_dump()
    index = read_json(shards / "index.json", "samples_sha256")
    # of the strategy's class and its base classes
    classes = find_strategy(params.train.sync).__mro__[:-1]
    sources = sorted({Path(inspect.getfile(one)) for one in classes})
    return {
        "run": run,
        "world_size": world_size,
        **{f"model.{key}": value for key, value in model.items()},
        **{f"train.{key}": value for key, value in train.items()},
        "samples": index["samples_sha256"],
        "targets.npy's content": sha256_file(shards / "targets.npy"),
        "model.file's content": sha256_file(Path(params.model.file)),
        "model.deps' content": _sha256_of(Path(params.model.deps)),
        "train.sync's code": _sha256_of(*sources),
        "minitrain's code": _sha256_of(*(PACKAGE / name for name in COMPUTE)),
        **bits_depend_on(params.train.threads_per_process),
        **more,
    }


def same_on_all_hosts(
    params: Params, shards: Path, run: str, world_size: int, resume: Path | None
) -> dict[str, Any]:
    """Return the values that must be equal on all ranks of ``run``: its identity except
    the CPU (another CPU shows in the bits), all parameters, and ``resume``.
    """
    identity = identity_of(params, shards, run, world_size)
    identity.pop("cpu")
    # no bits depend on the harness, but hosts communicate through it
    code = [PACKAGE / name for name in (*COMPUTE, "harness")]
    identity["minitrain's code"] = _sha256_of(*code)
    sections = params.model_dump(mode="json").items()
    named = {f"{name}.{key}": v for name, one in sections for key, v in one.items()}
    return {**named, **identity, "--resume": None if resume is None else str(resume)}


def difference(
    theirs: Mapping[str, Any], ours: Mapping[str, Any], *, but: tuple[str, ...] = ()
) -> str:
    """Return the first difference of two identities as text, ignoring names in ``but``;
    empty if there is none.
    """
    key, *values = differing_fact(ours, theirs, but=but)
    return "{0} = {2}, here {1}".format(key, *values) if key else ""


def _sha256_of(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        inside = [path] if path.is_file() else path.rglob("*")
        for file in sorted(one for one in inside if one.is_file()):
            # compiled files follow from their sources
            if "__pycache__" not in file.parts:
                name = file.relative_to(path).as_posix()
                digest.update(f"{sha256_file(file)}  {name}\n".encode())
    return digest.hexdigest()
