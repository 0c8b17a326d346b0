"""What only the etcd MetaStore promises: several endpoints, outages, leases, quotas, TLS and passwords."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sdrs_core.errors import FullError, InvalidArgumentError, PermissionDeniedError, RefusedError, UnavailableError
from sdrs_storaged.config import EtcdConfig
from sdrs_storaged.control.meta import etcd as etcd_module
from sdrs_storaged.control.meta.etcd import EtcdMetaStore
from sdrs_storaged.control.meta.etcd_client import EtcdClient
from sdrs_storaged.control.meta.store import CompactedError, Compare, Delete, MetaStore, Put
from tests.support.certificates import Certificates, make_certificates
from tests.support.cluster import free_port
from tests.support.etcd import EtcdCluster, needs_etcd, needs_system_etcd, running_etcd, system_program
from tests.support.metastores import keys, take, value
from tests.support.proxy import proxy_to

DEADLINE_SECONDS = 60

# Leads, says so, and says it again when the term is lost; then tries to write as if it still led.
LEADER_PROGRAM = """
import asyncio, json, sys
from sdrs_core.errors import UnavailableError
from sdrs_storaged.config import EtcdConfig
from sdrs_storaged.control.meta.etcd import EtcdMetaStore
from sdrs_storaged.control.meta.store import Put
from sdrs_storaged.logs import configure_logs

async def main():
    configure_logs("info", "json")  # to stderr: what it prints is for the test
    store = await EtcdMetaStore.open(EtcdConfig(**json.loads(sys.argv[1])))
    term = await store.campaign("program")
    print("leads", flush=True)
    while True:
        try:
            await store.lost(term)
            break
        except UnavailableError:
            pass  # frozen while it asked: the deadline of the call ran out meanwhile, and that says nothing of the term
    result = await store.txn([term.unchanged()], [Put("late", b"")])
    print("lost, and fenced out" if not result.succeeded else "NOT FENCED", flush=True)
    await store.close()

asyncio.run(main())
"""


def config(endpoints: list[str], **settings: Any) -> EtcdConfig:
    return EtcdConfig(endpoints=tuple(endpoints), **{"prefix": f"t-{secrets.token_hex(6)}/", **settings})


@asynccontextmanager
async def opened(settings: EtcdConfig) -> Any:
    store = await EtcdMetaStore.open(settings)
    try:
        yield store
    finally:
        await store.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await test()

    asyncio.run(main())


async def persist(store: MetaStore, key: str) -> None:
    """Write ``key`` as a careful caller does: after an unknown outcome again, under a compare that holds only once."""
    while True:
        try:
            await store.txn([Compare.absent(key)], [Put(key, b"")])
            return
        except UnavailableError:
            continue


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("one")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Tests may kill and freeze members, and leave them up."""
    with running_etcd(tmp_path_factory.mktemp("three"), 3, system_program()) as etcd:
        yield etcd


# Endpoints


@needs_etcd
def test_an_endpoint_that_refuses_is_passed_over(one: EtcdCluster) -> None:
    async def test() -> None:
        dead = f"127.0.0.1:{free_port()}"
        async with opened(config([dead, *one.endpoints])) as store:
            assert (await store.txn([], [Put("a", b"1")])).succeeded
            assert await value(store, "a") == b"1"
            await store.look()
            assert any(dead in sentence for sentence in store.warnings())
        async with opened(config([dead], call_seconds=0.5)) as store:
            with pytest.raises(UnavailableError, match=dead):
                await store.txn([], [Put("a", b"1")])

    run(test)


