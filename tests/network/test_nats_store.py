"""The store of a network over NATS, with a server that answers as it pleases."""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from random import getrandbits
from typing import Any

import pytest

from ergo_py.network import StoreError
from ergo_py.network.stores.nats_store import NatsStore
from ergo_py.network.stores.store import LARGEST, ConflictError, Entry


class FakeBucket:
    """A server with a bucket, for a single store."""

    def __init__(self) -> None:
        self.last = 0
        self.refusals = 0
        """How many of the next writes are refused."""
        self.created = "2026-01-01T00:00:00Z"
        self.messages: dict[str, dict[str, Any]] = {}
        self.warnings: list[str] = []
        self.replies: list[str] = []
        self.mark: dict[str, Any] | None = None
        """A field that replaces the mark of the next answers."""
        self.store = NatsStore(self, "c", "inbox", self.warnings.append, lambda: getrandbits(128))

    def publish(
        self, subject: str, reply: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        verb = subject.removeprefix("$JS.API.STREAM.").partition(".KV_")[0]
        match verb:
            case "INFO":
                answer: dict[str, Any] = {"created": self.created, "ts": _now()}
                answer["state"] = {"last_seq": self.last}
            case "MSG.GET":
                found = self.messages.get(json.loads(payload)["last_by_subj"])
                answer = {"error": {"code": 404, "err_code": 10037}}
                if found is not None:
                    answer = {"message": found}
            case _:
                answer = self._write(subject, payload, headers or {})
        verb = verb.replace(".", "_").lower()
        mark = {"type": f"io.nats.jetstream.api.v1.stream_{verb}_response"}
        if subject.startswith("$KV."):
            mark = {"stream": "KV_ergo-c"}
        answer |= mark if self.mark is None else self.mark
        self.replies.append(reply)
        self.store.receive(reply.rpartition(".")[2], 0, json.dumps(answer).encode())

    def _write(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
        if self.refusals:
            self.refusals -= 1
            return {"error": {"code": 503}}
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected not in (None, str(self.messages.get(subject, {}).get("seq", 0))):
            return {"error": {"code": 400, "err_code": 10071}}
        self.last += 1
        data = b64encode(payload).decode()
        self.messages[subject] = {"seq": self.last, "data": data, "time": _now()}
        return {"seq": self.last}

    def copy(self) -> tuple[int, dict[str, dict[str, Any]]]:
        return self.last, dict(self.messages)

    def restore(self, backup: tuple[int, dict[str, dict[str, Any]]]) -> None:
        self.last, self.messages = backup[0], dict(backup[1])


def _now() -> str:
    return datetime.now(UTC).isoformat()


async def losses(bucket: FakeBucket) -> int:
    """How often the store has noticed a loss. An age that is not infinite tells of a loss, too."""
    assert ((await bucket.store.age()).whole == inf) == (not bucket.warnings)
    return len(bucket.warnings)


async def test_a_write_that_gets_an_old_sequence_tells_of_a_loss() -> None:
    """Without a reconnect, as behind a server that has lost its leader."""
    bucket = FakeBucket()
    await bucket.store.put("other", b"value", 0)
    backup = bucket.copy()
    first = await bucket.store.put("key", b"value", 0)
    assert await losses(bucket) == 0
    bucket.restore(backup)

    second = await bucket.store.put("key", b"value", 0)

    assert second.revision == first.revision
    assert second.number > first.number
    assert await losses(bucket) == 1
    # Further answers show no further loss.
    assert await bucket.store.get("key") == second
    await bucket.store.put("key", b"value", second.revision)
    assert await losses(bucket) == 1


async def test_an_entry_that_is_older_than_before_or_missing_tells_of_a_loss() -> None:
    for is_missing in (False, True):
        bucket = FakeBucket()
        first = await bucket.store.put("key", b"value", 0)
        backup = (1, {}) if is_missing else bucket.copy()
        await bucket.store.put("key", b"value", first.revision)
        for _ in range(5):
            await bucket.store.put("other", b"value", bucket.last if bucket.last > 2 else 0)
        bucket.restore(backup)

        assert await bucket.store.get("key") == (None if is_missing else first)

        assert await losses(bucket) == 1


async def test_a_smaller_last_sequence_after_a_reconnect_tells_of_a_loss() -> None:
    bucket = FakeBucket()
    await bucket.store.put("key", b"value", 0)
    backup = bucket.copy()
    await bucket.store.put("other", b"value", 0)
    bucket.restore(backup)

    assert await bucket.store.get("key") is not None  # nothing is wrong with this entry
    assert bucket.warnings == []
    bucket.store.reconnected()
    await bucket.store.get("key")

    assert await losses(bucket) == 1


async def test_a_bucket_that_was_made_again_is_no_loss_since_its_age_is_known() -> None:
    bucket = FakeBucket()
    first = await bucket.store.put("key", b"value", 0)
    await bucket.store.put("key", b"value", first.revision)
    bucket.restore((0, {}))
    bucket.created = _now()

    assert await bucket.store.get("key") is None

    assert await losses(bucket) == 0
    assert (await bucket.store.age()).made < 60


async def test_the_marker_of_a_removed_entry_may_disappear() -> None:
    bucket = FakeBucket()
    first = await bucket.store.put("key", b"value", 0)
    await bucket.store.delete("key", first.revision)
    marker = await bucket.store.get("key")
    assert marker is not None
    assert marker.value == b""
    assert marker.number > first.number
    bucket.messages.clear()

    assert await bucket.store.get("key") is None

    assert await losses(bucket) == 0


async def test_a_loss_is_told_again_if_the_server_did_not_take_the_message() -> None:
    bucket = FakeBucket()
    first = await bucket.store.put("key", b"value", 0)
    await bucket.store.put("key", b"value", first.revision)
    bucket.restore((1, {}))
    bucket.refusals = 1
    await bucket.store.get("key")
    assert bucket.messages == {}

    assert (await bucket.store.age()).whole < 60

    assert [subject.rpartition(".")[2] for subject in bucket.messages] == ["=loss"]


@pytest.mark.parametrize(
    "data, entry",
    [
        (b"", Entry(b"", 1, 1)),
        (b'{"node": "a@test", "creation": 1}', Entry(b'{"node": "a@test", "creation": 1}', 1, 1)),
        (b"%020d{}" % (LARGEST - 1), Entry(b"{}", 1, LARGEST - 1)),
        (b"%020d{}" % (LARGEST + 1), Entry(b"%020d{}" % (LARGEST + 1), 1, 1)),
        (b"%019d" % 5, Entry(b"%019d" % 5, 1, 1)),
    ],
)
async def test_entries_without_a_number_have_that_of_their_sequence(
    data: bytes, entry: Entry
) -> None:
    bucket = FakeBucket()
    bucket.publish("$KV.ergo-c.key", "", data)

    assert await bucket.store.get("key") == entry
    # The next number is larger than both the clock and the last number.
    assert (await bucket.store.put("key", b"value", 1)).number > max(entry.number, 10**18)


async def test_a_store_with_the_largest_number_refuses_writes_and_tells_why() -> None:
    bucket = FakeBucket()
    bucket.publish("$KV.ergo-c.key", "", b"%020d{}" % LARGEST)

    assert await bucket.store.get("key") == Entry(b"{}", 1, LARGEST)
    with pytest.raises(StoreError, match=r"no number is larger.*remove the entry"):
        await bucket.store.put("key", b"value", 1)


async def test_no_other_node_can_guess_where_an_answer_arrives() -> None:
    bucket = FakeBucket()
    for number in range(20):
        await bucket.store.put(f"key-{number}", b"value", 0)

    tokens = [reply.removeprefix("inbox.") for reply in bucket.replies]
    assert len(set(tokens)) == len(tokens) >= 20
    assert all(len(token) == 32 and int(token, 16) > 1 << 64 for token in tokens)


@pytest.mark.parametrize(
    "mark",
    [
        {},
        {"type": "io.nats.jetstream.api.v1.account_info_response"},
        {"stream": "KV_ergo-other"},
        {"type": 7, "stream": 7},
    ],
)
async def test_an_answer_to_another_question_is_refused(mark: dict[str, Any]) -> None:
    bucket = FakeBucket()
    written = await bucket.store.put("key", b"value", 0)
    bucket.mark = mark
    with pytest.raises(StoreError, match="malformed"):
        await bucket.store.get("key")
    with pytest.raises(StoreError, match="malformed"):
        await bucket.store.put("key", b"value", written.revision)
    with pytest.raises(StoreError, match="malformed"):
        await bucket.store.status()


async def test_malformed_answers_are_errors_or_ages_of_nothing() -> None:
    bucket = FakeBucket()
    await bucket.store.put("key", b"value", 0)
    with pytest.raises(ConflictError):
        await bucket.store.put("key", b"value", 7)
    odd: list[Any] = [{"seq": "x"}, {}, {"data": 7, "seq": 1}, {"data": "x", "seq": 1}, 5]
    for message in odd:
        bucket.messages["$KV.ergo-c.odd"] = message
        with pytest.raises(StoreError, match="about an entry is malformed"):
            await bucket.store.get("odd")
    bucket.created = "yesterday"
    assert (await bucket.store.age()).made == 0.0


@pytest.mark.parametrize("sequence", ["7", None, inf, -1, LARGEST + 1, True, [1], 1.5])
async def test_an_answer_with_an_odd_sequence_is_malformed(sequence: Any) -> None:
    bucket = FakeBucket()
    bucket.messages["$KV.ergo-c.odd"] = {"data": "", "seq": sequence}
    with pytest.raises(StoreError, match="malformed: its sequence is"):
        await bucket.store.get("odd")
    bucket.mark = {"stream": "KV_ergo-c", "seq": sequence}

    with pytest.raises(StoreError, match="malformed: its sequence is"):
        await bucket.store.put("key", b"value", 0)


async def test_an_answer_with_the_largest_sequence_is_read() -> None:
    bucket = FakeBucket()
    bucket.messages["$KV.ergo-c.odd"] = {"data": "eA==", "seq": LARGEST}

    assert await bucket.store.get("odd") == Entry(b"x", LARGEST, LARGEST)


async def test_a_refusal_with_odd_values_is_an_error_of_a_few_words() -> None:
    bucket = FakeBucket()
    bucket.mark = {"error": {"code": 404, "err_code": [1] * 999, "description": "x" * 9999}}

    with pytest.raises(StoreError, match="JetStream refuses") as caught:
        await bucket.store.get("key")

    assert len(str(caught.value)) < 1000
