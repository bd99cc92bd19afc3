"""What ranks say before they fail, told once."""

from laconic.launching.last_words import last_words_variable, leave_last_words, read_last_words, tell_once


def test_what_a_rank_leaves_is_found_by_its_number(tmp_path):
    assert leave_last_words("No such file.\nLook there.", last_words_variable(tmp_path, 12))
    assert leave_last_words("Other.", last_words_variable(tmp_path, 3))
    assert read_last_words(tmp_path) == {12: "No such file.\nLook there.", 3: "Other."}


def test_where_nobody_would_tell_it_a_rank_is_told_so(tmp_path):
    assert not leave_last_words("No such file.", {})
    assert not leave_last_words("No such file.", last_words_variable(tmp_path / "gone", 0))


def test_what_all_say_is_told_once():
    assert tell_once(dict.fromkeys(range(4), "No such file.")) == ["No such file."]


def test_ranks_that_only_repeat_another_add_nothing():
    failed = "Rank 1 failed: DataError: No such file."
    assert tell_once({0: failed, 1: "No such file.", 2: failed}) == ["Rank 1: No such file."]
    assert tell_once({0: "No such file.", 1: "Rank 0 failed: DataError: No such file."}) == ["No such file."]


def test_ranks_that_say_something_of_their_own_are_named():
    words = {0: "Timed out.", 1: "Full disk.", 2: "Full disk."}
    assert tell_once(words) == ["Timed out.", "Ranks 1, 2: Full disk."]
    assert tell_once({}) == []
