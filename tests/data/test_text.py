from pathlib import Path

from one_line import refusal

from minitrain.core.files import write_jsonl
from minitrain.data.text import fit_to_block, read_corpus, tokenize


def texts(folder: Path, data: bytes, name: str = "mine.txt") -> list[str]:
    (folder / name).write_bytes(data)
    return [sample["text"] for sample in read_corpus(folder / name)]


def test_lines_of_text_are_samples(tmp_path: Path) -> None:
    data = "One.\n\n  Zwölf Boxkämpfer.  \r\n \t\n三".encode()
    assert texts(tmp_path, data) == ["One.", "Zwölf Boxkämpfer.", "三"]
    # a byte order mark is no part of the first
    assert texts(tmp_path, b"\xef\xbb\xbfOne.\nTwo.\n") == ["One.", "Two."]
    data = b'\xef\xbb\xbf{"text": "One."}\n'
    assert texts(tmp_path, data, "mine.jsonl") == ["One."]


def test_objects_keep_their_labels(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"text": "One.", "mood": "question"}\n\n{"text": " a b "}\n')
    assert list(read_corpus(path)) == [
        {"text": "One.", "mood": "question"},
        {"text": " a b "},
    ]


BAD = [
    ("a.txt", b"", ": holds no samples"),
    ("a.txt", b"\xef\xbb\xbf\n  \n\t\n", ": holds no samples"),
    ("a.txt", b"ok\n\xe9t\xe9\n", ":2: not valid UTF-8 text: "),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', ":2: not valid JSON: "),
    ("a.jsonl", b'\n\n["a"]\n', ":3: must be an object"),
    ("a.jsonl", b'{"txt": "a"}\n', ":1: must be an object"),
    ("a.jsonl", b'{"text": 5}\n', ":1: must be an object"),
    ("a.jsonl", b'{"text": " "}\n', ":1: must be an object"),
    ("a.jsonl", b'{"text": "\\ud800"}\n', ":1: not valid JSON: "),
    ("a.jsonl", b'{"text": "a", "b": NaN}\n', ":1: not valid JSON: "),
    ("gone.txt", None, ": no such file; corpus.source must name one"),
]


def test_file_that_is_refused(tmp_path: Path) -> None:
    for name, data, line in BAD:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        # as the corpus stage does: samples must be writable
        rows = read_corpus(tmp_path / name)
        found = refusal(write_jsonl, tmp_path / "corpus.jsonl", rows)
        assert found.startswith(f"{tmp_path / name}{line}")
        assert not (tmp_path / "corpus.jsonl").exists()


def test_tokens_are_bytes_between_boundaries() -> None:
    # ö is 0xC3 0xB6 in UTF-8
    assert list(tokenize("hö")) == [255, 104, 195, 182, 255]


def test_split_by_hand() -> None:
    # targets are bcd, efg, hi: each piece starts with the last token of the one before
    assert fit_to_block(b"abcdefghi", 4, "split") == [b"abcd", b"defg", b"ghi"]
    # no piece is without a target
    assert fit_to_block(b"abcdefg", 4, "split") == [b"abcd", b"defg"]
