"""Kernels that sleep, in containers; most of it as in sandboxes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from docker.api.client import APIClient
from docker.errors import NotFound

from cellgate_kernels.limits.control_group import ControlGroup
from tests.conftest import StartGateway
from tests.containers.conftest import Containers
from tests.gateway.sessions.test_asleep import (
    ENOUGH,
    Kill,
    Start,
    test_a_client_of_its_channels_keeps_it_awake,
    test_a_program_wakes_its_kernel_and_keeps_it_awake,
    test_a_session_sleeps_instead_of_ending,
    test_a_sleeping_kernel_for_which_there_is_no_memory_is_found_dead,
    test_a_sleeping_kernel_gives_its_memory_back_and_loses_nothing,
    test_a_sleeping_kernel_that_is_killed_is_found_dead,
    test_a_sleeping_session_gives_way_to_one_that_needs_its_place,
    test_a_sleeping_session_still_ends_when_it_was_idle_for_too_long,
    test_a_thread_that_prints_or_computes_keeps_its_kernel_awake,
    test_an_interrupt_a_restart_and_an_end_of_sleeping_kernels,
    test_files_of_a_sleeping_kernel_are_there_and_do_not_wake_it,
    test_many_requests_at_once_wake_one_kernel,
    test_many_sleep_and_are_all_woken_at_once,
    test_requests_at_any_moment_of_falling_asleep_lose_nothing,
    test_what_is_in_swap_counts_against_the_limit,
)
from tests.support.requirements import require
from tests.support.server import GatewayProcess, until
from tests.support.sleepers import AFTER, Groups, groups_of_processes, until_asleep

pytestmark = pytest.mark.usefixtures("no_container_left")


@pytest.fixture
def start(start_gateway: StartGateway, docker: None) -> Start:
    """Starts gateways on containers whose kernels sleep after a second without use."""
    if os.geteuid() != 0:
        require("control groups", "only root may freeze a container's group")

    def begin(data_dir: Path | None = None, **options: object) -> GatewayProcess:
        return start_gateway(data_dir, backend="docker", **{"sleep_after": AFTER, **ENOUGH, **options})

    return begin


@pytest.fixture
def groups(containers: Containers, client: APIClient) -> Groups:
    """The control groups of a gateway's containers."""

    def find(gateway: GatewayProcess) -> list[ControlGroup]:
        found = []
        for container in sorted(containers(gateway)):
            with suppress(NotFound):  # it has just ended
                found.append(client.inspect_container(container)["State"]["Pid"])
        return groups_of_processes(found)

    return find


@pytest.fixture
def many() -> int:
    """How many kernels are a crowd."""
    return 6


@pytest.fixture
def kill(containers: Containers, client: APIClient) -> Kill:
    """Kills all containers of a gateway by the engine."""

    def kill_them(gateway: GatewayProcess) -> None:
        for container in containers(gateway):
            client.kill(container)

    return kill_them


def test_sleepers_of_a_killed_gateway_go_on_with_the_next(start: Start, groups: Groups, swap: None) -> None:
    gateway = start()
    gateway.execute("s", "x = 42")
    until_asleep(gateway, "s")
    # The state is told as soon as it begins to be stopped.
    until(lambda: [group.frozen for group in groups(gateway)] == [True], "it goes on")
    gateway.kill()
    successor = start(gateway.data_dir)
    assert successor.execute("s", "x")["text"] == "42"
    until_asleep(successor, "s")
    assert successor.stop() == 0


@pytest.mark.nightly
def test_sleepers_that_are_kept_wake_with_the_stop(start: Start, groups: Groups) -> None:
    gateway = start(keep_kernels=True)
    gateway.execute("s", "x = 42")
    until_asleep(gateway, "s")
    assert gateway.stop() == 0
    assert [group.frozen for group in groups(gateway)] == [False]
    successor = start(gateway.data_dir)
    assert successor.execute("s", "x")["text"] == "42"


@pytest.mark.nightly
def test_kernels_under_gvisor_are_left_alone(start: Start, gvisor: None) -> None:
    """The engine can't end them while they are frozen."""
    gateway = start(runtime="runsc")
    gateway.execute("s", "x = 42")
    until(lambda: "Kernels do not sleep (sleep_after)" in gateway.log.read_text(), "nobody looks at it")
    time.sleep(2 * AFTER)
    assert gateway.model("s")["state"] == "idle"
