"""Words that were replaced by the terms of the field stay replaced, in code, comments, messages and docs.

Each pattern finds a word in its old sense and nothing else. What is left today is in tests/artifacts/old-words.txt, a
list that only shrinks: a new use fails, and so does an entry whose file no longer has the word. To drop entries that
are done, run `python tests/unit/test_vocabulary.py`; it adds none.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
LIST = ROOT / "tests" / "artifacts" / "old-words.txt"
FOLDERS = ("weft", "tests", "tools", "benchmarks", "examples", "docs")
FILES = ("README.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml", "conftest.py", "pyproject.toml")
SUFFIXES = {".py", ".pyi", ".md", ".toml", ".yml", ".json"}
# This file, a page made of docstrings, records of the past, and data that is no text of the project.
LEFT_OUT = (
    "tests/unit/test_vocabulary.py",
    "docs/modules.md",
    "tests/artifacts/",
    "tests/golden/",
    "benchmarks/results/",
)

# Old word -> (pattern, what is used instead).
WORDS = {
    "sink": (r"(?<![a-zA-Z])sinks?(?![a-zA-Z])", "root"),
    "dear": (r"\bdear(er|est)?\b", "expensive, recompute_cost"),
    "heavy": (r"(?<![a-z])heavy(?![a-z-])", "expensive"),
    "mend": (r"\b[Mm]end(s|ed|ing)?\b", "fix; messages say Fix:"),
    "manieth": (r"\bmanieth\b", "strided, every n-th"),
    "company": (r"\bcompany\b", "fusion context"),
    "room": (
        r"\b(the|these|other|all|of|between) rooms\b|\b(the|this|each|every|own|one) room\b(?! for)",
        "package, module",
    ),
    "house": (r"\b(the|this|of) house\b", "architecture"),
    "turn": (r"\b(one|each|every|last|first|all|per|this|a) turns?\b|\bTurn\b", "iteration; StreamLock"),
    "walk": (
        r"(?<!os\.)(?<!ast\.)(?<!random[ _-])(?<![a-z\"])[Ww]alk(s|ed|ing)?(?![a-z])",
        "traversal, visit, iterate",
    ),
    "held": (r"\bheld\(|\bcell\.held\b|\bheld results?\b|\bweft\.cli\.held\b", "retained"),
    "is_fold": (r"\bis_fold\b|\bfolds? over\b", "reduction"),
    "gpu_* modules": (r"\bgpu_(picks|lanes|turned|walk|long|chunks)\b", "the names of weft/kernels/gpu"),
    "conv_pairs": (r"\bconv_pairs\b", "winograd"),
    "devices with blocks": (r"\bdevices? with blocks\b", "GPU; features.workgroups"),
    "by the side": (r"\bby the side\b", "asynchronous"),
    "side by side": (r"\b[Ss]ide by side\b(?!, as)|\bside_by_side\b", "adjacent, contiguous, concurrently"),
    "nobody's": (r"\bnobody's\b", "padding; unused"),
    "without a thought": (r"\bwithout a thought\b", "below the threshold"),
    "of a kind": (r"\bof a kind\b", "of one type"),
    "hand over": (r"\bhand(s|ed|ing)? over\b", "pass"),
    "participles": (r"\bdef _?(told|begun|asked|taken|wanted|given)\b", "verbs"),
    "make": (
        r"graph\.(layout|primitives) import [^\n]*\bmake\b|\b(primitives|layout)\.make\b",
        "make_canonical (weft.graph.layout), make_node (weft.graph.primitives)",
    ),
    "evaluate": (
        r"\bevaluate_nodes\b|\brealize import [^\n]*\bevaluate\b|\b(primitive|definition)\.evaluate\b",
        "realize, realize_nodes; run_reference for NumPy",
    ),
    "order, a kind": (r"Primitive\(\"\w+\", \"order\"|kind == \"order\"", "after"),
    "neighbours, a primitive": (r"[\"']neighbours[\"']", "gather_neighbors"),
    "place": (
        r"\bdef _?place\(|\bbuild\.place\b|\b\w*PLACES\b|\boperand\.place\b",
        "a place is a slot with an offset (weft.plan.plan.Place); else position, index, namespace, locate, embed_slice",
    ),
    "docstring: name": (r"\A\"\"\"[a-z_]+: ", "a sentence; the file has its name already"),
    "FEW, MANY": (r"\b_?(FEW|MANY|SMALL)\b", "a name that says what is counted"),
}
# Participles as names of functions in weft: what they do, or what they return, is said by a verb or a noun.
REGULAR_VERBS = {"seed", "need", "feed", "embed", "exceed", "spread", "searchsorted"}
PARTICIPLES = {
    "told", "begun", "asked", "taken", "wanted", "found", "given", "made", "kept", "left", "lost", "seen", "laid",
    "built", "held", "drawn", "grown", "frozen", "written", "chosen", "broken", "known", "shown", "thrown", "hidden",
}  # fmt: skip
KEPT = {
    "applied": "weft.optim averages and the callback EMA, public",
    "transposed": "weft.Adjacency, public",
    "predicted": "a compiled function, public",
    "cached": "weft.nn.utils.parametrize, torch's name",
    "_restored": "named in pickles",
    "_uninitialized": "named in pickles",
    "_lost": "named in pickles",
    "_enabled": "a property of grad modes, overridden as a method",
    "_streamed": "its name is in the names of compiled steps",
    "left": "the left operand",
}
PATTERNS = {word: re.compile(pattern) for word, (pattern, _) in WORDS.items()}


def files() -> list[Path]:
    """The text of the project."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found += [ROOT / name for name in FILES]
    return sorted(path for path in found if not path.relative_to(ROOT).as_posix().startswith(LEFT_OUT))


