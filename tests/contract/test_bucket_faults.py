"""Stores and networks that fail: what passes is tried again at the position, what does not is told with a way out."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import blake3
import pytest

from sdrs_core.backup.targets import Target
from sdrs_core.errors import CorruptDataError, PermissionDeniedError, RefusedError, SdrsError, UnavailableError
from sdrs_storaged.bucket import downloading, uploading
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.bucket.patience import Failures, Patience
from sdrs_storaged.bucket.probing import probe
from tests.support.backups import (
    CLUSTER,
    HASTE,
    SMALL_PART_BYTES,
    blocks_of,
    content,
    get_content,
    key_file,
    put_content,
)
from tests.support.certificates import make_certificates
from tests.support.faulty_s3 import Fault, FaultyS3, faulty
from tests.support.s3_servers import S3Server, credentials_file, needs_seaweed
from tests.support.waiting import wait_for

BIG_BYTES = 2 * SMALL_PART_BYTES + 12_345


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "PART_BYTES", SMALL_PART_BYTES)


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyS3]:
    with faulty(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def target(s3_server: S3Server, proxy: FaultyS3, tmp_path: Path) -> Target:
    return s3_server.target(tmp_path, endpoint=proxy.endpoint)


@pytest.fixture
def bucket(target: Target) -> Iterator[Bucket]:
    with open_bucket(target, replace(HASTE, read_seconds=1.0)) as bucket:
        yield bucket


PASSING = [
    Fault("answer", "PUT", status=500, times=2),
    Fault("answer", "PUT", status=503, code="SlowDown", times=2),
    Fault("answer", "PUT", status=400, code="RequestTimeout", times=2),
    Fault("drop", "PUT", times=2),
    Fault("hang", "PUT", times=1),
    Fault("corrupt-sent", "PUT", times=2),
    Fault("answer", "POST", status=503, code="ServiceUnavailable", times=2),
    Fault("answer", "GET", status=503, code="SlowDown", times=2),
    Fault("drop", "GET", times=2),
    Fault("hang", "GET", "objects", after=1, times=1),
    Fault("truncate", "GET", "objects", after=1, times=4, keep_bytes=1_000_000),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.method}-{fault.kind}-{fault.code}")
def test_what_passes_by_itself_is_waited_out(
    bucket: Bucket, proxy: FaultyS3, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several ranges at once, also of what is small.
    monkeypatch.setattr(downloading, "CHUNKS_PER_SPAN", 2)
    data = content(6_000_000 if fault.method == "GET" and fault.part else BIG_BYTES)
    proxy.faults = [replace(fault)]

    place = put_content(bucket, data)

    assert get_content(bucket, place) == data
    assert proxy.faults[0].times == 0


def test_a_broken_answer_is_gone_on_with_where_it_broke(bucket: Bucket, proxy: FaultyS3) -> None:
    data = content(4_000_000)
    place = put_content(bucket, data)
    proxy.faults = [Fault("truncate", "GET", keep_bytes=1_500_000, times=2)]

    assert get_content(bucket, place) == data
    assert proxy.count("GET", place.key) == 3


@needs_seaweed
def test_an_answer_that_is_lost_is_no_second_upload(seaweed_s3: S3Server, tmp_path: Path) -> None:
    """Not on moto, which answers 500 to the completion of what was completed."""
    data = content(BIG_BYTES)
    with faulty(seaweed_s3.endpoint) as proxy:
        proxy.faults = [Fault("lose-answer", "POST", "uploadId", times=1)]
        with open_bucket(seaweed_s3.target(tmp_path, endpoint=proxy.endpoint), HASTE) as bucket:
            place = put_content(bucket, data)

            assert get_content(bucket, place) == data
            assert proxy.count("PUT", "partNumber") == 3


def test_a_part_that_fails_for_ever_is_told_and_the_next_try_sends_only_that(bucket: Bucket, proxy: FaultyS3) -> None:
    data, identity = content(BIG_BYTES), blake3.blake3(content(BIG_BYTES)).hexdigest()
    place = bucket.new_place(CLUSTER, identity, "run", len(data))
    # The last one: the others have gone before it is even filled.
    proxy.faults = [Fault("answer", "PUT", "partNumber=3", status=500)]

    with pytest.raises(UnavailableError, match=r"part 3 of .* tried 3 times; what was sent stays"):
        uploading.upload(bucket, place, blocks_of(data), blake3=identity)
    proxy.heal()
    proxy.requests.clear()
    uploading.upload(bucket, place, blocks_of(data), blake3=identity)

    assert proxy.count("PUT", "partNumber=3") == 1
    assert proxy.count("PUT", "partNumber") <= 3
    assert get_content(bucket, place) == data


def test_bytes_that_are_always_changed_on_the_way_are_never_confirmed(bucket: Bucket, proxy: FaultyS3) -> None:
    proxy.faults = [Fault("corrupt-sent", "PUT")]

    with pytest.raises((UnavailableError, CorruptDataError)):
        put_content(bucket, content(1000))
    with pytest.raises((UnavailableError, CorruptDataError)):
        put_content(bucket, content(BIG_BYTES))


def test_bytes_that_are_changed_on_the_way_back_are_never_believed(
    target: Target, proxy: FaultyS3, tmp_path: Path
) -> None:
    target = replace(target, encryption_key=key_file(tmp_path / "key", os.urandom(32)))
    with open_bucket(target, HASTE) as bucket:
        place = put_content(bucket, content(3_000_000))
        proxy.faults = [Fault("corrupt", "GET", "objects")]
        with pytest.raises(CorruptDataError, match="does not decrypt"):
            get_content(bucket, place)
        proxy.faults = [Fault("corrupt", "GET", "keys")]
    with open_bucket(target, HASTE) as bucket:
        with pytest.raises((CorruptDataError, PermissionDeniedError)):
            get_content(bucket, place)


def test_a_store_that_is_gone_is_unavailable(target: Target, proxy: FaultyS3) -> None:
    with open_bucket(replace(target, endpoint="http://127.0.0.1:9"), HASTE) as bucket:
        with pytest.raises(UnavailableError, match=r"target nas .* cannot be reached"):
            put_content(bucket, b"1")


def test_the_stores_wish_to_wait_is_honoured(bucket: Bucket, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.faults = [Fault("answer", "PUT", status=503, code="SlowDown", headers={"Retry-After": "7"}, times=1)]
    waited: list[str] = []
    monkeypatch.setattr(Failures, "count", lambda _, error: waited.append(error.facts["retry_after_seconds"]))

    put_content(bucket, b"1")

    assert waited == ["7"]


TO_MEND = [
    (403, "AccessDenied", PermissionDeniedError, r"allow s3:PutObject .*\(file:"),
    (403, "InvalidAccessKeyId", PermissionDeniedError, "check access_key_id"),
    (403, "SignatureDoesNotMatch", PermissionDeniedError, "check secret_access_key"),
    (400, "ExpiredToken", PermissionDeniedError, "session token has expired"),
    (403, "RequestTimeTooSkewed", RefusedError, "clock"),
    (404, "NoSuchBucket", RefusedError, "no such bucket: create it"),
    (400, "AuthorizationHeaderMalformed", RefusedError, "another region"),
]


@pytest.mark.parametrize(("status", "code", "kind", "words"), TO_MEND, ids=[code for _, code, _, _ in TO_MEND])
def test_what_somebody_has_to_mend_is_told_at_once(
    moto_s3: S3Server, tmp_path: Path, status: int, code: str, kind: type[SdrsError], words: str
) -> None:
    with faulty(moto_s3.endpoint) as proxy:
        target = moto_s3.target(tmp_path, endpoint=proxy.endpoint)
        proxy.faults = [Fault("answer", "PUT", status=status, code=code)]
        with open_bucket(target, replace(HASTE, quick_tries=3)) as bucket:
            with pytest.raises(kind, match=words) as caught:
                put_content(bucket, b"1")
        assert len(proxy.requests) == 1
        assert "target nas" in str(caught.value)
        assert moto_s3.secret_key not in str(caught.value)


@needs_seaweed
def test_wrong_credentials_and_a_missing_bucket_are_told_by_a_real_store(seaweed_s3: S3Server, tmp_path: Path) -> None:
    target = seaweed_s3.target(tmp_path)
    wrong_key = credentials_file(tmp_path / "wrong-key.json", "nobody", seaweed_s3.secret_key)
    wrong_secret = credentials_file(tmp_path / "wrong-secret.json", seaweed_s3.access_key, "not the secret")
    for path, words in ((wrong_key, "check access_key_id"), (wrong_secret, "check secret_access_key")):
        with open_bucket(replace(target, credentials=f"file:{path}"), HASTE) as bucket:
            for action in (lambda b=bucket: put_content(b, b"1"), lambda b=bucket: b.store.head("a")):
                with pytest.raises(PermissionDeniedError, match=words):
                    action()
    # With these credentials a put would create the bucket.
    with open_bucket(replace(target, bucket="no-such-bucket"), HASTE) as bucket:
        with pytest.raises(RefusedError, match="no such bucket"):
            list(bucket.store.list(""))


DENIED = [
    ("PUT", "/object", "write", "s3:PutObject"),
    ("GET", "/object", "read", "s3:GetObject"),
    ("GET", "list-type", "list", "s3:ListBucket"),
    ("POST", "parts?uploads", "multipart", "s3:PutObject"),
    ("GET", "?uploads", "multipart", "s3:ListBucketMultipartUploads"),
    ("POST", "?delete", "delete", "s3:DeleteObject"),
]


@pytest.mark.parametrize(
    ("method", "part", "step", "permission"), DENIED, ids=[permission for *_, permission in DENIED]
)
def test_a_probe_tells_which_permission_is_missing(
    moto_s3: S3Server, tmp_path: Path, method: str, part: str, step: str, permission: str
) -> None:
    with faulty(moto_s3.endpoint) as proxy:
        proxy.faults = [Fault("answer", method, part, status=403, code="AccessDenied")]
        steps = {found.name: found for found in probe(moto_s3.target(tmp_path, endpoint=proxy.endpoint), HASTE)}

    assert not steps[step].ok
    assert permission in steps[step].detail
    assert all(
        "probe/" in path or "delete" in path for verb, path in proxy.requests if verb in ("PUT", "POST", "DELETE")
    )


def test_a_certificate_is_trusted_by_the_targets_own_authority(moto_s3: S3Server, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates.server_cert, certificates.server_key)
    data = content(2_000_000)
    with faulty(moto_s3.endpoint, tls) as proxy:
        target = moto_s3.target(tmp_path, endpoint=proxy.endpoint)
        for changes in ({}, {"ca_file": str(certificates.other_ca)}):
            with open_bucket(replace(target, **changes), HASTE) as bucket:
                with pytest.raises(RefusedError, match=r"certificate is not trusted .* ca_file"):
                    put_content(bucket, data)
        with open_bucket(replace(target, ca_file=str(certificates.ca)), HASTE) as bucket:
            assert get_content(bucket, put_content(bucket, data)) == data


def test_a_session_token_that_is_renewed_in_its_file_is_used_at_once(moto_s3: S3Server, tmp_path: Path) -> None:
    path = credentials_file(tmp_path / "rotated.json", "first", "1")
    with open_bucket(moto_s3.target(tmp_path, credentials=f"file:{path}"), HASTE) as bucket:
        sent: list[str] = []
        client = bucket.store._client  # type: ignore[attr-defined]
        client.meta.events.register(
            "before-send.s3", lambda request, **_: sent.append(request.headers["Authorization"].decode())
        )
        bucket.store.put("a", b"1")
        credentials_file(path, "second", "22", session_token="token")
        bucket.store.put("a", b"1")

    assert ["Credential=first/" in sent[0], "Credential=second/" in sent[1]] == [True, True]


_UPLOADER = """
import sys
from sdrs_core.backup.targets import Target
from sdrs_storaged.bucket import downloading, uploading
from sdrs_storaged.bucket.opening import open_bucket
from tests.support.backups import SMALL_PART_BYTES, content, put_content
uploading.PART_BYTES = SMALL_PART_BYTES
endpoint, bucket, prefix, credentials = sys.argv[1:]
target = Target("nas", bucket, prefix, endpoint, credentials=credentials, concurrency=1)
put_content(open_bucket(target), content(int({size})), run_id="run")
"""


def test_a_daemon_killed_in_the_middle_of_an_upload_goes_on_with_it(target: Target, proxy: FaultyS3) -> None:
    proxy.faults = [Fault("hang", "PUT", "partNumber=3")]
    arguments = [target.endpoint, target.bucket, target.prefix, target.credentials]
    process = subprocess.Popen([sys.executable, "-c", _UPLOADER.format(size=BIG_BYTES), *arguments], env=os.environ)
    try:
        wait_for(lambda: proxy.count("PUT", "partNumber=3"), "the third part to come", seconds=60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    proxy.heal()
    proxy.requests.clear()

    with open_bucket(target, Patience()) as bucket:
        place = put_content(bucket, content(BIG_BYTES), run_id="run")

        assert proxy.count("PUT", "partNumber") == 1
        assert get_content(bucket, place) == content(BIG_BYTES)
        assert list(bucket.store.uploads("")) == []
