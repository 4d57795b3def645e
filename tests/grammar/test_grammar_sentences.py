"""The stream of sentences: agreement, labels, order, distinctness, limits."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from one_line import refusal
from project import ROOT, run_python

from minitrain.core.errors import UserError
from minitrain.grammar.phrases import PERSONS
from minitrain.grammar.sentences import Sentence, _walks, generate_sentences
from minitrain.grammar.verbs import Verb, load_verbs

VERBS = load_verbs(ROOT / "data" / "verbs.csv")
BY_LEMMA = {verb.lemma: verb for verb in VERBS}
HUM = Verb("hum", "hums", "hummed", "hummed", "humming")

# tense and subject: all that may stand before an adverbial
BY_HAND = {
    "present_simple, I": "I hum|I do not hum|I don't hum|Do I hum|Don't I hum",
    "present_simple, she": "She hums|She does not hum|She doesn't hum|Does she hum|"
    "Doesn't she hum",
    "present_progressive, I": "I am humming|I'm humming|I'm not humming|"
    "I am not humming|Am I humming|Am I not humming",
    "present_progressive, she": "She is humming|She's humming|She's not humming|"
    "She is not humming|She isn't humming|Is she humming|Isn't she humming",
    "present_progressive, they": "They are humming|They're humming|"
    "They're not humming|They are not humming|They aren't humming|"
    "Are they humming|Aren't they humming",
    "present_perfect, she": "She has hummed|She's hummed|She has not hummed|"
    "She hasn't hummed|Has she hummed|Hasn't she hummed",
    "present_perfect, we": "We have hummed|We've hummed|We have not hummed|"
    "We haven't hummed|Have we hummed|Haven't we hummed",
    "present_perfect_progressive, they": "They have been humming|"
    "They've been humming|They have not been humming|They haven't been humming|"
    "Have they been humming|Haven't they been humming",
    "past_simple, they": "They hummed|They did not hum|They didn't hum|Did they hum|"
    "Didn't they hum",
    "past_progressive, I": "I was humming|I was not humming|I wasn't humming|"
    "Was I humming|Wasn't I humming",
    "past_progressive, we": "We were humming|We were not humming|"
    "We weren't humming|Were we humming|Weren't we humming",
    "past_perfect, she": "She had hummed|She'd hummed|She had not hummed|"
    "She hadn't hummed|Had she hummed|Hadn't she hummed",
    "past_perfect_progressive, I": "I had been humming|I'd been humming|"
    "I had not been humming|I hadn't been humming|Had I been humming|"
    "Hadn't I been humming",
    "future_simple, they": "They will hum|They'll hum|They will not hum|"
    "They won't hum|Will they hum|Won't they hum",
    "future_progressive, she": "She will be humming|She'll be humming|"
    "She will not be humming|She won't be humming|Will she be humming|"
    "Won't she be humming",
    "future_perfect, we": "We will have hummed|We'll have hummed|"
    "We will not have hummed|We won't have hummed|Will we have hummed|"
    "Won't we have hummed",
    "future_perfect_progressive, I": "I will have been humming|"
    "I'll have been humming|I will not have been humming|"
    "I won't have been humming|Will I have been humming|Won't I have been humming",
}
PERSON = {
    "I": "first_singular",
    "she": "third_singular",
    "we": "first_plural",
    "they": "third_plural",
}
TENSES = {key.partition(",")[0] for key in BY_HAND}


def count_sentences(verbs: Sequence[Verb]) -> int:
    """How many the grammar has, twins included."""
    return sum(walk.size for walk in _walks(verbs))


def all_of(*verbs: Verb) -> list[Sentence]:
    """All sentences of ``verbs``, which have no twins."""
    return [*generate_sentences(verbs, 1, count_sentences(verbs))]


@pytest.fixture(scope="module")
def sample() -> list[Sentence]:
    return list(generate_sentences(VERBS, seed=5, count=12_000))


def test_mood_and_polarity_are_those_of_the_text(sample: list[Sentence]) -> None:
    for text, _, _, _, polarity, mood in sample:
        assert text[0].isupper()
        assert text[-1] == {"statement": ".", "question": "?"}[mood]
        has_not = "n't" in text or " not " in text
        assert has_not == (polarity == "negative"), text


@pytest.mark.parametrize("key", BY_HAND)
def test_forms_of_a_tense_by_hand(key: str) -> None:
    tense, _, subject = key.partition(", ")
    found = set()
    for sentence in all_of(HUM):
        words = re.findall(r"\w+", sentence.text)[:3]
        own = subject in words or subject.capitalize() in words
        if own and sentence[2:4] == (tense, PERSON[subject]):
            start = re.match(r".*?hum(s|med|ming)?\b", sentence.text)
            assert start is not None
            found.add(start[0])
    assert found == {*BY_HAND[key].split("|")}


def test_all_labels_occur_in_all_combinations(sample: list[Sentence]) -> None:
    combinations = itertools.product(
        TENSES, PERSONS, ("affirmative", "negative"), ("statement", "question")
    )
    assert {sentence[2:] for sentence in sample} == set(combinations)
    assert {sentence.verb for sentence in sample} == set(BY_LEMMA)


def test_early_sentences_are_a_mix(sample: list[Sentence]) -> None:
    early = sample[:1200]
    assert count_sentences(VERBS) > 10_000_000
    # 1200 draws from 609 verbs: about 609 * (1 - exp(-1200 / 609)) = 524 differ
    assert len({sentence.verb for sentence in early}) > 450
    # a fair share is 100 of each tense, 240 of each person
    assert min(Counter(s.tense for s in early).values()) > 50
    assert min(Counter(s.person for s in early).values()) > 180
    assert min(Counter(s.polarity for s in early).values()) > 400
    assert min(Counter(s.mood for s in early).values()) > 350


def test_texts_are_distinct_and_short(sample: list[Sentence]) -> None:
    assert len({sentence.text for sentence in sample}) == len(sample)
    lengths = [len(sentence.text.encode()) for sentence in sample]
    assert max(lengths) <= 80
    assert sum(length > 62 for length in lengths) < 0.01 * len(lengths)
    contracted = sum("'" in sentence.text for sentence in sample)
    assert 0.2 * len(sample) < contracted < 0.6 * len(sample)


def test_same_seed_same_sentences_other_seed_others(sample: list[Sentence]) -> None:
    assert list(generate_sentences(VERBS, 5, 500)) == sample[:500]
    other = {sentence.text for sentence in generate_sentences(VERBS, 6, 500)}
    assert len(other & {sentence.text for sentence in sample[:500]}) < 10


# lemma and sentence, by hand
EXPECTED = [
    ("be", "I'm kind every day."),
    ("be", "I'm not rude."),
    ("be", "Am I not careful?"),
    ("be", "You two aren't patient."),
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
    made = {
        lemma: {sentence.text for sentence in all_of(BY_LEMMA[lemma])}
        for lemma in {lemma for lemma, _ in EXPECTED}
    }
    assert [text for lemma, text in EXPECTED if text not in made[lemma]] == []
    assert [text for lemma, text in NEVER if text in made[lemma]] == []


def test_verbs_without_a_class() -> None:
    texts = {sentence.text for sentence in all_of(HUM)}
    assert {"She hums every day.", "They haven't hummed yet."} <= texts
    # be says nothing alone
    bare = Verb("be", "is", "was", "been", "being")
    assert "She is kind every day." in {sentence.text for sentence in all_of(bare)}


def test_hash_randomization_changes_nothing(sample: list[Sentence]) -> None:
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
        line = refusal(generate_sentences, [HUM], 0, asked)
        assert line.startswith(f"corpus.num_sentences: {asked}, ")
        assert f"1 to {total}," in line
    assert len({sentence.text for sentence in all_of(HUM)}) == total


def test_texts_that_arise_twice_come_once_and_are_not_counted() -> None:
    # a twin that differs in its participle alone shares all other sentences
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
