"""etcd answers slowly: saves take longer, nobody loses a place in a group, and nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

from tests.support.battered_control import running
from tests.support.etcd import needs_etcd, running_etcd
from tests.support.ledger import Writer
from tests.support.proxy import proxies

# What a save asks of etcd, one thing after the other, takes about a second then.
DELAY_SECONDS = 0.1


@needs_etcd
def test_saves_go_on_while_etcd_is_slow(tmp_path: Path) -> None:
    with (
        running_etcd(tmp_path) as etcd,
        proxies([member.address for member in etcd.members]) as ways,
        running(etcd, tmp_path, endpoints=[way.address for way in ways], node_count=2) as cluster,
    ):
        ledger = cluster.ledger("slow")
        epochs = cluster.epochs()
        with Writer(ledger) as writer:
            writer.wait_for_saves()
            for way in ways:
                way.delay_seconds = DELAY_SECONDS
            writer.wait_for_saves(1)
            for way in ways:
                way.delay_seconds = 0.0
            writer.wait_for_saves()
        assert cluster.epochs() == epochs
        ledger.check()