@needs_system_etcd
def test_killing_the_leader_of_etcd_loses_nothing_and_leaves_no_gap(three: EtcdCluster) -> None:
    async def test() -> None:
        async with opened(config(three.endpoints, lease_seconds=10, call_seconds=2)) as store:
            term = await store.campaign("c")
            start = await store.revision() + 1
            async with aclosing(store.watch("k", start)) as batches:
                await persist(store, "k0")
                assert (await anext(batches)).events[0].entry.key == "k0"
                leader = await asyncio.to_thread(three.leader)
                leader.kill()
                for number in range(1, 10):
                    await persist(store, f"k{number}")
                seen = [batch.events[0].entry.key for batch in await take(batches, 9)]
                assert seen == [f"k{number}" for number in range(1, 10)]
            assert await keys(store, "k") == [f"k{number}" for number in range(10)]
            # The term outlives etcd's own election.
            await asyncio.to_thread(three.restart, leader)
            assert (await store.txn([term.unchanged()], [Put("led", b"")])).succeeded

    run(test)


@needs_system_etcd
def test_a_frozen_member_is_left_for_another(three: EtcdCluster) -> None:
    async def test() -> None:
        leader = await asyncio.to_thread(three.leader)
        frozen = next(member for member in three.members if member is not leader)
        others = [member.endpoint for member in three.members if member is not frozen]
        async with opened(config([frozen.endpoint, *others], call_seconds=4)) as store:
            await store.txn([], [Put("a", b"1")])
            watching = store.watch("a", await store.revision() + 1)
            coming = asyncio.ensure_future(anext(watching))
            await store.get("a")
            frozen.freeze()
            try:
                assert await value(store, "a") == b"1"
                await persist(store, "b")
                await store.txn([], [Put("a", b"2")])
                # The stream stood at the frozen member, too.
                assert (await coming).events[0].entry.value == b"2"
            finally:
                frozen.thaw()
            await watching.aclose()
            await asyncio.to_thread(three.wait_until_healthy, frozen)

    run(test)


@needs_system_etcd
def test_a_cluster_without_a_majority_says_so_and_comes_back(three: EtcdCluster) -> None:
    async def test() -> None:
        settings = config(three.endpoints, call_seconds=1)
        async with opened(settings) as store:
            await persist(store, "a")
            dead = three.members[:2]
            for member in dead:
                member.kill()
            # Also what only compares must not be answered from what one member happens to remember.
            with pytest.raises(UnavailableError):
                await store.txn([Compare.present("a")], [])
            with pytest.raises(UnavailableError):
                await store.get("a")
            with pytest.raises(UnavailableError):
                await store.txn([], [Put("b", b"")])
            for member in dead:
                member.start(three.members)
            for member in dead:
                await asyncio.to_thread(three.wait_until_healthy, member)
            await persist(store, "c")
        async with opened(settings.model_copy(update={"call_seconds": 20})) as store:
            assert set(await keys(store, "")) >= {"a", "c"}

    run(test)


# Broken connections


@needs_etcd
def test_a_change_whose_answer_is_lost_is_not_made_twice(one: EtcdCluster) -> None:
    async def test() -> None:
        async with proxy_to(one.members[0].address) as proxy:
            settings = config([proxy.address, *one.endpoints], call_seconds=2)
            async with opened(settings) as store:
                await store.txn([], [Put("a", b"")])
                proxy.is_mute = True
                with pytest.raises(UnavailableError, match="not known"):
                    await store.txn([], [Put("a", b"")])
                # Reads go on, elsewhere.
                entry = await store.get("a")
                assert entry is not None
                assert entry.version == 2
                proxy.is_mute = False

    run(test)


@needs_etcd
def test_a_watch_goes_on_where_its_connection_broke(one: EtcdCluster) -> None:
    async def test() -> None:
        async with proxy_to(one.members[0].address) as proxy:
            settings = config([proxy.address])
            direct = settings.model_copy(update={"endpoints": tuple(one.endpoints)})
            async with opened(settings) as store, opened(direct) as other:
                start = (await other.txn([], [Put("k0", b"")])).revision
                async with aclosing(store.watch("k", start)) as batches:
                    await anext(batches)
                    for round_number in range(3):
                        await proxy.cut()
                        for number in range(5):
                            await other.txn([], [Put(f"k-{round_number}-{number}", b""), Put(f"l{number}", b"")])
                        await other.txn([], [Delete("k0")])
                        await other.txn([], [Put("k0", b"")])
                        await proxy.start()
                        seen = [event.entry.key for batch in await take(batches, 7) for event in batch.events]
                        assert seen == [*(f"k-{round_number}-{number}" for number in range(5)), "k0", "k0"]

    run(test)


