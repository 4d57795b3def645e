"""Seeded sampling of distinct sentences from the grammar.

For each verb and person the grammar defines a finite list of sentences: frames times
complements. Every draw takes the next sentence of a random list, which is visited from
a random start with a stride of about the golden ratio of its length. Verbs and persons
therefore stay balanced until a list is used up. Only ``random.Random.random`` is used,
whose sequence is the same in every Python version.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from hashlib import blake2b
from typing import NamedTuple

from minitrain.core.errors import UserError
from minitrain.grammar.clauses import Frame, Kind, build_frames, kind_of
from minitrain.grammar.phrases import COMPLEMENTS, PERSONS
from minitrain.grammar.verbs import Verb

# Bytes of each text's hash. A collision only drops a sentence; with a million sentences
# it occurs once in a hundred thousand corpora.
_HASH_BYTES = 7


class Sentence(NamedTuple):
    """Sentence with its labels; ``verb`` is the lemma."""

    text: str
    verb: str
    tense: str
    person: str
    polarity: str
    mood: str


class _Walk:
    # visits the sentences of one verb and person in a scattered order

    def __init__(self, verb: Verb, frames: list[Frame]) -> None:
        # by index: clauses.BASE, THIRD, PAST, PARTICIPLE, ING, NO_FORM
        self.forms = (*(f" {form}" for form in astuple(verb)[:5]), "")
        self.lemma = verb.lemma
        self.complements = _complements(verb)
        self.frames = frames
        self.size = self.remaining = len(frames) * len(self.complements)
        self.position = 0
        self.stride = _golden_stride(self.size)


def generate_sentences(
    verbs: Sequence[Verb], seed: int, count: int
) -> Iterator[Sentence]:
    """Yield ``count`` sentences with distinct texts, determined by ``seed``. Raises
    UserError if ``count`` is not from 1 to the grammar's size, and at the end if
    duplicate texts leave too few.
    """
    walks = _walks(verbs)
    available = sum(walk.size for walk in walks)
    if not 1 <= count <= available:
        raise _wrong_count(count, available)
    draw = random.Random(seed).random
    for walk in walks:
        walk.position = int(draw() * walk.size)
    seen: set[int] = set()
    while walks:
        index = int(draw() * len(walks))
        walk = walks[index]
        frame, complement = divmod(walk.position, len(walk.complements))
        walk.position = (walk.position + walk.stride) % walk.size
        walk.remaining -= 1
        if not walk.remaining:
            walks[index] = walks[-1]
            walks.pop()
        before, form, after, tense, person, polarity, mood = walk.frames[frame]
        text = before + walk.forms[form] + walk.complements[complement] + after
        digest = blake2b(text.encode(), digest_size=_HASH_BYTES).digest()
        key = int.from_bytes(digest, "big")
        if key not in seen:
            seen.add(key)
            yield Sentence(text, walk.lemma, tense, person, polarity, mood)
            if len(seen) == count:
                return
    raise _wrong_count(count, len(seen))


def _walks(verbs: Sequence[Verb]) -> list[_Walk]:
    frames: dict[Kind, dict[str, list[Frame]]] = {}
    walks = []
    for verb in verbs:
        kind = kind_of(verb.lemma)
        if kind not in frames:
            frames[kind] = build_frames(kind)
        walks += [_Walk(verb, frames[kind][person]) for person in PERSONS]
    return walks


def _complements(verb: Verb) -> tuple[str, ...]:
    # "be" needs a complement: a table without classes still gets "I am kind"
    bare = verb.lemma == "be" and verb.objects == "none"
    phrases = COMPLEMENTS["behavior" if bare else verb.objects]
    return tuple(f" {phrase}" if phrase else "" for phrase in phrases)


def _golden_stride(size: int) -> int:
    # a coprime stride visits every position before repeating one
    stride = max(1, size * 618 // 1000)
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride


def _wrong_count(count: int, available: int) -> UserError:
    return UserError(
        f"corpus.num_sentences: {count}, allowed: 1 to {available}, "
        "the distinct sentences that the grammar makes of this verb table"
    )
