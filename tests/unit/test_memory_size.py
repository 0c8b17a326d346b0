"""How much memory a machine or a container has, and what a daemon stages of it."""

from __future__ import annotations

from sdrs_core.memory_size import available_bytes, cgroup_bytes, staging_budget_bytes, total_bytes

GIB = 1 << 30
MEMINFO = f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {40 << 20} kB\n"


def test_a_container_has_what_its_limit_says_and_never_more_than_the_machine() -> None:
    assert total_bytes(MEMINFO, "") == 64 * GIB
    assert total_bytes(MEMINFO, "max\n") == 64 * GIB  # v2
    assert total_bytes(MEMINFO, "9223372036854771712\n") == 64 * GIB  # v1
    assert total_bytes(MEMINFO, f"{8 * GIB}\n") == 8 * GIB
    assert total_bytes(MEMINFO, f"{100 * GIB}\n") == 64 * GIB
    assert cgroup_bytes("rubbish") is None


def test_what_the_kernel_takes_back_counts_as_available() -> None:
    assert available_bytes(MEMINFO, "max", "123", "") == 40 * GIB
    limit, used = str(8 * GIB), str(7 * GIB)
    assert available_bytes(MEMINFO, limit, used, "") == GIB
    statistics = f"anon 5\nfile {4 * GIB}\nshmem {GIB}\nactive_file {GIB}\ninactive_file {2 * GIB}\n"
    assert available_bytes(MEMINFO, limit, used, statistics) == 4 * GIB
    assert available_bytes(MEMINFO, limit, str(9 * GIB), "") == 0


def test_staging_leaves_most_of_the_memory_and_some_of_the_file_system() -> None:
    assert staging_budget_bytes(64 * GIB, 60 * GIB) == 16 * GIB
    assert staging_budget_bytes(64 * GIB, 4 * GIB) == 3 * GIB  # a container's /dev/shm is often small
    assert staging_budget_bytes(0, GIB) == 0