@needs_etcd
def test_a_watch_that_missed_a_compaction_is_told(one: EtcdCluster) -> None:
    async def test() -> None:
        async with proxy_to(one.members[0].address) as proxy:
            settings = config([proxy.address])
            direct = settings.model_copy(update={"endpoints": tuple(one.endpoints)})
            async with opened(settings) as store, opened(direct) as other:
                start = (await other.txn([], [Put("k", b"")])).revision
                async with aclosing(store.watch("k", start)) as batches:
                    await anext(batches)
                    await proxy.cut()
                    for _ in range(3):
                        newest = (await other.txn([], [Put("k", b"")])).revision
                    await other.compact(newest)
                    await proxy.start()
                    with pytest.raises(CompactedError):
                        await anext(batches)

    run(test)


# Terms


@needs_etcd
def test_the_second_store_leads_once_the_first_closes(one: EtcdCluster) -> None:
    async def test() -> None:
        settings = config(one.endpoints, lease_seconds=600)
        async with opened(settings) as second:
            async with opened(settings) as first:
                old = await first.campaign("first")
                campaign = asyncio.ensure_future(second.campaign("second"))
                await second.txn([], [Put("noise", b"")])
                assert not campaign.done()
            new = await campaign
            assert new.number > old.number
            assert not (await second.txn([old.unchanged()], [Put("late", b"")])).succeeded

    run(test)


def _leader_program(settings: EtcdConfig) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LEADER_PROGRAM, settings.model_dump_json()],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@needs_etcd
def test_a_leader_that_dies_is_followed_when_its_lease_ends(one: EtcdCluster) -> None:
    settings = config(one.endpoints, lease_seconds=2)
    with _leader_program(settings) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "leads\n"
        program.kill()

    async def test() -> None:
        async with opened(settings) as store:
            assert (await store.campaign("next")).number == 2

    run(test)


@needs_etcd
def test_a_leader_that_froze_for_too_long_finds_its_term_lost_and_itself_fenced_out(one: EtcdCluster) -> None:
    settings = config(one.endpoints, lease_seconds=2)
    with _leader_program(settings) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "leads\n"
        program.send_signal(signal.SIGSTOP)

        async def test() -> None:
            async with opened(settings.model_copy(update={"lease_seconds": 60})) as store:
                term = await store.campaign("next")
                program.send_signal(signal.SIGCONT)
                assert program.stdout is not None
                assert await asyncio.to_thread(program.stdout.readline) == "lost, and fenced out\n"
                assert (await store.txn([term.unchanged()], [Put("a", b"")])).succeeded
                assert await store.get("late") is None

        try:
            run(test)
        finally:
            program.kill()


@needs_etcd
def test_a_term_lasts_longer_than_its_lease(one: EtcdCluster) -> None:
    async def test() -> None:
        settings = config(one.endpoints, lease_seconds=4)
        async with opened(settings) as store, opened(settings) as other:
            term = await store.campaign("first")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(6):
                    await other.campaign("second")
            assert (await store.txn([term.unchanged()], [Put("a", b"")])).succeeded

    run(test)


@needs_etcd
def test_a_campaign_that_fails_halfway_leaves_nobody_leading(one: EtcdCluster) -> None:
    """Its answer is lost, so that it may have been elected: the lease goes, and with it the record."""

    async def test() -> None:
        async with proxy_to(one.members[0].address) as proxy:
            settings = config([proxy.address, *one.endpoints], lease_seconds=600, call_seconds=2)
            async with opened(settings) as store:
                real = store.txn

                async def txn_without_answer(*arguments: Any, **named: Any) -> Any:
                    proxy.is_mute = True
                    try:
                        return await real(*arguments, **named)
                    finally:
                        proxy.is_mute = False

                store.txn = txn_without_answer
                with pytest.raises(UnavailableError, match="not known"):
                    await store.campaign("unlucky")
                store.txn = real
                assert (await store.campaign("next")).number == 2

    run(test)


