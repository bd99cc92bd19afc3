"""Which rank a process is, by the variables that a launcher set."""

import pytest

from laconic.errors import ConfigError
from laconic.launching.environment import RankEnvironment, rank_environment

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
SLURM = {
    "SLURM_JOB_ID": "20017",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "node[01-04]",
    "SLURM_JOB_NODELIST": "node[00-04]",
}


def without(variables, *names):
    return {name: value for name, value in variables.items() if name not in names}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "", "WORLD_SIZE": ""},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "1"},
        {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"},
        without(SLURM, "SLURM_STEP_ID"),
        {**SLURM, "SLURM_NTASKS": "1"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_one_process_alone_is_no_rank(environ):
    assert rank_environment(environ) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, RankEnvironment(5, 8, 1, 4, "10.0.0.1", 29500)),
        (
            {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"},
            RankEnvironment(5, 8, 1, 4, "10.0.0.1", 29500, launcher_keeps_store=True),
        ),
        # As on Kubernetes, where each rank has a pod of its own.
        (BY_HAND, RankEnvironment(1, 2, 0, 1, "10.0.0.1", 29500)),
        # By hand on one machine.
        ({**BY_HAND, "MASTER_ADDR": "127.0.0.1"}, RankEnvironment(1, 2, 1, 2, "127.0.0.1", 29500)),
        ({**BY_HAND, "MASTER_ADDR": "localhost"}, RankEnvironment(1, 2, 1, 2, "localhost", 29500)),
        ({**BY_HAND, "LOCAL_RANK": "1"}, RankEnvironment(1, 2, 1, 2, "10.0.0.1", 29500)),
        # torchrun inside a SLURM step.
        ({**SLURM, **TORCHRUN}, RankEnvironment(5, 8, 1, 4, "10.0.0.1", 29500)),
    ],
)
def test_the_variables_of_torchrun_are_followed(environ, expected):
    assert rank_environment(environ) == expected


def test_what_was_read_comes_back_by_the_names_of_torchrun():
    here = rank_environment({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert rank_environment(here.variables()) == here


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, RankEnvironment(4, 7, 0, 2, "node01", 20017)),
        ({"SLURM_NODEID": "3"}, RankEnvironment(4, 7, 0, 1, "node01", 20017)),
        ({"SLURM_STEP_ID": "2"}, RankEnvironment(4, 7, 0, 2, "node01", 22035)),
        ({"SLURM_STEP_NUM_TASKS": "6"}, RankEnvironment(4, 6, 0, 2, "node01", 20017)),
        ({"SLURM_STEP_TASKS_PER_NODE": "7"}, RankEnvironment(4, 7, 0, 7, "node01", 20017)),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_NTASKS_PER_NODE": "3"},
            RankEnvironment(4, 7, 0, 3, "node01", 20017),
        ),
        ({"MASTER_ADDR": "head", "MASTER_PORT": "4000"}, RankEnvironment(4, 7, 0, 2, "head", 4000)),
        ({"SLURM_STEP_NODELIST": ""}, RankEnvironment(4, 7, 0, 2, "node00", 20017)),
    ],
)
def test_the_variables_of_slurm_are_followed_inside_a_step(changes, expected):
    assert rank_environment({**SLURM, **changes}) == expected


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu-3", "gpu-3"),
        ("a,b", "a"),
        ("node[01-04,07]", "node01"),
        ("node[7,9]", "node7"),
        ("rack[1-2]node[03-04],x", "rack1node03"),
        ("n[10-12].cluster.org,m1", "n10.cluster.org"),
    ],
)
def test_the_first_host_of_a_list_is_found(nodes, first):
    assert rank_environment({**SLURM, "SLURM_STEP_NODELIST": nodes}).address == first


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**TORCHRUN, "RANK": "8"}, r"RANK should be a whole number from 0 to 7 \(WORLD_SIZE is 8\), got '8'\. Start"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK should be .* got '-1'"),
        ({**TORCHRUN, "RANK": "one"}, "RANK should be .* got 'one'"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "WORLD_SIZE should be a whole number from 1 .* got '0'"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT should be a whole number from 1 to 65535, got '70000'"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, "LOCAL_RANK should be less than LOCAL_WORLD_SIZE, which is 4, got '4'"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE should be a whole number from 1 to 8, got '9'"),
        (without(TORCHRUN, "MASTER_ADDR"), "MASTER_ADDR is not set, although RANK is '5'. Start the ranks with"),
        (without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT is not set"),
        (without(TORCHRUN, "WORLD_SIZE"), "WORLD_SIZE is not set, although RANK is '5'"),
        (without(TORCHRUN, "RANK"), "RANK is not set, although WORLD_SIZE is '8'"),
        ({**SLURM, "SLURM_NTASKS": "many"}, "SLURM_NTASKS should be a whole number from 2 .* got 'many'"),
        ({**SLURM, "SLURM_PROCID": "7"}, "SLURM_PROCID should be a whole number from 0 to 6, got '7'"),
        (without(SLURM, "SLURM_LOCALID"), "SLURM_LOCALID is not set, although SLURM_STEP_ID is '0'"),
        ({**SLURM, "SLURM_STEP_NODELIST": "node[]"}, "SLURM_STEP_NODELIST should be a list .* Set MASTER_ADDR"),
        ({**SLURM, "SLURM_JOB_ID": ""}, "SLURM_JOB_ID should be a whole number, got ''. Set MASTER_PORT"),
        (without(SLURM, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"), "None of SLURM_STEP_NODELIST"),
    ],
)
def test_a_bad_variable_is_named_with_what_came_and_what_to_do(environ, message):
    with pytest.raises(ConfigError, match=message):
        rank_environment(environ)
