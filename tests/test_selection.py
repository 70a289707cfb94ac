"""Which tests `pytest --selected` keeps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rigs.checkout import TESTS
from rigs.selection import EQUAL_EVERYWHERE, STARTERS, choose_files, kinds_of

A, B, C, D, E = (Path(f"test_{name}.py") for name in "abcde")


def test_files_that_start_nothing_are_kept_and_the_smallest_of_each_kind() -> None:
    kinds = {
        A: frozenset[str](),
        B: frozenset({"broker"}),
        C: frozenset({"broker", "nats"}),
        D: frozenset({"broker"}),
        E: frozenset({"mutants"}),
    }
    assert choose_files(kinds, Counter({A: 1, B: 9, C: 1, D: 2, E: 1})) == {A, C, D}


def test_a_file_that_only_computes_has_no_kind() -> None:
    assert kinds_of(TESTS / "infer" / "test_mel.py") == frozenset()


def test_a_file_that_uses_a_broker_through_another_rig_has_that_kind() -> None:
    assert "broker" in kinds_of(TESTS / "mqtt" / "test_connection.py")


def test_every_kind_is_found_somewhere() -> None:
    found = [kinds_of(path) for path in TESTS.rglob("test_*.py")]
    assert frozenset().union(*found) == STARTERS | EQUAL_EVERYWHERE


def test_a_choice_is_made_of_all_tests() -> None:
    files = {path: kinds_of(path) for path in TESTS.rglob("test_*.py")}
    chosen = choose_files(files, Counter(files))
    started = frozenset().union(*(files[path] for path in chosen))
    assert started == STARTERS
    assert len([path for path in chosen if files[path]]) <= len(STARTERS)
