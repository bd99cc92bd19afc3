"""Frames are taken for what they are, or refused."""

import numpy as np
import pytest
import torch

from laconic.comm.codecs import MessageKey
from laconic.comm.frames import HEADER_BYTES, add_header, take_header
from laconic.errors import CommunicationError

KEY = MessageKey(0, 7, 2, 1, 0, "backward", 3, 0, np.arange(5))
PACKET = torch.arange(40, dtype=torch.uint8)
PLACE = r"layer 1, backward, from rank 3 to rank 0, in epoch 7"


def other(**changes) -> MessageKey:
    return MessageKey(**{**vars(KEY), **changes})


def test_a_packet_comes_out_of_its_frame():
    frame = add_header(PACKET, KEY, 4)
    assert len(frame) == HEADER_BYTES + 40
    assert torch.equal(take_header(frame, KEY, 4), PACKET)


@pytest.mark.parametrize("place", range(HEADER_BYTES + 40))
def test_any_byte_that_is_altered_is_noticed(place):
    frame = add_header(PACKET, KEY, 4)
    frame[place] ^= 1
    with pytest.raises(CommunicationError, match=rf"{PLACE}\): its checksum does not fit"):
        take_header(frame, KEY, 4)


@pytest.mark.parametrize("length", [0, 3, HEADER_BYTES, HEADER_BYTES + 39])
def test_a_short_frame_is_refused(length):
    with pytest.raises(CommunicationError, match=PLACE):
        take_header(add_header(PACKET, KEY, 4)[:length], KEY, 4)


def test_a_long_frame_is_refused():
    frame = torch.cat([add_header(PACKET, KEY, 4), torch.zeros(3, dtype=torch.uint8)])
    with pytest.raises(CommunicationError, match=PLACE):
        take_header(frame, KEY, 4)


@pytest.mark.parametrize("packet", [PACKET[:39], torch.cat([PACKET, PACKET[:1]])])
def test_a_sound_frame_of_another_length_than_agreed_on_is_refused(packet):
    assert torch.equal(take_header(add_header(PACKET, KEY, 4), KEY, 4, 40), PACKET)
    with pytest.raises(CommunicationError, match=rf"{PLACE}\): it has {len(packet)} bytes, not 40"):
        take_header(add_header(packet, KEY, 4), KEY, 4, 40)


@pytest.mark.parametrize(
    ("key", "version", "told"),
    [
        (other(epoch=6), 4, "its epoch is 6, not 7"),
        (other(step=1), 4, "its step is 1, not 2"),
        (other(layer=2), 4, "its layer is 2, not 1"),
        (other(call=1), 4, "its call is 1, not 0"),
        (other(direction="forward"), 4, "its direction is 0, not 1"),
        (other(node_ids=np.arange(6)), 4, "its number of rows is 6, not 5"),
        (other(sender=2), 4, "its sender is 2, not 3"),
        (other(receiver=1), 4, "its receiver is 1, not 0"),
        (KEY, 5, "its plan version is 5, not 4"),
    ],
)
def test_a_message_from_elsewhere_is_refused_with_the_difference(key, version, told):
    with pytest.raises(CommunicationError, match=rf"{PLACE}\): {told}"):
        take_header(add_header(PACKET, key, version), KEY, 4)


def test_a_message_from_far_away_is_refused_too():
    with pytest.raises(CommunicationError, match=rf"{PLACE}\): its checksum does not fit"):
        take_header(add_header(PACKET, other(epoch=4000, step=70), 4), KEY, 4)
