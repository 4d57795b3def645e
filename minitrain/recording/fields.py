"""What a line of a recording must hold: each key, its type and its range.

It is checked once, as the line is read, so that nobody who works with it need doubt it.
Other keys are left alone.
"""

from collections.abc import Callable, Mapping
from math import prod
from reprlib import Repr
from typing import Any

from minitrain.recording.fingerprint import BINS

Check = Callable[[Any], bool]
# more ranks, or steps, than any run has
MOST_RANKS, MOST, MOST_DIMENSIONS = 1_000_000, 1 << 53, 64
SHOWN = Repr()
SHOWN.maxlevel, SHOWN.maxdict, SHOWN.maxlist = 2, 2, 2


def _whole(least: int, most: int = MOST) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _number(value: Any) -> bool:
    # NaN and infinite ones are numbers too; an integer must fit into a float
    return type(value) is float or (type(value) is int and abs(value) <= MOST)


def _length(value: Any) -> bool:
    return _number(value) and not value < 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _named(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


_COUNT = _whole(0)


def _with(fields: Mapping[str, Check]) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and all(key in value and check(value[key]) for key, check in fields.items())
    )


def _shape(value: Any) -> bool:
    # as few as torch allows, so that the product is one that fits
    few = _each(_COUNT)(value) and len(value) <= MOST_DIMENSIONS
    return bool(few and prod(value) <= MOST)


def _sketch(value: Any) -> bool:
    return _each(_number)(value) and len(value) == BINS


_FINGERPRINT = _with({"hash": _text, "norm": _length, "sketch": _sketch})


def _buffer(value: Any) -> bool:
    # of integers there is the hash alone
    return _with({"hash": _text})(value) and (len(value) == 1 or _FINGERPRINT(value))


def _setting(value: Any) -> bool:
    return _text(value) or _flag(value) or _number(value) or _each(_number)(value)


_GROUP = _with({"parameters": _each(_text), "settings": _named(_setting)})
_TOLD = {
    "rule": _text,
    "step": _whole(-1),
    "ranks": _each(_COUNT),
    "tensor": _text,
    "line": _text,
}

FIELDS: dict[str, dict[str, Check]] = {
    "recording": {
        "version": _whole(1),
        "rank": _whole(0, MOST_RANKS - 1),
        "world_size": _whole(1, MOST_RANKS),
        "every": _whole(1),
        "twin": _flag,
        "torch": _text,
        "threads": _whole(1),
        "device": _text,
        "bins": _whole(BINS, BINS),
        "parameters": _named(
            _with({"shape": _shape, "dtype": _text, "trained": _flag})
        ),
        "start": _named(_text),
    },
    "step": {
        "optimizer": _COUNT,
        "step": _COUNT,
        "forwards": _COUNT,
        "inputs": _each(_each(_text)),
        "beside": _each(_text),
        "unread": _text,
        "loss": _or_none(_number),
        "lr": _each(_number),
        "groups": _each(_GROUP),
        "draws": _flag,
        "random": _text,
        "wrapper": _text,
        "wrapper_id": _COUNT,
        "synced": _or_none(_flag),
        "syncs": _each(_or_none(_flag)),
        "broadcast_buffers": _or_none(_flag),
        "group": _or_none(_whole(1)),
        "own": _named(_sketch),
        "gradients": _named(_FINGERPRINT),
        "without_gradient": _each(_text),
        "parameters": _named(_FINGERPRINT),
        "before": _named(_text),
        "buffers": _named(_buffer),
        "moments": _named(_text),
        "not_held": _each(_text),
    },
    "alarm": _TOLD,
    "note": _TOLD,
    "end": {"steps": _named(_COUNT), "forwards": _COUNT},
}
# what few steps have; and what an end has not where ranks hold parts of parameters and
# not all came to it
MAY_HAVE: dict[str, dict[str, Check]] = {
    "recording": {"tied": _named(_text)},
    "step": {
        "unpadded": _each(_each(_each(_text))),
        "reductions": _COUNT,
        "passes": _named(_each(_sketch)),
        "carried": _each(_text),
        "touched": _each(_text),
        "replaced": _named(_text),
        "unlabelled": _each(_each(_text)),
        "sharded": _flag,
        "not_finite": _flag,
        "in_eval": _COUNT,
        "dropout": _flag,
        "drawn": _named(_text),
        "also": _named(_text),
    },
    "end": {
        "also": _named(_text),
        "in_eval": _COUNT,
        "parameters": _named(_FINGERPRINT),
        "buffers": _named(_buffer),
    },
}


def fault_of(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a line of a known kind, in one line; None where nothing is."""
    kind = row["kind"]
    for key, check in FIELDS[kind].items():
        if key not in row:
            return f"{kind} without {key}"
        if not check(row[key]):
            return _wrong(row, key)
    for key, check in MAY_HAVE.get(kind, {}).items():
        if key in row and not check(row[key]):
            return _wrong(row, key)
    return None


def _wrong(row: Mapping[str, Any], key: str) -> str:
    return f"{row['kind']} with {key} = {shown(row[key])}"


def shown(value: Any) -> str:
    """A value of whatever size and depth, for a line that people read."""
    return SHOWN.repr(value)[:80]
