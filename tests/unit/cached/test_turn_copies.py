import pytest
import torch

from laconic.cached.turns import TurnCopies


def part_of(parts, whole):
    """Takes the first two rows, into the room of the turn before if there is one; says whether there was."""
    rooms = []

    def make(room):
        rooms.append(room)
        room = torch.empty_like(whole) if room is None else room
        room[:2] = whole[:2]
        return room[:2], room

    return parts.of(whole, make), rooms


def test_a_part_is_made_once_a_turn_and_written_over_in_the_next():
    parts, whole = TurnCopies(), torch.arange(6.0).reshape(3, 2)
    first, rooms = part_of(parts, whole)
    again, no_rooms = part_of(parts, whole)
    assert again is first
    assert parts.whole_of(first) is whole
    assert rooms == [None]
    assert no_rooms == []
    parts.end_turn()
    assert parts.whole_of(first) is first
    second, _ = part_of(parts, whole)
    assert second.data_ptr() == first.data_ptr()
    assert parts.whole_of(second) is whole


@pytest.mark.parametrize("changed", ["part", "whole"])
def test_what_was_changed_in_place_is_no_part_and_its_room_is_not_taken(changed):
    parts, whole = TurnCopies(), torch.arange(6.0).reshape(3, 2)
    first, _ = part_of(parts, whole)
    (first if changed == "part" else whole).add_(1.0)
    assert parts.whole_of(first) is first
    second, rooms = part_of(parts, whole)
    assert rooms == [None]
    assert second.data_ptr() != first.data_ptr()
    second.add_(1.0)
    parts.end_turn()
    _, rooms = part_of(parts, whole)
    assert rooms == [None]
