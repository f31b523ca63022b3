"""Prompts like the plays that the demo model was trained on."""

from __future__ import annotations

import random

SPEAKERS = [
    "HAMLET",
    "HORATIO",
    "OPHELIA",
    "MACBETH",
    "BANQUO",
    "ROMEO",
    "JULIET",
    "MERCUTIO",
    "LEAR",
    "CORDELIA",
    "KENT",
    "OTHELLO",
    "IAGO",
    "PORTIA",
    "BRUTUS",
    "CASSIUS",
    "ANTONY",
    "CLEOPATRA",
    "PROSPERO",
    "MIRANDA",
    "ARIEL",
    "FALSTAFF",
    "HOTSPUR",
    "ROSALIND",
    "ORLANDO",
    "VIOLA",
    "MALVOLIO",
    "PUCK",
    "OBERON",
    "TITANIA",
    "BEATRICE",
    "BENEDICK",
    "SHYLOCK",
    "DUKE",
    "QUEEN",
]

LINES = (
    "But soft, what light through yonder window breaks?",
    "The quality of mercy is not strain'd;",
    "It droppeth as the gentle rain from heaven",
    "Upon the place beneath.",
    "Now is the winter of our discontent",
    "Made glorious summer by this sun of York;",
    "If music be the food of love, play on;",
    "Give me excess of it, that, surfeiting,",
    "The appetite may sicken, and so die.",
    "Tomorrow, and tomorrow, and tomorrow,",
    "Creeps in this petty pace from day to day,",
    "To the last syllable of recorded time;",
    "Friends, Romans, countrymen, lend me your ears;",
    "I come to bury Caesar, not to praise him.",
    "The evil that men do lives after them,",
    "The good is oft interred with their bones;",
    "All the world's a stage,",
    "And all the men and women merely players;",
    "They have their exits and their entrances,",
    "And one man in his time plays many parts,",
    "O that this too too solid flesh would melt,",
    "Thaw, and resolve itself into a dew!",
    "How weary, stale, flat, and unprofitable",
    "Seem to me all the uses of this world!",
    "Our revels now are ended. These our actors,",
    "As I foretold you, were all spirits, and",
    "Are melted into air, into thin air;",
    "We are such stuff",
    "As dreams are made on, and our little life",
    "Is rounded with a sleep.",
    "I know a bank where the wild thyme blows,",
    "Where oxlips and the nodding violet grows;",
    "Once more unto the breach, dear friends, once more;",
    "Or close the wall up with our English dead!",
    "This above all: to thine own self be true,",
    "And it must follow, as the night the day,",
    "Thou canst not then be false to any man.",
    "The lunatic, the lover, and the poet",
    "Are of imagination all compact.",
    "Good night, good night! Parting is such sweet sorrow",
    "That I shall say good night till it be morrow.",
    "Blow, winds, and crack your cheeks! Rage, blow!",
)
"""From the plays, which are in the public domain."""


def opening(rng: random.Random) -> str:
    """A speaker, alone or with a first line."""
    line = rng.choice(LINES) + "\n" if rng.random() < 0.7 else ""
    return f"{rng.choice(SPEAKERS)}.\n{line}"


def scene(rng: random.Random, num_chars: int) -> str:
    """About `num_chars` characters of speeches, ending with a speaker who is about to talk."""
    speeches = ["ACT II. SCENE II."]
    while sum(map(len, speeches)) < num_chars:
        first = rng.randrange(len(LINES) - 4)
        lines = LINES[first : first + rng.randint(2, 4)]
        speeches.append("\n".join((f"{rng.choice(SPEAKERS)}.", *lines)))
    return "\n\n".join([*speeches, f"{rng.choice(SPEAKERS)}.\n"])