def uses() -> set[tuple[str, str]]:
    """(old word, file) of everything that is left."""
    found = set()
    for path in files():
        text = path.read_text()
        found |= {(word, path.relative_to(ROOT).as_posix()) for word, one in PATTERNS.items() if one.search(text)}
    return found


def listed() -> set[tuple[str, str]]:
    return {(word, file) for word, _, file in (line.partition(" | ") for line in LIST.read_text().splitlines())}


@pytest.fixture(scope="module")
def found() -> set[tuple[str, str]]:
    return uses()


def _text(pairs: set[tuple[str, str]]) -> str:
    return "".join(f"{word} | {file}\n" for word, file in sorted(pairs))


def test_old_words_do_not_come_back(found):
    new = found - listed()
    lines = [f"{file}: '{word}' is now: {WORDS[word][1]}" for word, file in sorted(new)]
    assert not new, "\n".join(lines)


def test_the_list_of_old_words_only_names_what_is_left(found):
    done = listed() - found
    assert not done, "no longer needed, remove from tests/artifacts/old-words.txt:\n" + _text(done)


def test_no_function_is_named_by_a_participle():
    """In weft; the checks of weft.cli.retained are named after what retains a result."""
    found = {}
    for path in sorted((ROOT / "weft").rglob("*.py")):
        if "retained" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not any("property" in ast.dump(d) for d in node.decorator_list):
                name = node.name.strip("_")
                ends = name.endswith("ed") and "_" not in name and name not in REGULAR_VERBS
                if ends or name in PARTICIPLES:
                    found[node.name] = f"{path.relative_to(ROOT)}:{node.lineno}"
    assert {name: where for name, where in found.items() if name not in KEPT} == {}
    assert KEPT.keys() <= found.keys(), "remove what is gone"


@pytest.mark.parametrize(
    ("word", "old", "other"),
    [
        ("make", "from weft.graph.primitives import PRIMITIVES, make", "from weft.graph.primitives import make_node"),
        ("place", "PLACES = 3", "in place; PLACEHOLDER; place_of(node)"),
        ("docstring: name", '"""fuse: divide a program.', 'x = """fuse: y'),
        ("sink", "a sink of the region", "sinking"),
        ("room", "the rooms of the house", "area, rooms, price; no more room for it"),
        ("house", "the rooms of the house", "flat or house"),
        ("turn", "one turn of the loop", "in turn; it returns"),
        ("walk", "walk(plan.steps)", "os.walk(path), a random walk, random_walk"),
        ("held", "cell.held", "the lock is held"),
        ("heavy", "expand_heavy(node)", "a heavy-tailed distribution"),
        ("FEW, MANY", "FEW = 8", "MANY_ROWS"),
    ],
)
def test_patterns_find_the_old_sense_only(word, old, other):
    assert PATTERNS[word].search(old) and not PATTERNS[word].search(other)


if __name__ == "__main__":
    left = uses()
    before = listed() if LIST.exists() else left
    LIST.write_text(_text(left & before))
    print(f"{len(left & before)} entries; {len(before - left)} were done, {len(left - before)} are new and not listed")
