"""Clauses: auxiliaries and word order by tense and person.

A ``Frame`` is a clause without its verb and complement. Frames depend only on the
``Kind`` of a verb, so verbs of the same kind share their frames.
"""

from collections.abc import Iterator
from typing import NamedTuple

from minitrain.grammar.phrases import PERSONS, VOCABULARY

# Indices of verb forms; NO_FORM if the auxiliary "be" is the verb itself.
BASE, THIRD, PAST, PARTICIPLE, ING, NO_FORM = range(6)


class Tense(NamedTuple):
    """Tense: first auxiliary, further ones (``rest``), ``form``: BASE to NO_FORM."""

    auxiliary: str
    rest: str
    form: int


TENSES = {
    "present_simple": Tense("do", "", BASE),
    "present_progressive": Tense("be", "", ING),
    "present_perfect": Tense("have", "", PARTICIPLE),
    "present_perfect_progressive": Tense("have", " been", ING),
    "past_simple": Tense("did", "", BASE),
    "past_progressive": Tense("was", "", ING),
    "past_perfect": Tense("had", "", PARTICIPLE),
    "past_perfect_progressive": Tense("had", " been", ING),
    "future_simple": Tense("will", "", BASE),
    "future_progressive": Tense("will", " be", ING),
    "future_perfect": Tense("will", " have", PARTICIPLE),
    "future_perfect_progressive": Tense("will", " have been", ING),
}
# "be" negates and inverts without "do"
_TENSES_OF_BE = TENSES | {
    "present_simple": Tense("be", "", NO_FORM),
    "past_simple": Tense("was", "", NO_FORM),
}

# Auxiliary by person; an absent person takes the entry of "other".
_AGREEMENT = {
    "do": {"third_singular": "does", "other": "do"},
    "be": {"first_singular": "am", "third_singular": "is", "other": "are"},
    "have": {"third_singular": "has", "other": "have"},
    "did": {"other": "did"},
    "was": {"first_singular": "was", "third_singular": "was", "other": "were"},
    "had": {"other": "had"},
    "will": {"other": "will"},
}
_ENCLITIC = {
    "am": "'m",
    "is": "'s",
    "are": "'re",
    "have": "'ve",
    "has": "'s",
    "had": "'d",
    "will": "'ll",
}


class Kind(NamedTuple):
    """Properties of a verb that determine its frames: the verb "be", verb classes."""

    be: bool = False
    stative: bool = False
    punctual: bool = False
    animal: bool = False


class Frame(NamedTuple):
    """Clause template: ``before`` + verb + complement + ``after``. ``form`` is the
    index of the verb form (BASE to NO_FORM); the other fields are grammatical labels.
    """

    before: str
    form: int
    after: str
    tense: str
    person: str
    polarity: str
    mood: str


def kind_of(lemma: str) -> Kind:
    """Return the kind of the verb ``lemma``; unknown lemmas are ordinary verbs."""
    classes = [lemma in VOCABULARY[f"{name} verbs"] for name in Kind._fields[1:]]
    return Kind(lemma == "be", *classes)


def build_frames(kind: Kind) -> dict[str, list[Frame]]:
    """Return all frames for verbs of ``kind``, by person, in a fixed order."""
    frames: dict[str, list[Frame]] = {person: [] for person in PERSONS}
    for tense, forms in (_TENSES_OF_BE if kind.be else TENSES).items():
        # skip "is knowing", "has been arriving", "been being" and "be being"
        if kind.stative and tense.endswith("progressive"):
            continue
        if kind.punctual and tense.endswith("_perfect_progressive"):
            continue
        if kind.be and forms.rest and tense.endswith("progressive"):
            continue
        for person in PERSONS:
            for subject in VOCABULARY[person]:
                if subject in VOCABULARY["animals"] and not kind.animal:
                    continue
                heads = _heads(subject, person, forms)
                for polarity, mood, before, form in heads:
                    labels = tense, person, polarity, mood
                    for after in _ends(kind, tense, polarity, mood):
                        frames[person].append(Frame(before, form, after, *labels))
    return frames


def _ends(kind: Kind, tense: str, polarity: str, mood: str) -> Iterator[str]:
    key = f"stative {tense}" if kind.stative else tense
    if polarity != "affirmative" or mood != "statement":
        key = f"{key}, other" if f"{key}, other" in VOCABULARY else key
    for adverbial in VOCABULARY[key]:
        if kind.punctual and adverbial.startswith("all "):
            continue
        space = " " if adverbial else ""
        yield f"{space}{adverbial}{'.' if mood == 'statement' else '?'}"


def _heads(
    subject: str, person: str, tense: Tense
) -> Iterator[tuple[str, str, str, int]]:
    agreement = _AGREEMENT[tense.auxiliary]
    finite = agreement.get(person, agreement["other"])
    named = subject[0].upper() + subject[1:]
    rest, form = tense.rest, tense.form
    # "am" has no contraction with "not"
    contracted = {"am": "", "will": "won't"}.get(finite, f"{finite}n't")

    if finite in ("do", "does", "did"):
        inflected = {"do": BASE, "does": THIRD, "did": PAST}[finite]
        yield "affirmative", "statement", named, inflected
    else:
        yield "affirmative", "statement", f"{named} {finite}{rest}", form
    short = _ENCLITIC.get(finite, "") if subject in VOCABULARY["pronouns"] else ""
    if short:
        yield "affirmative", "statement", f"{named}{short}{rest}", form
    if short and finite in ("am", "is", "are"):
        yield "negative", "statement", f"{named}{short} not{rest}", form

    yield "negative", "statement", f"{named} {finite} not{rest}", form
    asked = f"{finite.capitalize()} {subject}"
    yield "affirmative", "question", f"{asked}{rest}", form
    if contracted:
        yield "negative", "statement", f"{named} {contracted}{rest}", form
        asked = f"{contracted.capitalize()} {subject}"
        yield "negative", "question", f"{asked}{rest}", form
    else:
        yield "negative", "question", f"{asked} not{rest}", form
