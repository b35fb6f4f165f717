"""What ranks tell each other through memory: whole, in order, and said to be lost where it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labkit.runtime import posts
from labkit.runtime.posts import COLLECTIVE, RECV, ROOM, SEND, Key, Lost, Posts, number
from labkit.trace import Group


def key(seq: int, kind: int = COLLECTIVE, source: int = 0, target: int = 0) -> Key:
    return (kind, 7, source, target, -3, seq)


def test_what_one_rank_writes_all_read(tmp_path: Path) -> None:
    ranks = [Posts(tmp_path, r, 3) for r in range(3)]
    ranks[1].write(key(0), 123_456_789_012_345, 10**12)
    for reader in ranks:
        assert reader.get(key(0)) == (123_456_789_012_345, 10**12)
        assert reader.get(key(1)) is None


def test_a_message_is_told_to_its_two_ends_alone(tmp_path: Path) -> None:
    ranks = [Posts(tmp_path, r, 3) for r in range(3)]
    ranks[0].write(key(0, SEND, 0, 1), 5)
    ranks[1].write(key(0, RECV, 0, 1), 6)
    assert [r.get(key(0, SEND, 0, 1)) for r in ranks] == [(5, 0), (5, 0), None]
    assert [r.get(key(0, RECV, 0, 1)) for r in ranks] == [(6, 0), (6, 0), None]


def test_what_is_dropped_is_forgotten(tmp_path: Path) -> None:
    one, other = (Posts(tmp_path, r, 2) for r in range(2))
    one.write(key(0), 1)
    assert other.get(key(0)) == (1, 0)
    other.drop(key(0))
    other.drop(key(0))
    assert other.get(key(0)) is None


def test_a_rank_that_has_no_file_yet_has_told_nothing(tmp_path: Path) -> None:
    one = Posts(tmp_path, 0, 2)
    assert one.get(key(0)) is None
    Posts(tmp_path, 1, 2).write(key(0), 9)
    assert one.get(key(0)) == (9, 0)


def test_the_ring_goes_round(tmp_path: Path) -> None:
    writer, reader = (Posts(tmp_path, r, 2) for r in range(2))
    for i in range(3 * ROOM):
        writer.write(key(i), i, 2 * i)
        if i % (ROOM - 1) == 0:
            assert reader.get(key(i)) == (i, 2 * i)
    assert reader.get(key(3 * ROOM - 1)) == (3 * ROOM - 1, 2 * (3 * ROOM - 1))


def test_what_was_written_over_is_said_to_be_lost(tmp_path: Path) -> None:
    writer, reader = (Posts(tmp_path, r, 2) for r in range(2))
    for i in range(ROOM + 5):
        writer.write(key(i), i)
    assert reader.get(key(5)) == (5, 0)  # the oldest that is left
    with pytest.raises(Lost, match=rf"rank 0 has posted more than {ROOM} operations while rank 1"):
        reader.get(key(4))


@pytest.mark.parametrize("word", range(10))
def test_a_record_that_is_half_written_is_not_taken(tmp_path: Path, word: int) -> None:
    writer, reader = (Posts(tmp_path, r, 2) for r in range(2))
    writer.write(key(0), 4, 8)
    at = 8 + word
    whole = writer._mine[at]
    writer._mine[at] = whole ^ 0x55
    assert reader.get(key(0)) is None
    writer._mine[at] = whole
    assert reader.get(key(0)) == (4, 8)


WRITER = """
import sys
from pathlib import Path
from labkit.runtime.posts import COLLECTIVE, Posts
mine = Posts(Path(sys.argv[1]), 1, 2)
print("up", flush=True)
for i in range(int(sys.argv[2])):
    mine.write((COLLECTIVE, i, 1, 1, 0, i), i * 10**9, i)
"""


def test_records_are_whole_while_another_process_writes(tmp_path: Path) -> None:
    reader = Posts(tmp_path, 0, 2)
    count = ROOM  # no more than fit, however slowly this process reads
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), str(count)], stdout=subprocess.PIPE
    )
    with writer:
        for i in range(count):
            told = (COLLECTIVE, i, 1, 1, 0, i)
            while (found := reader.get(told)) is None:
                assert writer.poll() in (None, 0)
            assert found == (i * 10**9, i)
    assert writer.returncode == 0


def test_a_group_has_one_number_on_all_ranks_and_another_than_other_groups() -> None:
    groups = [Group("1", "data", (0, 1)), Group("1", "data", (2, 3)), Group("2", "data", (0, 1))]
    assert len({number(g) for g in groups}) == 3
    assert number(groups[0]) == number(Group("1", "data", (0, 1)))
    assert all(0 <= number(g) < 2**63 for g in groups)


def test_a_full_disk_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No such file"):
        Posts(tmp_path / "not there", 0, 1)
    monkeypatch.setattr(posts, "ROOM", 2)
    small = Posts(tmp_path, 0, 1)
    for i in range(5):
        small.write(key(i), i)
    assert small.get(key(4)) == (4, 0)
