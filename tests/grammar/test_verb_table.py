"""The shipped verb table against the spelling rules, lists of facts and lemminflect."""

from pathlib import Path

import lemminflect
import pytest
import spelling

from minitrain.grammar.verbs import Verb, load_verbs

TABLE = Path(__file__).parents[2] / "data" / "verbs.csv"
VERBS = load_verbs(TABLE)
BY_LEMMA = {verb.lemma: verb for verb in VERBS}

# Irregular verbs that the table must contain.
_COMMON = """
be bear beat become begin bend bet bind bite bleed blow break breed bring build burst
buy catch choose cling come cost creep cut deal dig do draw drink drive eat fall feed
feel fight find flee fling fly forbid forget forgive freeze get give go grind grow hang
have hear hide hit hold hurt keep kneel know lay lead leave lend let lie light lose make
mean meet pay put quit read ride ring rise run say see seek sell send set sew shake shed
shine shoot show shrink shut sing sink sit sleep slide speak spend spin spit split
spread spring stand steal stick sting stink strike swear sweep swell swim swing take
teach tear tell think throw understand upset wake wear weave weep win wind withdraw
wring write
"""
COMMON_IRREGULAR = _COMMON.split()
# Their past ends in -ed, but not by the rule.
IRREGULAR_ED = {"bleed", "breed", "feed", "flee", "lead", "mislead", "shed", "speed"}

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


def test_common_irregular_verbs_are_there_and_irregular() -> None:
    for lemma in COMMON_IRREGULAR:
        verb = BY_LEMMA[lemma]
        regular = spelling.past(lemma)
        assert (verb.past, verb.past_participle) != (regular, regular), lemma


def test_spelling_rules_give_every_regular_form() -> None:
    regular = [verb for verb in VERBS if verb.past.endswith("ed")]
    assert len(regular) > 300
    wrong = {v.lemma for v in regular if spelling.past(v.lemma) != v.past}
    assert wrong == IRREGULAR_ED


@pytest.mark.parametrize("tag", ["VBZ", "VBD", "VBN", "VBG"])
def test_forms_agree_with_lemminflect(tag: str) -> None:
    differing = {
        (verb.lemma, tag): forms(verb)[tag]
        for verb in VERBS
        if forms(verb)[tag] not in lemminflect.getInflection(verb.lemma, tag=tag)
    }
    assert differing == {key: form for key, form in ACCEPTED.items() if key[1] == tag}
