"""Places of archives: files, foreign files, shards and addresses."""

import gzip
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from archives import (
    find_parts,
    flip,
    flip_middle,
    pack_shards,
    pack_tree,
    unpack_pipe,
    write_tree,
)
from commands import TEST, TRAIN, VAL, Verify, digests, run_main
from release_server import ROOT, ReleaseServer

from scannet_prep import ScanNet
from scannet_prep.errors import ArchiveError, MissingFileError, UsageError
from scannet_prep.source.place import open_processed
from scannet_prep.stages import info, unpack
from scannet_prep.stages.verify import run as run_verify

READERS: dict[str, Callable[[Any], object]] = {
    "info": lambda path: info.run([path]),
    "verify": lambda path: run_verify([path]),
    "unpack": lambda path: unpack.run([path]),
    "ScanNet": lambda path: ScanNet(path, split="train"),
}

TAR = tarfile.TarInfo("some.txt").tobuf() + bytes(1024)
FOLDER_TAR = b"".join(
    [
        tarfile.TarInfo("processed/.scannet-prep-seen.json").tobuf(),
        tarfile.TarInfo("processed/manifest.json").tobuf(),
        bytes(1024),
    ]
)
FRAME = zstandard.compress(TAR, 3)
PZSTD_FILE = b"\x50\x2a\x4d\x18\4\0\0\0" + len(FRAME).to_bytes(4, "little") + FRAME
OTHER_PROGRAM = "is a .tar.zst of another program"

# The content of a file, the beginning of the problem, and the hint; {} is the quoted path.
FOREIGN_FILES = {
    "tar.zst": (FRAME, OTHER_PROGRAM, "tar --zstd -xf {}"),
    "tar.zst of a processed folder": (
        zstandard.compress(FOLDER_TAR),
        OTHER_PROGRAM,
        "tar --zstd -xf {}",
    ),
    "tar.zst of pzstd": (PZSTD_FILE, OTHER_PROGRAM, "tar --zstd -xf {}"),
    "zstd": (zstandard.compress(b"text"), "is a zstd file", "zstd -d {}"),
    "tar": (TAR, "is a tar file", "tar -xf {}"),
    "gzip": (gzip.compress(TAR), "is a gzip file", "tar -xf {}"),
    "zip": (b"PK\x03\x04" + bytes(60), "is a zip file", "unzip {}"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(60), "is a 7z file", "7z x {}"),
    "web page": (b"<!DOCTYPE html><html>Please log in</html>", "is a web page", "in a browser"),
    "empty": (b"", "is empty", "copy it again"),
    "unknown": (b"something else" * 50, "is a file of another kind", "scannet-prep pack made"),
}


class TestForeignFiles:
    @pytest.fixture(params=FOREIGN_FILES)
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def path(self, kind: str, tmp_path: Path) -> Path:
        path = tmp_path / "some file.tar.zst"
        path.write_bytes(FOREIGN_FILES[kind][0])
        return path

    def test_foreign_file_from_a_pipe_is_named_and_nothing_is_written(
        self, kind: str, path: Path, tmp_path: Path
    ) -> None:
        outcome = unpack_pipe(path, "-o", tmp_path / "out")

        assert outcome.status == 1
        assert FOREIGN_FILES[kind][1] in outcome.stderr
        assert not (tmp_path / "out").exists()


SECRETS = ("anna", "s3cret", "t0ken")


