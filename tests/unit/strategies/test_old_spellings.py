"""Strategies as they were written before `gradient_only` was split: refused with what to write, or translated."""

import pytest

from laconic.errors import ConfigError
from laconic.strategies import parse_strategy, resumed_spec

# The old spelling, the present one.
SAME = {
    "gradient_only(repartition_every=5)": "gradient_only(refresh_every=5)",
    "gradient_only(remember=True, keep=rows, repartition_every=5)": "gradient_only(keep=rows, refresh_every=5)",
    "gradient_only(codec=quantize(bits=2), sync_every=1)": "gradient_only(codec=quantize(bits=2))",
    "gradient_only(repartition_every=2, schedule=random, hops=2)": "gradient_only(refresh_every=2)",
    "gradient_only(remember=False)": "grappa",
    "gradient_only(remember=False, variable=1, repartition_every=5)": "grappa(variable=1, repartition_every=5)",
    "gradient_only(remember=False, gradual=True, chunks=8, gradients=powersgd(rank=2))": "grappa(chunks=8, "
    "gradients=powersgd(rank=2))",
    "gradient_only(remember=False, normalise=whole)": "grappa(correction=degree)",
    "gradient_only(remember=False, variable=1, correction=sweep, normalise=whole)": "grappa(variable=1, "
    "correction=sweep)",
    "gradient_only(remember=False, partitioner=\"given(path='a b')\")": "grappa(partitioner=given(path='a b'))",
}
GONE = {
    "gradient_only(sync_every=4)": ("gradient_only", "Ranks no longer take steps apart"),
    "gradient_only(remember=False, variable=1, sync_every=4)": ("grappa(variable=1)", "gradients=bf16"),
    "gradient_only(chunks=8)": ("gradient_only", "laconic partition ... --parts N"),
    "gradient_only(combination=mean)": ("gradient_only", "Historical neighbours do without combination"),
}
# What was refused before as well.
WISHED = {
    "gradient_only(variable=1)": "grappa(variable=1)",
    "gradient_only(correction=node)": "grappa(correction=node)",
}
ALL = {**SAME, **WISHED, **{old: now for old, (now, _) in GONE.items()}}


@pytest.mark.parametrize(("old", "now"), ALL.items())
def test_an_old_spelling_is_refused_with_the_present_one(old, now):
    with pytest.raises(ConfigError) as caught:
        parse_strategy(old)
    assert str(caught.value).endswith(f"Write {now}.")
    parse_strategy(now)


@pytest.mark.parametrize(("old", "now"), SAME.items())
def test_a_run_of_an_old_spelling_that_means_the_same_now_is_translated(old, now):
    assert resumed_spec(old) == now
    assert resumed_spec(now) == now


@pytest.mark.parametrize(("old", "now", "why"), [(old, *rest) for old, rest in GONE.items()])
def test_a_run_of_a_setting_that_is_gone_is_refused_with_the_reason(old, now, why):
    for ask in (parse_strategy, resumed_spec):
        with pytest.raises(ConfigError) as caught:
            ask(old)
        assert why in str(caught.value)
    assert f"Start a new run with {now}; `laconic predict` still takes this one." in str(caught.value)


@pytest.mark.parametrize("spec", ["single", "full_graph", "gradient_only", "gradient_only(refresh_every=3)", "grappa"])
def test_resumed_specs_are_let_alone(spec):
    parse_strategy(spec)
    assert resumed_spec(spec) == spec
