"""Rates over a run: one file per schedule, one line each in SCHEDULES.

schedule = parse_schedule("linear(slope=5.0, most=128.0, epochs=300)")
"""

from collections.abc import Mapping

from laconic.comm.schedules.adaptive import Adaptive
from laconic.comm.schedules.base import Costs, Line, Measured, RateContext, Schedule
from laconic.comm.schedules.budget import Budget
from laconic.comm.schedules.constant import Constant
from laconic.comm.schedules.exponential import Exponential
from laconic.comm.schedules.linear import Linear
from laconic.comm.schedules.step import Step
from laconic.comm.schedules.switch import Switch
from laconic.specs import parse_spec

SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "linear": Linear,
    "exponential": Exponential,
    "step": Step,
    "switch": Switch,
    "adaptive": Adaptive,
    "budget": Budget,
}


def parse_schedule(text: str) -> Schedule:
    """Returns the schedule that a text such as "constant(value=8.0)" names."""
    return parse_spec(text, SCHEDULES, family="schedule")


__all__ = ["SCHEDULES", "Costs", "Line", "Measured", "RateContext", "Schedule", "parse_schedule"]