@pytest.fixture
def server(archive_path: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(archive_path.parent) as server:
        server.files[f"{ROOT}scannet.tar.zst"] = archive_path
        yield server


def secret_url(server: ReleaseServer, name: str = "scannet.tar.zst") -> str:
    """Return an address with a user, a password and a token."""
    return f"{server.origin}{ROOT}{name}?key=t0ken".replace("http://", "http://anna:s3cret@")


def run_json(*words: str | Path) -> tuple[int, dict[str, Any]]:
    """Run a command, check that it prints no secrets, and return exit status and JSON object."""
    outcome = run_main(*words, "--json")
    output = outcome.stdout + outcome.stderr
    assert not any(secret in output for secret in SECRETS)
    return outcome.status, outcome.json


COMMANDS_FOR_ADDRESSES = [
    ("info", []),
    ("verify", ["--jobs", "2", "--limit", "9"]),
    ("verify", ["--scenes", VAL]),
]


class TestAddresses:
    @pytest.mark.parametrize(("command", "words"), COMMANDS_FOR_ADDRESSES)
    def test_command_reports_the_same_for_address_and_file(
        self,
        command: str,
        words: list[str],
        server: ReleaseServer,
        archive_path: Path,
    ) -> None:
        file_status, of_file = run_json(command, archive_path, *words)
        url_status, of_url = run_json(command, secret_url(server), *words)

        assert file_status == 0
        assert url_status == 0
        different_keys = {key for key in of_url if of_url[key] != of_file[key]}
        assert different_keys <= {"path", "paths", "seconds"}

    @pytest.mark.parametrize(
        ("command", "words", "max_requests"),
        [(*case, count) for case, count in zip(COMMANDS_FOR_ADDRESSES, (4, 12, 8), strict=True)],
    )
    def test_command_makes_few_requests(
        self, command: str, words: list[str], max_requests: int, server: ReleaseServer
    ) -> None:
        run_json(command, secret_url(server), *words)

        assert len(server.requests()) <= max_requests

    def test_missing_archive_on_the_server_is_an_error(self, server: ReleaseServer) -> None:
        status, value = run_json("info", secret_url(server, "nothing.tar.zst"))

        assert status == 1
        assert value["error"] == "NotOnServerError"

    def test_malformed_address_is_refused(self) -> None:
        status, value = run_json("info", "https://anna:s3cret@[/?t0ken")

        assert status == 2
        assert value["error"] == "UsageError"


def ranges_of(archive_path: Path) -> dict[str, str]:
    """Return the range of each part of an archive as a request names it."""
    parts = find_parts(archive_path)
    return {name: f"bytes={start}-{end - 1}" for name, (start, end) in parts.items()}


class TestRangesOfAddresses:
    def test_unpacking_a_scene_fetches_its_frame_only(
        self, server: ReleaseServer, archive_path: Path, tmp_path: Path
    ) -> None:
        words = ("--scenes", VAL, "-o", tmp_path / "out")
        assert run_json("unpack", secret_url(server), *words)[0] == 0

        requested = [request.range for request in server.requests()]
        expected = ranges_of(archive_path)
        assert requested.count(expected["files"]) == 1
        assert requested.count(expected[VAL]) == 1
        assert expected[TRAIN] not in requested
        assert len(requested) <= 8

    def test_scenes_of_a_truncated_archive_are_recovered(
        self, server: ReleaseServer, archive_path: Path, tmp_path: Path
    ) -> None:
        os.truncate(archive_path, sum(find_parts(archive_path)[VAL]) // 2)

        assert run_json("unpack", secret_url(server), "-o", tmp_path / "out")[0] == 3

        assert (tmp_path / f"out/train/{TRAIN}.npz").is_file()
        assert len(server.requests()) <= 12


@pytest.fixture
def shards(whole_dir: Path, tmp_path: Path) -> list[Path]:
    """The shards of the processed folder, with one scene each."""
    return pack_shards(whole_dir / "processed", tmp_path / "shards.tar.zst", 20_000)


class TestMixedPlaces:
    @pytest.fixture
    def places(self, server: ReleaseServer, shards: list[Path], tmp_path: Path) -> list[str | Path]:
        """The shards: the first at an address, the second in another folder."""
        server.files[f"{ROOT}{shards[0].name}"] = shards[0]
        other_folder = write_tree(tmp_path / "other disk", {})
        moved = Path(shutil.move(shards[1], other_folder))
        return [secret_url(server, shards[0].name), moved, shards[2]]

    def test_unpack_reads_all_shards_of_mixed_places(
        self, places: list[str | Path], tmp_path: Path
    ) -> None:
        status, value = run_json("unpack", *places, "-o", tmp_path / "out")

        assert status == 0
        assert len(value["scenes"]) == 3


class TestCertificates:
    @pytest.fixture
    def url(self, archive_path: Path, authority: tuple[Path, Path]) -> Iterator[str]:
        """The address of an archive on a server whose certificate nobody trusts yet."""
        with ReleaseServer(archive_path.parent, certificate=authority[1]) as server:
            server.files[f"{ROOT}a.tar.zst"] = archive_path
            yield f"{server.origin}{ROOT}a.tar.zst"

    @pytest.mark.parametrize("command", ["info", "verify", "unpack"])
    def test_unknown_authority_is_refused(self, command: str, url: str, tmp_path: Path) -> None:
        words = ["-o", tmp_path / "out"] if command == "unpack" else []

        assert run_json(command, url, *words)[1]["error"] == "CertificateError"

    @pytest.mark.parametrize("command", ["info", "verify"])
    def test_authority_in_ssl_cert_file_is_trusted(
        self,
        command: str,
        url: str,
        authority: tuple[Path, Path],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))

        assert run_json(command, url)[0] == 0

    def test_authority_in_ssl_cert_file_is_trusted_by_the_dataset(
        self, url: str, authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))

        assert len(ScanNet(url, split="train")) == 1


