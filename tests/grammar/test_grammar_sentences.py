"""Generated sentences: agreement, labels, order, distinctness, limits."""

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

# Persons of subjects, written for this test, independent of the code.
PERSON_OF = {
    "first_singular": "I",
    "second": "you|you two|you and Sam",
    "third_singular": "he|she|it|Anna|Carlos|José|Maya|Zoë|the teacher|the doctor|"
    "the nurse|the farmer|my sister|our uncle|her father|the girl|a student|the dog|"
    "the cat",
    "first_plural": "we|Ben and I|my wife and I|my friends and I",
    "third_plural": "they|Anna and Omar|the children|the students|the workers|"
    "the girls|my friends|our cousins|her parents|two women|the dogs|the cats",
}
PERSON = {
    subject: person for person, row in PERSON_OF.items() for subject in row.split("|")
}
PRONOUNS = {"i", "you", "he", "she", "it", "we", "they"}
# tense: words between subject and verb (* agrees), form of the verb
PATTERNS = {
    "present_simple": ("do*", "lemma"),
    "present_progressive": ("be*", "present_participle"),
    "present_perfect": ("have*", "past_participle"),
    "present_perfect_progressive": ("have* been", "present_participle"),
    "past_simple": ("did", "lemma"),
    "past_progressive": ("was*", "present_participle"),
    "past_perfect": ("had", "past_participle"),
    "past_perfect_progressive": ("had been", "present_participle"),
    "future_simple": ("will", "lemma"),
    "future_progressive": ("will be", "present_participle"),
    "future_perfect": ("will have", "past_participle"),
    "future_perfect_progressive": ("will have been", "present_participle"),
}
AGREES = {
    "do*": ("do", "does", "do"),
    "be*": ("am", "is", "are"),
    "have*": ("have", "has", "have"),
    "was*": ("was", "was", "were"),
}


def auxiliaries(tense: str, person: str, lemma: str) -> list[str]:
    words = PATTERNS[tense][0].split()
    if lemma == "be" and tense in ("present_simple", "past_simple"):
        words = ["be*" if tense == "present_simple" else "was*"]
    column = {"first_singular": 0, "third_singular": 1}.get(person, 2)
    first = AGREES[words[0]][column] if words[0] in AGREES else words[0]
    return [first, *words[1:]]


def check(sentence: Sentence) -> None:
    """Parse the text using only its labels and the table; AssertionError if wrong."""
    text, lemma, tense, person, polarity, mood = sentence
    verb = BY_LEMMA[lemma]
    finite, *rest = auxiliaries(tense, person, lemma)
    form = getattr(verb, PATTERNS[tense][1])
    plain = polarity == "affirmative" and mood == "statement"
    if finite in ("do", "does", "did") and plain:
        finite = {"do": verb.lemma, "does": verb.third_person, "did": verb.past}[finite]
        form = ""
    elif lemma == "be" and not rest and tense.endswith("simple"):
        form = ""
    assert text[0].isupper()
    assert text[-1] == {"statement": ".", "question": "?"}[mood]

    words = spelled_out(text[:-1].split(" "), finite)
    if mood == "question":
        assert words.pop(0).lower() == finite
        has_not = take_not(words)
        subject = take_subject(words)
    else:
        subject = take_subject(words)
        assert words.pop(0) == finite
        has_not = False
    has_not |= take_not(words)
    assert PERSON[subject] == person
    assert has_not == (polarity == "negative")
    expected = [*rest, form] if form else rest
    assert words[: len(expected)] == expected
    assert "not" not in words


def spelled_out(words: list[str], finite: str) -> list[str]:
    """Expand contractions; 's stands for is or has, depending on the tense."""
    found: list[str] = []
    for word in words:
        stem, mark, tail = word.partition("'")
        if not mark:
            found.append(word)
        elif tail == "t":
            stem = stem.lower().removesuffix("n")
            found += ["will" if stem == "wo" else stem, "not"]
        else:
            full = {"m": "am", "re": "are", "ve": "have", "d": "had", "ll": "will"}
            assert stem.lower() in PRONOUNS
            assert tail in full or finite in ("is", "has")
            found += [stem, full.get(tail, finite)]
    return found


def take_not(words: list[str]) -> bool:
    found = words[:1] == ["not"]
    del words[: int(found)]
    return found


def take_subject(words: list[str]) -> str:
    for length in (4, 3, 2, 1):
        phrase = " ".join(words[:length])
        for subject in (phrase, phrase[:1].lower() + phrase[1:]):
            if subject in PERSON:
                del words[:length]
                return subject
    raise AssertionError(f"no subject at {words}")


def count_sentences(verbs: Sequence[Verb]) -> int:
    """Return the number of sentences in the grammar, duplicates included."""
    return sum(walk.size for walk in _walks(verbs))


def all_of(*verbs: Verb) -> list[Sentence]:
    """Return all sentences of ``verbs``, which have no duplicates."""
    return [*generate_sentences(verbs, 1, count_sentences(verbs))]


@pytest.fixture(scope="module")
def sample() -> list[Sentence]:
    return list(generate_sentences(VERBS, seed=5, count=12_000))


def test_every_sentence_agrees_with_its_labels(sample: list[Sentence]) -> None:
    for sentence in sample:
        try:
            check(sentence)
        except AssertionError as error:
            raise AssertionError(f"{sentence}: {error}") from error


@pytest.mark.parametrize(
    "wrong",
    [
        ("She walk home every day.", "present_simple", "third_singular", "affirmative"),
        ("They was walking home.", "past_progressive", "third_plural", "affirmative"),
        ("Ben and I has walked.", "present_perfect", "first_plural", "affirmative"),
        ("He don't walk.", "present_simple", "third_singular", "negative"),
        ("He'll walk tomorrow.", "future_simple", "third_singular", "negative"),
        ("They've walk.", "present_perfect", "third_plural", "affirmative"),
    ],
    ids=lambda wrong: wrong[0],
)
def test_the_agreement_check_sees_mistakes(wrong: tuple[str, str, str, str]) -> None:
    text, tense, person, polarity = wrong
    with pytest.raises(AssertionError):
        check(Sentence(text, "walk", tense, person, polarity, "statement"))


def test_all_labels_occur_in_all_combinations(sample: list[Sentence]) -> None:
    combinations = itertools.product(
        PATTERNS, PERSON_OF, ("affirmative", "negative"), ("statement", "question")
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
        lemma: {sentence.text: sentence for sentence in all_of(BY_LEMMA[lemma])}
        for lemma in {lemma for lemma, _ in EXPECTED}
    }
    for lemma, text in EXPECTED:
        # with its labels
        check(made[lemma][text])
    assert [text for lemma, text in NEVER if text in made[lemma]] == []


def test_verbs_without_a_class() -> None:
    texts = {sentence.text for sentence in all_of(HUM)}
    assert {"She hums every day.", "They haven't hummed yet."} <= texts
    # "be" needs a complement
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
