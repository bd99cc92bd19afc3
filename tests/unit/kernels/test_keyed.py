"""Keys: equal parts give equal keys, anything else does not, and bits look random."""

import numpy as np

from laconic.kernels.keyed import drop_threshold, fold_key, mix64


def test_a_key_depends_on_every_part_and_their_order():
    keys = {
        int(fold_key(*parts)) for parts in [(1, 2, 3), (1, 3, 2), (1, 2), (1, 2, 3, 0), (0, 1, 2, 3), (2**63, 2, 3)]
    }
    assert len(keys) == 6
    assert fold_key(1, 2, 3) == fold_key(1, 2, 3)


def test_negative_seeds_are_keys_too():
    assert fold_key(-1) == fold_key(2**64 - 1)


def test_the_key_of_given_parts_never_changes():
    """A recorded value: a change here would change the results of every seeded run."""
    assert int(fold_key(0, 1, 2)) == 17650578182555822980


def test_each_bit_is_set_half_of_the_time_and_flips_with_the_counter():
    key = fold_key(7)
    words = np.array([mix64(key, np.uint64(counter)) for counter in range(4000)], dtype=np.uint64)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1)
    # 4,000 coins for each of 64 bits: five standard deviations.
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5 * 0.5 / 4000**0.5
    assert np.abs((bits[1:] != bits[:-1]).mean(axis=0) - 0.5).max() < 5 * 0.5 / 4000**0.5


def test_thresholds_span_all_probabilities():
    assert drop_threshold(0.0) == 0
    assert drop_threshold(0.5) == 2**31
    assert drop_threshold(1.0) == 2**32
