"""Reading of your own corpus, and byte-level tokenization.

Tokens are UTF-8 bytes, so any language works without training a vocabulary. Byte 0xFF,
which never occurs in UTF-8, marks both ends of a sample.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from minitrain.core.errors import UserError
from minitrain.core.files import nearest_file

VOCAB_SIZE = 256
BOUNDARY = b"\xff"

LongSamples = Literal["split", "cut"]


def read_corpus(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a dict with a ``text`` for each sample of a .txt or .jsonl file.

    A .txt file holds one sample per line, a .jsonl file objects with a non-blank
    ``text`` and further keys as labels. Blank lines are skipped. Raises UserError with
    file and line for any other content, and for a file without samples.
    """
    if not path.is_file():
        near = nearest_file(path)
        raise UserError(f"{path}: no such file; corpus.source must name one{near}")
    has_objects = path.suffix == ".jsonl"
    where, empty = str(path), True
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                where = f"{path}:{number}"
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                line = raw.decode(encoding).strip()
                if line:
                    empty = False
                    yield _parse_object(line, where) if has_objects else {"text": line}
    except (ValueError, RecursionError) as error:
        what = "JSON" if has_objects else "UTF-8 text"
        raise UserError(f"{where}: not valid {what}: {error}") from None
    if empty:
        raise UserError(f"{path}: holds no samples; at least one line is needed")


def _parse_object(line: str, where: str) -> dict[str, Any]:
    sample = json.loads(line)
    # the corpus stage must be able to write it: no NaN, no lone surrogate
    json.dumps(sample, allow_nan=False, ensure_ascii=False).encode("utf-8")
    text = sample.get("text") if isinstance(sample, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UserError(f'{where}: must be an object with a sample under "text"')
    return sample


def tokenize(text: str) -> bytes:
    """Return one token per byte: boundary, UTF-8 bytes of ``text``, boundary."""
    return BOUNDARY + text.encode("utf-8") + BOUNDARY


def fit_to_block(tokens: bytes, block_size: int, policy: LongSamples) -> list[bytes]:
    """Return ``tokens`` as samples of at most ``block_size`` tokens. ``policy``:
    ``"cut"`` keeps only the first block; ``"split"`` keeps all blocks, each starting
    with the previous one's last token: each token but the first is a target once.
    """
    if len(tokens) <= block_size:
        return [tokens]
    if policy == "cut":
        return [tokens[:block_size]]
    starts = range(0, len(tokens) - 1, block_size - 1)
    return [tokens[start : start + block_size] for start in starts]