class TestReplacedArchive:
    """An archive that is replaced or changed while a dataset has it open."""

    @pytest.fixture
    def dataset(self, archive_path: Path) -> ScanNet:
        return ScanNet(archive_path, split="train")

    @pytest.fixture
    def replacement(self, archive_path: Path) -> Path:
        """Another archive of the same size, with another modification time."""
        path = Path(shutil.copy(archive_path, archive_path.with_name("new")))
        flip(path, 100)
        os.utime(path, ns=(1, 1))
        return path

    def test_open_dataset_reads_the_old_archive(
        self, dataset: ScanNet, archive_path: Path, replacement: Path
    ) -> None:
        expected = dataset[0]["points"]

        replacement.replace(archive_path)

        assert np.array_equal(dataset[0]["points"], expected)

    def test_unpickled_dataset_refuses_the_replacement(
        self, dataset: ScanNet, archive_path: Path, replacement: Path
    ) -> None:
        replacement.replace(archive_path)
        copy = pickle.loads(pickle.dumps(dataset))

        with pytest.raises(ArchiveError, match=r"scannet\.tar\.zst: was replaced or changed"):
            copy[0]

    def test_reopened_dataset_refuses_the_replacement(
        self, dataset: ScanNet, archive_path: Path, replacement: Path
    ) -> None:
        replacement.replace(archive_path)
        dataset.close()

        with pytest.raises(ArchiveError, match=r"scannet\.tar\.zst: was replaced or changed"):
            dataset[0]

    def test_truncated_archive_is_an_error_that_names_the_scene(
        self, dataset: ScanNet, archive_path: Path
    ) -> None:
        os.truncate(archive_path, 3_000)

        with pytest.raises(ArchiveError, match="scene0000_00: is damaged: the archive ends after"):
            dataset[0]

    def test_removed_archive_is_an_error_after_close(
        self, dataset: ScanNet, archive_path: Path
    ) -> None:
        archive_path.unlink()
        dataset.close()

        with pytest.raises(MissingFileError, match="No such file"):
            dataset[0]


class TestShards:
    def test_unpacking_all_shards_gives_the_folder(
        self, shards: list[Path], whole_dir: Path, tmp_path: Path
    ) -> None:
        assert run_main("unpack", *shards, "-o", tmp_path / "out").status == 0

        assert digests(tmp_path / "out") == digests(whole_dir / "processed")

    def test_unpacking_a_single_shard_warns_of_the_others(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        outcome = run_main("unpack", shards[1], "-o", tmp_path / "out")

        assert outcome.status == 0
        assert "shards of the set are not among the archives" in outcome.stderr

    def test_unpacking_shard_by_shard_gives_the_folder(
        self, shards: list[Path], whole_dir: Path, tmp_path: Path, verify: Verify
    ) -> None:
        for shard in shards:
            assert run_main("unpack", shard, "-o", tmp_path / "out").status == 0

        assert verify(tmp_path / "out") == (0, [])
        assert digests(tmp_path / "out") == digests(whole_dir / "processed")

    def test_renamed_shard_is_an_archive_of_its_own(self, shards: list[Path]) -> None:
        alone = shards[0].rename(shards[0].with_name("alone.tar.zst"))

        assert ScanNet(alone, split="train").scene_ids == [TRAIN]


class TestMissingShard:
    def test_unpack_refuses_several_shards_of_an_incomplete_set(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        problem = f"shards of the set are not among the archives: {shards[1].name}"
        with pytest.raises(UsageError, match=problem):
            unpack.run(shards[::2], tmp_path / "out")

    def test_verify_refuses_a_selection_without_scenes(
        self, shards: list[Path], verify: Verify
    ) -> None:
        assert verify(shards[0], "--splits", "val")[0] == 2

    def test_unpack_of_a_scene_in_another_shard_suggests_it(
        self, shards: list[Path], tmp_path: Path
    ) -> None:
        outcome = run_main("unpack", shards[0], "-o", tmp_path / "out", "--scenes", TEST)

        assert outcome.status == 2
        assert "if this is one of several shards, name all of them" in outcome.stderr


def test_verify_accepts_an_archive_of_raw_scenes(packed_dir: Path, verify: Verify) -> None:
    assert verify(packed_dir / "raw.tar.zst")[0] == 0


def test_info_accepts_an_archive_of_raw_scenes(packed_dir: Path) -> None:
    assert run_main("info", packed_dir / "raw.tar.zst").status == 0


def test_info_refuses_several_folders(whole_dir: Path) -> None:
    folder = whole_dir / "processed"

    assert run_main("info", folder, folder).status == 2


class TestSceneOfAnArchive:
    @pytest.fixture
    def expected(self, whole_dir: Path) -> bytes:
        """The file of the train scene that was packed."""
        return (whole_dir / f"processed/train/{TRAIN}.npz").read_bytes()

    def test_scene_is_the_file_that_was_packed(self, archive_path: Path, expected: bytes) -> None:
        data = open_processed(archive_path).read_file(TRAIN)

        assert data == expected
        assert not data.readonly

    def test_scene_of_a_stored_archive_is_the_file_that_was_packed(
        self, whole_dir: Path, tmp_path: Path, expected: bytes
    ) -> None:
        pack_tree(whole_dir / "processed", tmp_path / "stored.tar.zst", level=0)

        data = open_processed(tmp_path / "stored.tar.zst").read_file(TRAIN)

        assert data == expected
        assert not data.readonly

    def test_scene_with_a_damaged_checksum_is_read_by_its_sha256(
        self, archive_path: Path, expected: bytes
    ) -> None:
        _, end = find_parts(archive_path)[TRAIN]
        flip(archive_path, end - 1)

        data = open_processed(archive_path).read_file(TRAIN)

        assert data == expected
        assert not data.readonly

    def test_damaged_scene_is_refused_by_the_dataset(self, archive_path: Path) -> None:
        flip_middle(archive_path, TRAIN)

        with pytest.raises(ArchiveError, match="has the SHA-256"):
            ScanNet(archive_path, split="train")[0]
