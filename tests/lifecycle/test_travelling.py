"""Batched objects go to other processes and into copies without their queues, and work there."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pickled
import pytest

from batchlib import Batched


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


COPIES = pytest.mark.parametrize("copied", [through_pickle, copy.copy, copy.deepcopy])


@COPIES
def test_a_module_level_function_is_one_and_the_same(copied: Any) -> None:
    assert copied(pickled.twice) is pickled.twice


@COPIES
def test_one_that_no_name_leads_to_goes_with_its_configuration(copied: Any) -> None:
    clone = copied(pickled.renamed)
    assert isinstance(clone, Batched)
    assert clone is not pickled.renamed
    before = pickled.renamed.statistics().submitted
    futures = [clone.submit(item) for item in range(3)]
    assert [future.result() for future in futures] == [0, 3, 6]
    assert clone.statistics().batches == 3
    assert pickled.renamed.statistics().submitted == before


@COPIES
@pytest.mark.parametrize("used", [False, True])
def test_an_instance_goes_without_its_batcher(copied: Any, used: bool) -> None:
    model = pickled.Model(3)
    if used:
        assert model.run.call(2) == 6
    clone = copied(model)
    assert vars(clone) == vars(model) == {"weight": 3}
    clone.weight = 5
    assert clone.run.call(2) == 10
    assert clone.run.statistics().submitted == 1
    assert model.run.statistics().submitted == used


def test_a_bound_method_takes_its_instance_along() -> None:
    method = through_pickle(pickled.Model(3).run)
    assert method.call(2) == 6


def test_the_unbound_method_is_found_by_name() -> None:
    assert through_pickle(pickled.Model.run) is pickled.Model.run


def test_a_spawned_process_gets_functions_instances_and_methods() -> None:
    """After use, so that threads and locks exist which must stay at home."""
    model = pickled.Model(3)
    assert model.run.call(1) == 3
    assert pickled.twice.call(1) == 2
    assert pickled.renamed.call(1) == 3
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        sent = [pool.submit(pickled.call, f, 4) for f in (pickled.twice, pickled.renamed, model.run)]
        assert [future.result() for future in sent] == [8, 12, 12]
