import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from one_line import refusal
from project import ROOT, run_python

from minitrain.core.errors import UserError
from minitrain.grammar.sentences import Sentence, _walks, generate_sentences
from minitrain.grammar.verbs import Verb, load_verbs

VERBS = load_verbs(ROOT / "data" / "verbs.csv")
BY_LEMMA = {verb.lemma: verb for verb in VERBS}
HUM = Verb("hum", "hums", "hummed", "hummed", "humming")

PRONOUNS = {
    "first_singular": "I",
    "second": "you",
    "third_singular": "she",
    "first_plural": "we",
    "third_plural": "they",
}
# tense: what "she" does, with the auxiliary of questions
OF_SHE = {
    "present_simple": "does go",
    "present_progressive": "is going",
    "present_perfect": "has gone",
    "present_perfect_progressive": "has been going",
    "past_simple": "did go",
    "past_progressive": "was going",
    "past_perfect": "had gone",
    "past_perfect_progressive": "had been going",
    "future_simple": "will go",
    "future_progressive": "will be going",
    "future_perfect": "will have gone",
    "future_perfect_progressive": "will have been going",
}
OF_I = {"does": "do", "is": "am", "has": "have"}
OF_OTHERS = {"does": "do", "is": "are", "has": "have", "was": "were"}
WITHOUT_AUXILIARY = {"do go": "go", "does go": "goes", "did go": "went"}
POLARITIES, MOODS = ("affirmative", "negative"), ("statement", "question")
LABELS = [*itertools.product(OF_SHE, PRONOUNS, POLARITIES, MOODS)]


def start_of(tense: str, person: str, polarity: str, mood: str) -> str:
    """Return the start of a sentence with "go" and a pronoun, by the rules."""
    finite, _, rest = OF_SHE[tense].partition(" ")
    if person != "third_singular":
        agreeing = OF_I if person == "first_singular" else OF_OTHERS
        finite = agreeing.get(finite, finite)
    subject, verb = PRONOUNS[person], f"{finite} {rest}"
    if (polarity, mood) == ("affirmative", "statement"):
        text = f"{subject} {WITHOUT_AUXILIARY.get(verb, verb)}"
    elif mood == "statement":
        text = f"{subject} {finite} not {rest}"
    elif polarity == "affirmative":
        text = f"{finite} {subject} {rest}"
    elif finite == "am":
        text = f"{finite} {subject} not {rest}"
    else:
        contracted = "won't" if finite == "will" else f"{finite}n't"
        text = f"{contracted} {subject} {rest}"
    return f"{text[0].upper()}{text[1:]} home"


def count_sentences(verbs: Sequence[Verb]) -> int:
    # duplicates included
    return sum(walk.size for walk in _walks(verbs))


def all_of(*verbs: Verb) -> list[Sentence]:
    """Return all sentences of ``verbs``, which have no duplicates."""
    return [*generate_sentences(verbs, 1, count_sentences(verbs))]


@pytest.fixture(scope="module")
def sample() -> list[Sentence]:
    return list(generate_sentences(VERBS, seed=5, count=12_000))


def test_every_tense_person_polarity_and_mood_of_a_verb() -> None:
    texts: dict[tuple[str, ...], list[str]] = {}
    for sentence in all_of(BY_LEMMA["go"]):
        assert sentence.text.endswith("." if sentence.mood == "statement" else "?")
        texts.setdefault(sentence[2:], []).append(sentence.text)
    assert {*texts} == {*LABELS}
    for labels in LABELS:
        start = start_of(*labels)
        assert any(text.startswith(start) for text in texts[labels]), start


def test_all_labels_and_verbs_occur_and_the_early_ones_are_a_mix(
    sample: list[Sentence],
) -> None:
    assert {sentence[2:] for sentence in sample} == {*LABELS}
    assert {sentence.verb for sentence in sample} == {*BY_LEMMA}
    early = sample[:1200]
    # 1200 draws from 609 verbs: about 609 * (1 - exp(-1200 / 609)) = 524 differ
    assert len({sentence.verb for sentence in early}) > 450
    # a fair share is 100 of each tense, 240 of each person, 600 of the others
    for label, least in (("tense", 50), ("person", 180), ("polarity", 400)):
        assert min(Counter(getattr(s, label) for s in early).values()) > least


