"""Reading a verb table: what is taken, and the one line for each way to be wrong."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minitrain.core.errors import UserError
from minitrain.grammar.verbs import Verb, load_verbs

HEADER = "lemma,third_person,past,past_participle,present_participle"
GO = "go,goes,went,gone,going"
EAT = "eat,eats,ate,eaten,eating"


def write(folder: Path, data: bytes | str) -> Path:
    path = folder / "table.csv"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(f"\ufeff{HEADER}\n{GO}\n", id="byte order mark"),
        pytest.param(f"{HEADER}\r\n{GO}\r\n", id="carriage returns"),
        pytest.param(f"{HEADER}\n\n{GO}\n\n", id="blank lines"),
        pytest.param(
            f'{HEADER}\n"go",goes,"went",gone,going', id="quotes, no last end"
        ),
        pytest.param(
            "past,lemma,third_person,present_participle,past_participle,objects\n"
            "went,go,goes,going,gone,none\n",
            id="other order of columns",
        ),
    ],
)
def test_reads_the_same_verb_however_written(tmp_path: Path, data: str) -> None:
    expected = (Verb("go", "goes", "went", "gone", "going"),)
    assert load_verbs(write(tmp_path, data)) == expected


def test_reads_objects_hyphens_and_letters_beyond_ascii(tmp_path: Path) -> None:
    row = "co-sauté,co-sautés,co-sautéed,co-sautéed,co-sautéing,food"
    (verb,) = load_verbs(write(tmp_path, f"{HEADER},objects\n{row}\n"))
    assert (verb.lemma, verb.past, verb.objects) == ("co-sauté", "co-sautéed", "food")


BAD = {
    "empty file": ("", "", ["empty", "lemma"]),
    "only a byte order mark": (b"\xef\xbb\xbf", "", ["empty"]),
    "not UTF-8": (
        f"{HEADER}\n{GO}\n".encode() + b"caf\xe9,x,x,x,x\n",
        ":3",
        ["0xe9", "UTF-8"],
    ),
    "absent column": (
        "lemma,third_person,past,present_participle\n",
        ":1",
        ["column past_participle is absent", "'past'"],
    ),
    "unknown column": (f"{HEADER},object\n{GO},none\n", ":1", ["'object' is unknown"]),
    "column twice": (f"{HEADER},past\n{GO},went\n", ":1", ["'past' stands twice"]),
    "no rows": (f"{HEADER}\n", ":1", ["no verb follows"]),
    "too few fields": (
        f"{HEADER}\n{GO}\neat,eats,ate\n",
        ":3",
        ["3 fields", "eat,eats,ate", "allowed: 5"],
    ),
    "empty cell": (
        f"{HEADER}\n{GO}\neat,eats,,eaten,eating\n",
        ":3",
        ["past:", "empty"],
    ),
    "upper case": (f"{HEADER}\nGo,goes,went,gone,going\n", ":2", ["lemma", "'Go'"]),
    "blank in a cell": (
        f"{HEADER}\n{GO}\n\neat, eats,ate,eaten,eating\n",
        ":4",
        ["third_person", "' eats'"],
    ),
    "two forms": (f"{HEADER}\nget,gets,got,got/gotten,getting\n", ":2", ["got/gotten"]),
    "unknown objects": (
        f"{HEADER},objects\n{GO},cheeses\n",
        ":2",
        ["column objects", "'cheeses'", "food"],
    ),
    "duplicate verb": (
        f"{HEADER}\n{GO}\n{EAT}\n\n{GO}\n",
        ":5",
        ["'go'", "line 2", "each verb once"],
    ),
    "open quote": (
        f'{HEADER}\n{GO}\n"eat,eats\nate,eaten,e\n',
        ":3",
        ["not valid CSV"],
    ),
    "cell over two lines": (
        f'{HEADER}\n"go\nes",goes,went,gone,going\n{EAT}\n',
        ":2",
        ["lemma", r"'go\nes'"],
    ),
}


def test_bad_table_gives_one_line(tmp_path: Path) -> None:
    for name, (data, line, words) in BAD.items():
        path = write(tmp_path, data)
        with pytest.raises(UserError) as caught:
            load_verbs(path)
        message = str(caught.value)
        assert message.startswith(f"{path}{line}: "), name
        assert len(message.splitlines()) == 1, name
        for word in ("allowed", *words):
            assert word in message, name


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.csv: no such file, allowed"):
        load_verbs(tmp_path / "nowhere.csv")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tail=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet='go,"\n\r\0- é', max_size=40).map(str.encode),
    )
)
def test_any_bytes_give_verbs_or_one_line(tmp_path: Path, tail: bytes) -> None:
    path = write(tmp_path, f"{HEADER}\n{GO}\n".encode() + tail)
    try:
        outcome = load_verbs(path)[0].lemma
    except UserError as error:
        outcome = str(error)
    assert outcome == "go" or outcome.startswith(f"{path}:")
    assert len(outcome.splitlines()) == 1
