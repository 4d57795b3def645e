from dataclasses import astuple
from pathlib import Path

import lemminflect
from one_line import refusal
from project import ROOT

from minitrain.grammar.verbs import Verb, load_verbs

HEADER = "lemma,third_person,past,past_participle,present_participle"
GO = "go,goes,went,gone,going"
EAT = "eat,eats,ate,eaten,eating"


def write(folder: Path, data: bytes | str) -> Path:
    path = folder / "table.csv"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_reads_the_same_verb_however_written(tmp_path: Path) -> None:
    for data in (
        f"\ufeff{HEADER}\n{GO}\n",
        f"{HEADER}\r\n{GO}\r\n",
        f"{HEADER}\n\n{GO}\n\n",
        f'{HEADER}\n"go",goes,"went",gone,going',
        "past,lemma,third_person,present_participle,past_participle,objects\n"
        "went,go,goes,going,gone,none\n",
    ):
        expected = (Verb("go", "goes", "went", "gone", "going"),)
        assert load_verbs(write(tmp_path, data)) == expected
    row = "co-sauté,co-sautés,co-sautéed,co-sautéed,co-sautéing,food"
    (verb,) = load_verbs(write(tmp_path, f"{HEADER},objects\n{row}\n"))
    assert (verb.lemma, verb.past, verb.objects) == ("co-sauté", "co-sautéed", "food")


BAD = [
    ("", ":1", ["absent", "lemma"]),
    (f"{HEADER}\n{GO}\n".encode() + b"caf\xe9,x,x,x,x\n", ":3", ["0xe9", "UTF-8"]),
    ("lemma,third_person,past,present_participle\n", ":1", ["past_participle"]),
    (f"{HEADER},object\n{GO},none\n", ":1", ["'object'"]),
    (f"{HEADER},past\n{GO},went\n", ":1", ["each once"]),
    (f"{HEADER}\n", ":1", ["no verb follows"]),
    (f"{HEADER}\n{GO}\neat,eats,ate\n", ":3", ["too few", "eat, eats, ate"]),
    (f"{HEADER}\n{GO}\neat,eats,,eaten,eating\n", ":3", ["past:", "''"]),
    (f"{HEADER}\nGo,goes,went,gone,going\n", ":2", ["lemma", "'Go'"]),
    (f"{HEADER}\n{GO}\n\neat, eats,ate,eaten,eating\n", ":4", ["' eats'"]),
    (f"{HEADER}\nget,gets,got,got/gotten,getting\n", ":2", ["got/gotten"]),
    (f"{HEADER},objects\n{GO},foot\n", ":2", ["column objects", "'foot'", "food"]),
    (f"{HEADER}\n{GO}\n{EAT}\n\n{GO}\n", ":5", ["'go'", "each verb once"]),
    (f'{HEADER}\n{GO}\n"eat,eats\nate,eaten,e\n', ":4", ["not valid CSV"]),
    (f'{HEADER}\n"go\nes",goes,went,gone,going\n{EAT}\n', ":3", [r"'go\nes'"]),
]


def test_bad_table_gives_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone.csv"
    assert refusal(load_verbs, gone).startswith(f"{gone}: no such file, allowed")
    for data, line, words in BAD:
        path = write(tmp_path, data)
        message = refusal(load_verbs, path)
        assert message.startswith(f"{path}{line}: ")
        for word in ("allowed", *words):
            assert word in message


# of third person, past, past participle, present participle
TAGS = ("VBZ", "VBD", "VBN", "VBG")
# (lemma, tag): the table's form is right and lemminflect knows only another.
ACCEPTED = {
    # like cast, let and hear; the regular forms are rare
    ("broadcast", "VBD"): "broadcast",
    ("forecast", "VBD"): "forecast",
    ("mishear", "VBD"): "misheard",
    ("mishear", "VBN"): "misheard",
    ("sublet", "VBD"): "sublet",
    ("sublet", "VBN"): "sublet",
    # American; British forms end in -t, -ted or -n, or, of prove and light, -ed
    ("fit", "VBN"): "fit",
    ("lean", "VBN"): "leaned",
    ("leap", "VBD"): "leaped",
    ("leap", "VBN"): "leaped",
    ("light", "VBN"): "lit",
    ("misspell", "VBN"): "misspelled",
    ("mow", "VBN"): "mowed",
    ("prove", "VBN"): "proven",
    ("saw", "VBN"): "sawed",
    ("smell", "VBN"): "smelled",
    ("spell", "VBN"): "spelled",
    # to lie on the grass: lay, lain; lied is the verb of untruth
    ("lie", "VBN"): "lain",
    # lemminflect has no -ing form of sting at all
    ("sting", "VBG"): "stinging",
}


def test_our_table_agrees_with_lemminflect() -> None:
    verbs = load_verbs(ROOT / "data" / "verbs.csv")
    lemmas = [verb.lemma for verb in verbs]
    assert len(lemmas) >= 400
    assert lemmas == sorted(lemmas)
    differing = {
        (verb.lemma, tag): form
        for verb in verbs
        for tag, form in zip(TAGS, astuple(verb)[1:5], strict=True)
        if form not in lemminflect.getInflection(verb.lemma, tag=tag)
    }
    assert differing == ACCEPTED