# Upkeep


@needs_etcd
def test_the_leader_forgets_old_history_by_itself(one: EtcdCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_module, "_UPKEEP_SECONDS", 0.05)

    async def test() -> None:
        async with opened(config(one.endpoints, keep_revisions=5)) as store:
            start = (await store.txn([], [Put("a", b"")])).revision
            for _ in range(10):
                await store.txn([], [Put("a", b"")])
            assert (await anext(store.watch("a", start))).revision == start, "only a leader compacts"
            await store.campaign("c")
            while True:
                try:
                    await anext(store.watch("a", start))
                except CompactedError:
                    break
            newest = await store.revision()
            async with aclosing(store.watch("", newest - 4)) as batches:
                assert [batch.revision for batch in await take(batches, 5)] == list(range(newest - 4, newest + 1))

    run(test)


@needs_etcd
def test_a_full_etcd_is_announced_refuses_and_recovers(tmp_path: Path) -> None:
    quota_bytes = 4 << 20

    async def test(etcd: EtcdCluster) -> None:
        async with opened(config(etcd.endpoints, quota_bytes=quota_bytes)) as store:
            await store.look()
            assert store.warnings() == ()
            number = 0
            while not any("of its quota" in sentence for sentence in store.warnings()):
                await store.txn([], [Put(f"k{number}", b"v" * 100_000)])
                number += 1
                await store.look()
            refusal: FullError | None = None
            while not refusal:
                try:
                    await store.txn([], [Put(f"k{number}", b"v" * 100_000)])
                    number += 1
                except FullError as error:
                    refusal = error
            assert "--quota-backend-bytes" in refusal.message
            assert await store.get(f"k{number - 1}") is not None
            assert await store.get(f"k{number}") is None
            await store.look()
            assert any("NOSPACE" in sentence for sentence in store.warnings())
            # What an operator does, or a larger quota. Before 3.5.6 a full etcd also refuses to delete in transactions.
            etcd.ctl("del", "--prefix", "t-")
            etcd.ctl("compaction", "--physical", str(await store.revision()))
            etcd.ctl("defrag")
            etcd.ctl("alarm", "disarm")
            assert (await store.txn([], [Put("again", b"")])).succeeded
            await store.look()
            assert store.warnings() == ()

    with running_etcd(tmp_path, flags=["--quota-backend-bytes", str(quota_bytes)]) as etcd:
        run(lambda: test(etcd))


@needs_etcd
@pytest.mark.parametrize("was_made", [True, False])
def test_a_change_that_etcd_made_although_it_said_full_is_not_denied(
    one: EtcdCluster, monkeypatch: pytest.MonkeyPatch, was_made: bool
) -> None:
    """etcd may make the change that fills it, and then report an error (etcd #16659)."""

    async def test() -> None:
        async with opened(config(one.endpoints)) as store:
            await store.txn([], [Put("a", b"old"), Put("b", b"")])
            real = EtcdClient.call

            async def call(client: EtcdClient, service: Any, method: str, *arguments: Any, **named: Any) -> Any:
                if method == "txn":
                    if was_made:
                        await real(client, service, method, *arguments, **named)
                    raise FullError("etcdserver: mvcc: database space exceeded")
                return await real(client, service, method, *arguments, **named)

            monkeypatch.setattr(EtcdClient, "call", call)
            with pytest.raises(UnavailableError if was_made else FullError):
                await store.txn([], [Put("a", b"new"), Delete("b")])

    run(test)


