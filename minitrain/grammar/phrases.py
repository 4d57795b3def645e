"""Vocabulary without verb forms: subjects, complements, adverbials, verb classes.

Any combination makes sense: nouns used as subjects are never objects, and adverbials
belong to a tense. Complements are plural, mass or definite, so that they fit habits and
single acts alike. In ``vocabulary.txt``:

- ``PERSON`` has the subjects of a person. Pronouns may take a contracted auxiliary;
  animals are combined with animal verbs only.
- ``stative verbs`` are not used in progressive tenses; ``punctual verbs``, of instants,
  not in perfect progressive tenses.
- ``TENSE`` and ``stative TENSE`` have five adverbials each, so that all tenses have
  equal weight. In simple tenses an adverbial is required in affirmative statements,
  since verbs such as "put" do not show their tense. ``TENSE, other`` is for negatives
  and questions, in which the auxiliary shows it.
"""

from pathlib import Path

PERSONS = ("first_singular", "second", "third_singular", "first_plural", "third_plural")


def _read(name: str) -> dict[str, tuple[str, ...]]:
    # lines are "key: phrase|phrase"; an empty phrase stands for none
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    lines = [line.split(":") for line in text.splitlines() if line[0] != "#"]
    return {key: tuple(phrases.strip().split("|")) for key, phrases in lines}


# phrases by class; the verb table names the class of each verb
COMPLEMENTS = _read("complements.txt")
VOCABULARY = _read("vocabulary.txt")