def test_texts_are_distinct_short_and_determined_by_the_seed(
    sample: list[Sentence],
) -> None:
    assert len({sentence.text for sentence in sample}) == len(sample)
    assert max(len(sentence.text.encode()) for sentence in sample) <= 80
    other = {sentence.text for sentence in generate_sentences(VERBS, 6, 500)}
    assert len(other & {sentence.text for sentence in sample[:500]}) < 10


# lemma and sentence, by hand
EXPECTED = [
    ("be", "I'm kind every day."),
    ("be", "I'm not rude."),
    ("be", "Am I not careful?"),
    ("be", "They're being polite now."),
    ("be", "Weren't Ben and I polite?"),
    ("be", "He's been patient today."),
    ("have", "Doesn't she have lunch?"),
    ("have", "They'd had breakfast by noon."),
    ("do", "I don't do research."),
    ("go", "Didn't you and Sam go home?"),
    ("go", "She'll be going home tonight."),
    ("lie", "It lay in the sun yesterday."),
    ("lie", "Hasn't the cat been lying on the grass all day?"),
    ("put", "My wife and I will have been putting cups on the table for hours."),
    ("know", "I've known the truth for years."),
    ("win", "My sister is winning games."),
]
NEVER = [
    ("be", "I do not be kind."),
    ("be", "I amn't kind."),
    ("be", "I'm."),
    ("be", "She has been being kind."),
    ("have", "Has she lunch?"),
    ("put", "They put cups on the table."),
    ("know", "She is knowing the truth now."),
    ("know", "She knows the truth every day."),
    ("win", "She has been winning games for hours."),
    ("go", "She'dn't gone home."),
    ("go", "Anna's gone home."),
]


def test_sentences_that_are_made_and_that_are_never_made() -> None:
    lemmas = {lemma for lemma, _ in EXPECTED}
    made = {lemma: {one.text for one in all_of(BY_LEMMA[lemma])} for lemma in lemmas}
    assert [text for lemma, text in EXPECTED if text not in made[lemma]] == []
    assert [text for lemma, text in NEVER if text in made[lemma]] == []


def test_verbs_without_a_class() -> None:
    texts = {sentence.text for sentence in all_of(HUM)}
    assert {"She hums every day.", "They haven't hummed yet."} <= texts
    # "be" needs a complement
    bare = Verb("be", "is", "was", "been", "being")
    assert "She is kind every day." in {sentence.text for sentence in all_of(bare)}


def test_another_process_and_hash_seed_give_the_same(sample: list[Sentence]) -> None:
    program = (
        "import pathlib\n"
        "from minitrain.grammar.sentences import generate_sentences\n"
        "from minitrain.grammar.verbs import load_verbs\n"
        "verbs = load_verbs(pathlib.Path('data/verbs.csv'))\n"
        "print(*generate_sentences(verbs, 5, 2000), sep='\\n')\n"
    )
    done = run_python("-X", "utf8", "-c", program, PYTHONHASHSEED="1")
    assert done.stdout.splitlines() == [*map(str, sample[:2000])], done.stderr


def test_wrong_count_is_refused_and_the_right_one_reached() -> None:
    total = count_sentences([HUM])
    for asked in (-1, 0, total + 1):
        line = refusal(next, generate_sentences([HUM], 0, asked))
        assert line.startswith(f"corpus.num_sentences: {asked}, ")
        assert f"1 to {total}," in line
    assert len({sentence.text for sentence in all_of(HUM)}) == total


def test_texts_that_arise_twice_come_once_and_are_not_counted() -> None:
    # a verb that differs only in its participle shares all other sentences
    twin = replace(HUM, lemma="thrum", present_participle="humming")
    both = count_sentences([HUM, twin])
    single = [{sentence.text for sentence in all_of(verb)} for verb in (HUM, twin)]
    distinct = len(single[0] | single[1])
    assert distinct < both
    stream = generate_sentences([HUM, twin], 0, both)
    taken = [sentence.text for sentence in itertools.islice(stream, distinct)]
    assert len(set(taken)) == distinct
    with pytest.raises(UserError, match=f"1 to {distinct},"):
        next(stream)
