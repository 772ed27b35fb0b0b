from __future__ import annotations

import errno
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from penstock.errors import CheckpointError, StateError, TornFileError
from penstock.state import create_exclusive, delete_quietly, files, list_dir, read_bytes, resolve, write_atomic


@pytest.mark.parametrize("uri", ["{}/a b", "file://{}/a%20b", "file://{}/a%20b/", "{}/a b/", "file:{}/a%20b", "file://{}/a b"])
def test_resolve_when_local_then_path_without_trailing_slash(uri, tmp_path):
    fs, root = resolve(uri.format(tmp_path))
    assert isinstance(fs, pafs.LocalFileSystem)
    assert root == f"{tmp_path}/a b"


def test_resolve_when_s3a_then_same_as_s3():
    fs, root = resolve("s3a://bucket/prefix/?region=eu-west-1")
    assert (fs.type_name, root) == ("s3", "bucket/prefix")


def test_resolve_when_letters_are_beyond_ascii_then_they_stay(tmp_path):
    assert resolve(f"file://{tmp_path}/größe")[1] == f"{tmp_path}/größe"
    assert resolve("s3a://bucket/größe?region=eu-west-1")[1] == "bucket/größe"


def test_resolve_when_a_slash_is_missing_then_error_and_no_other_folder():
    with pytest.raises(CheckpointError, match="'file://tmp/x' cannot be used"):
        resolve("file://tmp/x")


def test_resolve_when_scheme_unknown_then_error_names_it():
    with pytest.raises(CheckpointError, match="'gopher://x/y' cannot be used"):
        resolve("gopher://x/y")


def test_write_atomic_when_file_exists_then_replaced_and_nothing_left(fs, root):
    write_atomic(fs, f"{root}/deep/a", b"old")
    write_atomic(fs, f"{root}/deep/a", b"new")
    assert read_bytes(fs, f"{root}/deep/a") == b"new"
    assert list_dir(fs, f"{root}/deep") == ["a"]


def test_write_atomic_when_bytes_not_yet_on_disk_then_name_does_not_exist(fs, root, monkeypatch):
    seen = []
    monkeypatch.setattr(files, "_force", lambda _, path: seen.append((Path(path).name, Path(root, "a").exists())))
    write_atomic(fs, f"{root}/a", b"x", "7")
    assert seen == [(".a.7.tmp", False), ("checkpoint", True)]


def test_write_atomic_when_writer_fails_then_old_file_stays_and_temporary_goes(fs, root):
    write_atomic(fs, f"{root}/a", b"old")
    with pytest.raises(ZeroDivisionError), files.atomic_output(fs, f"{root}/a", "s") as out:
        out.write(b"%d" % (1 // 0))
    assert read_bytes(fs, f"{root}/a") == b"old"
    assert list_dir(fs, root) == ["a"]


def test_write_atomic_when_disk_is_full_then_error_names_path_and_temporary_goes(fs, root, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "_force", full)
    with pytest.raises(StateError, match=re.escape(f"{root}/a could not be written because the disk is full; free space")):
        write_atomic(fs, f"{root}/a", b"x")
    assert list_dir(fs, root) == []


def test_write_atomic_when_size_limit_is_hit_for_real_then_same_error(root):
    script = """
        import resource, sys
        from penstock.errors import StateError
        from penstock.state import list_dir, resolve, write_atomic
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        fs, root = resolve(sys.argv[1])
        try:
            write_atomic(fs, root + "/a", bytes(1 << 21))
        except StateError as wrong:
            print(wrong, list_dir(fs, root))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), root], capture_output=True, text=True, check=True)
    assert f"{root}/a could not be written because the disk is full" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_write_atomic_when_object_store_then_written_in_place(tmp_path):
    class Store(pafs.FileSystemHandler):
        """As much of an object store as is needed: no directories, no rename."""

        def __init__(self):
            self.local = pafs.LocalFileSystem()

        def get_type_name(self):
            return "s3"

        def open_output_stream(self, path, metadata):
            return self.local.open_output_stream(path)

    for name in pafs.FileSystemHandler.__abstractmethods__ - set(vars(Store)):
        setattr(Store, name, lambda *_: pytest.fail("not for object stores"))
    Store.__abstractmethods__ = frozenset()
    fs = pafs.PyFileSystem(Store())
    fs_name = fs.type_name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_OBJECT_STORES", frozenset({fs_name}))
        write_atomic(fs, f"{tmp_path}/a", b"x")
    assert Path(tmp_path, "a").read_bytes() == b"x"


@pytest.mark.parametrize("wrap", [lambda fs: fs, lambda fs: pafs.SubTreeFileSystem("/", fs)])
def test_create_exclusive_when_name_is_taken_then_first_content_stays(fs, root, wrap):
    fs = wrap(fs)
    assert create_exclusive(fs, f"{root}/a", b"first")
    assert not create_exclusive(fs, f"{root}/a", b"second")
    assert read_bytes(fs, f"{root}/a") == b"first"
    assert list_dir(fs, root) == ["a"]


def test_read_bytes_when_missing_then_torn_file_error_names_it(fs, root):
    with pytest.raises(TornFileError, match="/nothing is missing; restore it"):
        read_bytes(fs, f"{root}/nothing")


def test_read_bytes_when_name_looks_compressed_then_bytes_as_written(fs, root):
    write_atomic(fs, f"{root}/a.gz", b"plain")
    assert read_bytes(fs, f"{root}/a.gz") == b"plain"


def test_list_dir_when_directory_missing_then_empty(fs, root):
    assert list_dir(fs, f"{root}/nothing") == []


def test_delete_quietly_when_file_directory_or_nothing_then_says_whether_it_went(fs, root):
    write_atomic(fs, f"{root}/d/a", b"x")
    write_atomic(fs, f"{root}/d/b", b"x")
    assert delete_quietly(fs, f"{root}/d/a")
    assert not delete_quietly(fs, f"{root}/d/a")
    assert delete_quietly(fs, f"{root}/d")
    assert list_dir(fs, root) == []


def test_directory_that_another_process_makes_meanwhile_is_listed_or_not_there(tmp_path):
    """Arrow looks twice, and takes a directory that comes in between for an error."""
    makes = (
        "import os, sys\nfor n in range(1000):\n os.mkdir(f'{sys.argv[1]}/{n}')\n open(f'{sys.argv[1]}/{n}/file', 'w').close()"
    )
    fs = pafs.LocalFileSystem()
    with subprocess.Popen([sys.executable, "-c", makes, str(tmp_path)]):
        for n in range(1000):
            while list_dir(fs, f"{tmp_path}/{n}") != ["file"]:
                pass
