"""Files that are not what they should be are refused by what they are."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest

from testbed.workloads.readers.files import read_text, whole
from transport.errors import ConfigError

LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4665a5ea' * 8}\nsize 12345\n"


def test_text_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "a.csv").write_bytes(mark + b"1,2\n")
        assert read_text(tmp_path / "a.csv") == "1,2\n"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("content", [Counter({1: 2}), {1: 2}, [1, 2]])
def test_a_pickle_is_refused_by_name_whatever_it_is_called(tmp_path: Path, protocol: int, content: object) -> None:
    (tmp_path / "counts.csv").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(ConfigError, match=r"counts\.csv: a Python pickle, which can run code"):
        read_text(tmp_path / "counts.csv")


def test_a_file_called_a_pickle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "counts.PKL").write_text("1,2\n")
    with pytest.raises(ConfigError, match="a Python pickle"):
        read_text(tmp_path / "counts.PKL")


def test_a_git_lfs_pointer_is_named_with_the_size_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(LFS)
    with pytest.raises(ConfigError, match=r"trace\.jsonl: a Git LFS pointer to 12345 bytes, not the file itself"):
        read_text(tmp_path / "trace.jsonl")


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"1 2\n3 \xff\n")
    with pytest.raises(ConfigError, match="m, line 2: byte 0xff is not UTF-8 text"):
        read_text(tmp_path / "m")


def test_an_empty_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(ConfigError, match="empty: it is empty"):
        read_text(tmp_path / "empty")
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        read_text(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1_0", "1.0", " 1", "\u0661", "99999999999999999", "9007199254740993"]
)
def test_what_is_no_whole_number_is_none(text: str) -> None:
    assert whole(text) is None


def test_whole_numbers_are_exact() -> None:
    assert whole("0012") == 12
    assert whole("9007199254740992") == 1 << 53
