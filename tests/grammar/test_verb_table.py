"""The shipped verb table: its size, its order, and its forms by lemminflect."""

from pathlib import Path

import lemminflect
import pytest

from minitrain.grammar.verbs import Verb, load_verbs

TABLE = Path(__file__).parents[2] / "data" / "verbs.csv"
VERBS = load_verbs(TABLE)
BY_LEMMA = {verb.lemma: verb for verb in VERBS}

# (lemma, tag): the table's form is right and lemminflect knows only another.
ACCEPTED = {
    # broadcast stays as it is, like cast; broadcasted is rare
    ("broadcast", "VBD"): "broadcast",
    # American participle of fit is fit
    ("fit", "VBN"): "fit",
    # forecast stays as it is, like cast
    ("forecast", "VBD"): "forecast",
    # American leaned, leaped, misspelled, smelled, spelled; British forms in -t
    ("lean", "VBN"): "leaned",
    ("leap", "VBD"): "leaped",
    ("leap", "VBN"): "leaped",
    ("misspell", "VBN"): "misspelled",
    ("smell", "VBN"): "smelled",
    ("spell", "VBN"): "spelled",
    # to lie on the grass: lay, lain; lied is the verb of untruth
    ("lie", "VBN"): "lain",
    # lit is the common participle, lighted the older one
    ("light", "VBN"): "lit",
    # mishear goes like hear
    ("mishear", "VBD"): "misheard",
    ("mishear", "VBN"): "misheard",
    # American participles of mow and saw are regular
    ("mow", "VBN"): "mowed",
    ("saw", "VBN"): "sawed",
    # American participle of prove: proven as well as proved
    ("prove", "VBN"): "proven",
    # lemminflect has no -ing form of sting at all
    ("sting", "VBG"): "stinging",
    # sublet goes like let
    ("sublet", "VBD"): "sublet",
    ("sublet", "VBN"): "sublet",
}


def forms(verb: Verb) -> dict[str, str]:
    return {
        "VBZ": verb.third_person,
        "VBD": verb.past,
        "VBN": verb.past_participle,
        "VBG": verb.present_participle,
    }


def test_table_holds_at_least_400_verbs_in_alphabetical_order() -> None:
    assert len(VERBS) >= 400
    assert list(BY_LEMMA) == sorted(BY_LEMMA)


@pytest.mark.parametrize("tag", ["VBZ", "VBD", "VBN", "VBG"])
def test_forms_agree_with_lemminflect(tag: str) -> None:
    differing = {
        (verb.lemma, tag): forms(verb)[tag]
        for verb in VERBS
        if forms(verb)[tag] not in lemminflect.getInflection(verb.lemma, tag=tag)
    }
    assert differing == {key: form for key, form in ACCEPTED.items() if key[1] == tag}
