"""laconic.launch: ranks as threads; what decides between threads and processes; refusals."""

import copy
import signal
import threading

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCN

import laconic
from laconic.errors import ConfigError
from laconic.launching import function as home_of_launch
from laconic.launching.function import launch


def double(number):
    return 2 * number


def train(graph, model):
    session = laconic.join(graph)
    model = session.attach(copy.deepcopy(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _, shard in session.epochs(3):
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return session.rank, session.communicator.num_ranks, session.predict(), loss.item()


def test_ranks_as_threads_learn_what_one_rank_learns(make_graph):
    graph, model = make_graph(dtype=torch.float64), GCN(8, 6, 2, 4).double()
    threads = torch.get_num_threads()
    ((_, _, one, loss),) = launch(train, graph, model, ranks=1)
    results = launch(train, graph, model, ranks=3, how="threads")
    assert [result[:2] for result in results] == [(0, 3), (1, 3), (2, 3)]
    assert [result[3] for result in results] == pytest.approx([loss] * 3, abs=1e-10)
    assert (results[0][2].classes == one.classes).all()
    assert torch.get_num_threads() == threads


def test_the_trainer_finds_the_ranks_too(make_graph, tmp_path):
    graph = make_graph()
    run = laconic.trainer.RunConfig(folder=str(tmp_path / "run"), tensorboard=False, threads=1)
    training = laconic.trainer.TrainingConfig(epochs=2, strategy="exchange")
    config = laconic.Config(training=training, run=run)
    summaries = launch(lambda: laconic.start(config, graph=graph), ranks=2)
    assert [summary.num_ranks for summary in summaries] == [2, 2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_exception_of_a_rank_is_raised_by_threads(ranks, make_graph):
    graph = make_graph()

    def fail():
        session = laconic.join(graph)
        if session.rank == ranks - 1:
            raise ValueError("not today")
        session.attach(GCN(8, 6, 2, 4))

    with pytest.raises(ValueError, match="not today"):
        launch(fail, ranks=ranks)
    assert launch(lambda: laconic.join(graph).communicator.num_ranks, ranks=2) == [2, 2]


def test_an_interrupt_ends_all_threads(make_graph):
    graph, ended = make_graph(), threading.Barrier(3)

    def wait():
        session = laconic.join(graph)
        try:
            if session.rank == 1:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                # Rank 0 waits for this one, until the interrupt ends both.
                interrupted.wait(20)
            session.communicator.barrier()
        finally:
            ended.wait(20)

    interrupted = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        launch(wait, ranks=2)
    interrupted.set()
    ended.wait(20)


def test_an_interrupt_of_processes_is_one_here(monkeypatch):
    monkeypatch.setattr(home_of_launch, "run_local_ranks", lambda *arguments, **options: 130)
    with pytest.raises(KeyboardInterrupt):
        launch(double, 2)


def test_a_rank_that_was_killed_is_told(monkeypatch):
    monkeypatch.setattr(home_of_launch, "run_local_ranks", lambda *arguments, **options: 137)
    with pytest.raises(laconic.errors.RankFailedError, match="exit code 137"):
        launch(double, 2)


def test_a_function_that_no_process_can_import_runs_in_threads_or_is_refused():
    def nested(number):
        return threading.current_thread().name, number

    assert launch(nested, 5) == [("rank 0", 5), ("rank 1", 5)]
    with pytest.raises(ConfigError, match=r"nested cannot be imported by another process.*how='threads'"):
        launch(nested, 5, how="processes")


def test_arguments_that_cannot_be_sent_are_named(make_graph):
    with pytest.raises(ConfigError, match=r"the value\[0\] is a GCN\. Give the name or the path"):
        launch(double, GCN(2, 2, 1))


def test_a_rank_cannot_start_ranks(monkeypatch):
    with pytest.raises(ConfigError, match="one of them already"):
        launch(lambda: launch(double, 2), ranks=2)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="__main__"):
        launch(double, 2)


@pytest.mark.parametrize(("options", "words"), [({"ranks": 0}, "1 or more"), ({"how": "fork"}, "auto, processes")])
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        launch(double, 2, **options)
