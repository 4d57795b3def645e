"""Vocabulary besides the verb forms: subjects, complements, adverbials, verb classes.

Any combination makes sense: nouns used as subjects are never objects, and adverbials
belong to a tense. Complements are plural, mass or definite, so that they fit habits and
single acts alike.
"""

from pathlib import Path
from typing import NamedTuple

PERSONS = ("first_singular", "second", "third_singular", "first_plural", "third_plural")


class Subject(NamedTuple):
    """Subject with its grammatical person. A ``pronoun`` may take a contracted
    auxiliary; an ``animal`` is combined with ``ANIMAL_VERBS`` only.
    """

    text: str
    person: str
    pronoun: bool = False
    animal: bool = False


def _subjects() -> tuple[Subject, ...]:
    nouns = {
        "second": "you two|you and Sam",
        "third_singular": "Anna|Carlos|José|Maya|Zoë|the teacher|the doctor|"
        "the nurse|the farmer|my sister|our uncle|her father|the girl|a student",
        "first_plural": "Ben and I|my wife and I|my friends and I",
        "third_plural": "Anna and Omar|the children|the students|the workers|"
        "the girls|my friends|our cousins|her parents|two women",
    }
    pronouns = ("I", "you", "he", "she", "it", "we", "they")
    persons = (*PERSONS[:2], *PERSONS[2:3] * 3, *PERSONS[3:])
    found = [
        Subject(text, person, pronoun=True, animal=text == "it")
        for text, person in zip(pronouns, persons, strict=True)
    ]
    for person, texts in nouns.items():
        found += [Subject(text, person) for text in texts.split("|")]
    for text in ("the dog", "the cat"):
        found.append(Subject(text, "third_singular", animal=True))
        found.append(Subject(text + "s", "third_plural", animal=True))
    return tuple(found)


SUBJECTS = _subjects()

# Complements by the class named in the verb table, separated by bars; an empty one
# stands for no complement.
_TABLE = Path(__file__).with_name("complements.txt").read_text(encoding="utf-8")
COMPLEMENTS = {
    name: tuple(text.strip().split("|"))
    for name, text in (line.split(":") for line in _TABLE.splitlines())
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANIMAL_VERBS = _words(
    """
    bite bleed catch chase chew climb crawl creep devour doze eat escape fall
    flee follow hop jump leap lie limp pant relax rest run scramble see shiver
    sit sleep slink slip sneak sneeze snore spring swallow swim tremble trip
    trot tumble wander yawn
    """
)

# Verbs of state, not used in progressive tenses.
STATIVE_VERBS = _words(
    """
    believe cost deserve doubt foresee hate intend know like love mean need owe
    own possess prefer remember respect trust understand value want
    """
)

# Verbs of instants, not used in perfect progressive tenses.
PUNCTUAL_VERBS = _words(
    """
    accept admit agree arise arrive awake begin behold burst buy cancel choose
    decide discover fail find finish forbid forget forgive forsake leave lose
    meet mislay mistake notice oversleep promise quit refuse reject rise start
    stop undergo upset wake win
    """
)

# Five per tense, so that all tenses have equal weight. The first list is for
# affirmative statements; in simple tenses an adverbial is required, since verbs such as
# "put" do not show their tense. An optional second list is for negatives and questions,
# in which the auxiliary shows the tense.
ADVERBIALS: dict[str, tuple[str, ...]] = {
    "present_simple": (
        "every day|every week|on Mondays|on weekends|in summer",
        "|every day|every week|on Mondays|on weekends",
    ),
    "present_progressive": ("|now|right now|today|this week",),
    "present_perfect": (
        "|already|today|this week|recently",
        "|yet|today|this week|recently",
    ),
    "present_perfect_progressive": ("|all day|for hours|since noon|lately",),
    "past_simple": (
        "yesterday|last night|last week|in June|a week ago",
        "|yesterday|last night|last week|in June",
    ),
    "past_progressive": ("|at noon|just then|yesterday|all morning",),
    "past_perfect": ("|before|by then|by noon|by midnight",),
    "past_perfect_progressive": ("|all day|for hours|since dawn|until then",),
    "future_simple": ("|tomorrow|tonight|soon|next week",),
    "future_progressive": ("|tomorrow|tonight|at noon|all week",),
    "future_perfect": ("|by then|by noon|by Friday|by tonight",),
    "future_perfect_progressive": ("|all day|for hours|for a week|since dawn",),
}

STATIVE_ADVERBIALS: dict[str, tuple[str, ...]] = {
    "present_simple": (
        "now|today|these days|nowadays|as always",
        "|now|today|these days|nowadays",
    ),
    "present_perfect": ("|for years|for a long time|since May|until now",),
    "past_simple": (
        "then|back then|at first|last year|in those days",
        "|then|back then|at first|last year",
    ),
    "past_perfect": ("|for years|for a long time|since May|until then",),
    "future_simple": ("|soon|one day|by then|next year",),
    "future_perfect": ("|for years|for a long time|by then|by May",),
}