# Certificates and passwords


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[EtcdCluster]:
    """An etcd that speaks TLS only, asks for certificates, and knows the user "sdrs" for the prefix "guarded/"."""
    flags = [
        *("--cert-file", str(certificates.server_cert), "--key-file", str(certificates.server_key)),
        *("--client-cert-auth", "--trusted-ca-file", str(certificates.ca)),
    ]
    ctl_flags = [
        *("--cacert", str(certificates.ca), "--cert", str(certificates.client_cert)),
        *("--key", str(certificates.client_key)),
    ]
    folder = tmp_path_factory.mktemp("guarded")
    with running_etcd(folder, flags=flags, scheme="https", ctl_flags=ctl_flags) as etcd:
        for command in (
            ["user", "add", "root:root"],
            ["user", "grant-role", "root", "root"],
            ["role", "add", "keeper"],
            ["role", "grant-permission", "keeper", "readwrite", "guarded/", "--prefix"],
            ["user", "add", "sdrs:secret"],
            ["user", "grant-role", "sdrs", "keeper"],
            ["auth", "enable"],
        ):
            etcd.ctl(*command)
        etcd.ctl_flags += ["--user", "root:root"]
        yield etcd


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path


@needs_etcd
def test_certificates_and_a_password_open_a_guarded_etcd(
    guarded: EtcdCluster, certificates: Certificates, password_file: Path
) -> None:
    wrong_file = password_file.with_name("wrong")
    wrong_file.write_text("guessed")
    wrong_file.chmod(0o600)

    async def test() -> None:
        good = {
            "prefix": "guarded/",
            "ca_file": certificates.ca,
            "cert_file": certificates.client_cert,
            "key_file": certificates.client_key,
            "user": "sdrs",
            "password_file": password_file,
        }
        async with opened(config(guarded.endpoints, **good)) as store:
            start = (await store.txn([], [Put("a", b"1")])).revision
            async with aclosing(store.watch("a", start)) as batches:
                await anext(batches)
                # All tokens are void after this.
                guarded.ctl("auth", "disable")
                guarded.ctl("auth", "enable")
                assert (await store.txn([], [Put("a", b"2")])).succeeded
                assert await value(store, "a") == b"2"
                assert (await anext(batches)).events[0].entry.value == b"2"
            await anext(store.watch("a", start))
            term = await store.campaign("c")
            await store.resign(term)
            await store.look()
            assert store.warnings() == ()

        async with opened(config(guarded.endpoints, **{**good, "password_file": wrong_file})) as store:
            with pytest.raises(PermissionDeniedError, match="password_file"):
                await store.get("a")
        async with opened(config(guarded.endpoints, **{**good, "prefix": "elsewhere/"})) as store:
            with pytest.raises(PermissionDeniedError, match="prefix"):
                await store.txn([], [Put("a", b"1")])
            with pytest.raises(PermissionDeniedError, match="prefix"):
                await anext(store.watch("a", start))
        no_cert: dict[str, Any] = {"cert_file": None, "key_file": None}
        in_the_clear = {"endpoints": [member.address for member in guarded.members], "ca_file": None, **no_cert}
        for spoilt, told in (
            ({"ca_file": certificates.other_ca}, "certificate"),
            (no_cert, "out of reach"),
            (in_the_clear, "out of reach"),
        ):
            settings = EtcdConfig(**{"endpoints": guarded.endpoints, **good, **spoilt, "call_seconds": 0.5})
            async with opened(settings) as store:
                with pytest.raises(UnavailableError, match=told):
                    await store.get("a")

    run(test)


def test_secret_files_that_are_missing_or_open_to_everybody_are_refused(tmp_path: Path, password_file: Path) -> None:
    gone = tmp_path / "gone"
    password_file.chmod(0o644)
    local = ["https://127.0.0.1:2379"]
    for settings, error, named in (
        (config(local, user="sdrs", password_file=password_file), RefusedError, "chmod"),
        (config(local, user="sdrs", password_file=gone), InvalidArgumentError, "password_file"),
        (config(local, ca_file=gone), InvalidArgumentError, "ca_file"),
        (config(local, cert_file=gone, key_file=gone), InvalidArgumentError, "key_file"),
    ):
        with pytest.raises(error, match=named):
            asyncio.run(EtcdMetaStore.open(settings))
