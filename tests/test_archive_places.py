"""What archives are read from: files, foreign files, shards and addresses; and what only archives have wrong."""

import gzip
import os
import pickle
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from archives import call, find_parts, flip, forge, pack_shards, pack_tree, unpack_pipe, write_tree
from commands import SCENES, TEST, TRAIN, VAL, Verify, digests
from release_server import ROOT, ReleaseServer

from scannet_prep import ScanNet
from scannet_prep.archive.layout import ArchiveKind, Head
from scannet_prep.archive.reader import ArchiveReader
from scannet_prep.base.errors import ArchiveError, FileError, MissingFileError, UsageError
from scannet_prep.processed.scene import FORMAT_VERSION, ProcessOptions
from scannet_prep.release.scene import Split
from scannet_prep.stages import info, unpack
from scannet_prep.stages.verify import run as run_verify

TAR = tarfile.TarInfo("some.txt").tobuf() + bytes(1024)
FRAME = zstandard.compress(TAR, 3)
FOLDER = b"".join(
    tarfile.TarInfo(f"processed/{name}").tobuf()
    for name in (".scannet-prep-seen.json", "manifest.json")
)
FOREIGN = {
    "a .tar.zst of another program": (FRAME, "tar --zstd -xf"),
    "a .tar.zst of a processed folder": (
        zstandard.compress(FOLDER + bytes(1024)),
        "tar --zstd -xf",
    ),
    "a .tar.zst of pzstd": (
        b"\x50\x2a\x4d\x18\4\0\0\0" + len(FRAME).to_bytes(4, "little") + FRAME,
        "tar --zstd -xf",
    ),
    "a zstd file": (zstandard.compress(b"text"), "zstd -d"),
    "a tar file": (TAR, "tar -xf"),
    "a gzip file": (gzip.compress(TAR), "tar -xf"),
    "a zip file": (b"PK\x03\x04" + bytes(60), "unzip"),
    "a 7z file": (b"7z\xbc\xaf\x27\x1c" + bytes(60), "7z x"),
    "a web page": (b"<!DOCTYPE html><html>Please log in</html>", "in a browser"),
    "empty": (b"", "copy it again"),
    "a file of another kind": (b"something else" * 50, "scannet-prep pack made"),
}

READERS: dict[str, Callable[[Any], object]] = {
    "info": lambda path: info.run([path]),
    "verify": lambda path: run_verify([path]),
    "unpack": lambda path: unpack.run([path]),
    "ScanNet": lambda path: ScanNet(path, split="train"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_every_reader_says_what_a_foreign_file_is_and_what_to_type(
    what: str, tmp_path: Path
) -> None:
    data, command = FOREIGN[what]
    path = tmp_path / "some file.tar.zst"
    path.write_bytes(data)
    told = set()
    for name, read in READERS.items():
        with pytest.raises(ArchiveError) as caught:
            read(path)
        assert command in caught.value.hint, name
        assert ("'" in caught.value.hint) == (
            "-" in command.split()[-1] or command in {"unzip", "7z x"}
        )
        told.add((caught.value.problem, caught.value.hint))
    assert len(told) == 1
    assert next(iter(told))[0].startswith(
        "is a .tar.zst of another program" if ".tar.zst" in what else "is "
    )
    assert "seek table" not in str(told)
    outcome = unpack_pipe(path, "-o", tmp_path / "out")
    assert (outcome.status, next(iter(told))[0] in outcome.stderr) == (1, True), outcome.stderr
    assert not (tmp_path / "out").exists()


def test_a_named_pipe_does_not_hang_and_places_that_cannot_be_read_say_what_they_need(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "a.tar.zst")
    for read in READERS.values():
        for place, message in (
            (tmp_path / "a.tar.zst", "is a named pipe"),
            ("ftp://b.tar.zst", "No such file"),
        ):
            with pytest.raises(FileError, match=message) as caught:
                read(place)
        assert "a path, or https://, s3://, gs:// or az://" in caught.value.hint


SECRETS = ("anna", "s3cret", "t0ken")


@pytest.fixture
def server(archive_path: Path) -> Iterator[ReleaseServer]:
    with ReleaseServer(archive_path.parent) as server:
        server.files[f"{ROOT}scannet.tar.zst"] = archive_path
        yield server


def secret_url(server: ReleaseServer, name: str = "scannet.tar.zst") -> str:
    return f"{server.origin}{ROOT}{name}?key=t0ken".replace("http://", "http://anna:s3cret@")


def run(*words: object) -> tuple[int, dict[str, Any]]:
    outcome = call(*words, "--json")
    assert not any(secret in outcome.stdout + outcome.stderr for secret in SECRETS)
    return outcome.status, outcome.json


def test_info_and_verify_say_of_an_address_what_they_say_of_the_file(
    server: ReleaseServer, archive_path: Path
) -> None:
    public = f"{server.origin}{ROOT}scannet.tar.zst?..."
    for command, words, limit in (
        ("info", [], 4),
        ("verify", ["--jobs", "2", "--limit", "9"], 12),
        ("verify", ["--scenes", VAL], 8),
    ):
        server.forget()
        of_file, of_url = (
            run(command, archive_path, *words),
            run(command, secret_url(server), *words),
        )
        assert of_url[0] == of_file[0] == 0
        assert len(server.requests()) <= limit, command
        assert {key for key in of_url[1] if of_url[1][key] != of_file[1][key]} <= {
            "path",
            "paths",
            "seconds",
        }
        assert of_url[1]["paths"] == [public]
        outcome = call(command, secret_url(server))
        assert (outcome.status, public in outcome.stdout) == (0, True)
        assert not any(secret in outcome.stdout + outcome.stderr for secret in SECRETS)
    for places, expected in (
        ([secret_url(server, "nothing.tar.zst")], (1, "NotOnServerError")),
        ([secret_url(server)] * 2, (2, "UsageError")),
        (["https://anna:s3cret@[/?t0ken"], (2, "UsageError")),
    ):
        status, value = run("info", *places)
        assert (status, value["error"]) == expected


def test_only_what_is_needed_comes(
    server: ReleaseServer, archive_path: Path, whole_dir: Path, tmp_path: Path
) -> None:
    assert run("unpack", secret_url(server), "--scenes", VAL, "-o", tmp_path / "out")[0] == 0
    parts, ranges = find_parts(archive_path), [request.range for request in server.requests()]
    expected = {name: f"bytes={start}-{end - 1}" for name, (start, end) in parts.items()}
    assert ranges.count(expected["files"]) == ranges.count(expected[VAL]) == 1
    assert expected[TRAIN] not in ranges
    assert len(ranges) <= 8
    reader = ArchiveReader([secret_url(server)], Split.TRAIN)
    server.forget()
    assert reader.read(TRAIN) == (whole_dir / f"processed/train/{TRAIN}.npz").read_bytes()
    assert [request.range for request in server.requests()] == [expected[TRAIN]]
    os.truncate(archive_path, sum(parts[VAL]) // 2)
    server.forget()
    assert run("unpack", secret_url(server), "-o", tmp_path / "rescued")[0] == 3
    assert (tmp_path / f"rescued/train/{TRAIN}.npz").is_file()
    assert len(server.requests()) <= 12


def test_shards_may_be_files_and_addresses_mixed(
    server: ReleaseServer, shards: list[Path], tmp_path: Path
) -> None:
    server.files |= {f"{ROOT}{path.name}": path for path in shards}
    size_bytes = sum(path.stat().st_size for path in shards)
    moved = Path(shutil.move(shards[1], write_tree(tmp_path / "other disk", {})))
    places: list[object] = [secret_url(server, shards[0].name), moved, shards[2]]
    for command in ("info", "verify"):
        status, value = run(command, *places)
        assert (status, value["size_bytes"]) == (0, size_bytes)
    for left, missing in ((places[:2], shards[2]), (places[1:], shards[0])):
        assert run("info", *left)[1]["missing_shards"] == [missing.name]
    status, value = run("unpack", *places, "-o", tmp_path / "out")
    assert (status, len(value["scenes"])) == (0, 3)


def test_authorities_can_be_named(
    archive_path: Path, tmp_path: Path, authority: tuple[Path, Path]
) -> None:
    with ReleaseServer(archive_path.parent, certificate=authority[1]) as server:
        server.files[f"{ROOT}a.tar.zst"] = archive_path
        url = f"{server.origin}{ROOT}a.tar.zst"
        for words, remedy in (
            (["info"], ["--insecure"]),
            (["verify"], ["--ca-bundle", authority[0]]),
            (["unpack", "-o", tmp_path / "out"], ["--ca-bundle", authority[0]]),
        ):
            assert run(*words, url)[1]["error"] == "CertificateError"
            assert run(*words, url, *remedy)[0] == 0


@pytest.mark.parametrize("command", ["info", "verify"])
def test_authority_in_ssl_cert_file_is_trusted_for_archives(
    archive_path: Path, authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
    with ReleaseServer(archive_path.parent, certificate=authority[1]) as server:
        server.files[f"{ROOT}a.tar.zst"] = archive_path
        assert run(command, f"{server.origin}{ROOT}a.tar.zst")[0] == 0


def test_authority_in_ssl_cert_file_is_trusted_by_the_dataset(
    archive_path: Path, authority: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
    with ReleaseServer(archive_path.parent, certificate=authority[1]) as server:
        server.files[f"{ROOT}a.tar.zst"] = archive_path
        assert len(ScanNet(f"{server.origin}{ROOT}a.tar.zst", split="train")) == 1


@pytest.fixture
def shards(whole_dir: Path, tmp_path: Path) -> list[Path]:
    """Of the processed folder: a scene each."""
    return pack_shards(whole_dir / "processed", tmp_path / "shards.tar.zst", 20_000)


def test_an_open_archive_outlives_a_replacement_and_one_that_changes_is_an_error(
    archive_path: Path,
) -> None:
    dataset = ScanNet(archive_path, split="train")
    expected = dataset[0]["points"]
    new_path = flip(Path(shutil.copy(archive_path, archive_path.with_name("new"))), 100)
    os.utime(new_path, ns=(1, 1))
    new_path.replace(archive_path)
    assert np.array_equal(dataset[0]["points"], expected)
    copy = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    for reader in (copy, dataset):
        with pytest.raises(ArchiveError, match=r"scannet\.tar\.zst: was replaced or changed"):
            reader[0]
    dataset = ScanNet(archive_path, split="train")
    os.truncate(archive_path, 3_000)
    with pytest.raises(ArchiveError, match="scene0000_00: is damaged: the archive ends after"):
        dataset[0]
    archive_path.unlink()
    dataset.close()
    with pytest.raises(MissingFileError, match="No such file"):
        dataset[0]


def test_shards_are_one_archive_and_many(
    shards: list[Path], whole_dir: Path, tmp_path: Path, verify: Verify
) -> None:
    expected = digests(whole_dir / "processed")
    assert verify(shards[::-1]) == (0, [])
    assert (verify.value["whole_scenes"], verify.value["paths"]) == (
        sorted(SCENES),
        list(map(str, shards[::-1])),
    )
    assert (
        ScanNet(shards[::-1], split="train").scene_ids
        == ScanNet(shards, split="train").scene_ids
        == [TRAIN]
    )
    assert call("unpack", *shards, "-o", tmp_path / "all").status == 0
    assert digests(tmp_path / "all") == expected
    for shard in shards:
        outcome = call("unpack", shard, "-o", tmp_path / "single")
        assert (
            outcome.status,
            "shards of the set are not among the archives" in outcome.stderr,
        ) == (0, True)
    assert (verify(tmp_path / "single"), digests(tmp_path / "single")) == ((0, []), expected)
    flip(shards[1], sum(find_parts(shards[1])[VAL]) // 2)
    status, [(_, scene_id, name, _)] = verify(shards)
    assert (status, scene_id, Path(name).name) == (3, VAL, shards[1].name)
    alone = shards[0].rename(shards[0].with_name("alone.tar.zst"))
    assert ScanNet(alone, split="train").scene_ids == [TRAIN]


def test_a_missing_shard_is_named(shards: list[Path], tmp_path: Path, verify: Verify) -> None:
    status, [(severity, _, _, message)] = verify(shards[1])
    assert (status, severity, "shards of the set are not among the archives: " in message) == (
        0,
        "note",
        True,
    )
    assert verify(shards[::2])[0] == 2
    problem = f"shards of the set are not among the archives: {shards[1].name}"
    assert problem in verify.value["message"]
    with pytest.raises(UsageError, match=problem):
        unpack.run(shards[::2], tmp_path / "out")
    assert verify(shards[0], "--splits", "val")[0] == 2  # to check nothing is not a check
    outcome = call("unpack", shards[0], "-o", tmp_path / "out", "--scenes", TEST)
    assert (outcome.status, "or is it in a shard that was not given?" in outcome.stderr) == (
        2,
        True,
    )
    others = [
        shards[1].with_name(f"{name}.tar.zst")
        for name in ("shards-00001-of-00009", "other-00001-of-00003")
    ]
    for other in others:
        shutil.copy(shards[1], other)
    for missing, left in (
        (shards[0].name, shards[1:]),
        (shards[1].name, shards[0]),
        *(
            (other.name.replace("00001", "00000"), [other, shards[0], *shards[2:]])
            for other in others
        ),
    ):
        with pytest.raises(ArchiveError, match=f"of which {missing} is missing") as caught:
            ScanNet(left, split="train")
        assert "name all shards" in caught.value.hint


def test_archives_that_do_not_go_together_are_refused(
    archive_path: Path, shards: list[Path], packed_dir: Path, whole_dir: Path, verify: Verify
) -> None:
    folder = whole_dir / "processed"
    places: list[Path]
    for places, kind, message, status in (
        ([*shards, archive_path], UsageError, r"holds scene0000_00, and so does .*\.tar\.zst", 2),
        ([packed_dir / "raw.tar.zst"], ArchiveError, "holds raw scenes, not processed ones", 0),
        ([archive_path, folder], ArchiveError, "processed: is a folder", 1),
        ([archive_path] * 2, UsageError, "holds scene0000_00, and so does", 2),
        ([archive_path.with_name("missing.tar.zst")], MissingFileError, "No such file", 1),
    ):
        with pytest.raises(FileError if kind is not UsageError else kind, match=message):
            ScanNet(places, split="val")
        assert verify(places)[0] == call("info", *places).status == status
        assert status == 0 or re.search(message, verify.value["message"])
    assert verify([folder] * 2)[0] == call("info", folder, folder).status == 2
    with pytest.raises(UsageError, match="the list of archives is empty"):
        ScanNet([], split="val")


@pytest.mark.parametrize(
    "other", [{"align_axis": True}, {"labels_from": "ply"}, {"faces": True}, {"scannet200": True}]
)
def test_archives_of_different_options_are_refused_together(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    paths = []
    for number, options in enumerate((ProcessOptions(), ProcessOptions(**other))):
        paths.append(tmp_path / f"{number}.tar.zst")
        scene_id = f"scene0000_0{number}"
        head = Head(ArchiveKind.PROCESSED, options=options, scene_format=FORMAT_VERSION)
        forge(paths[-1], [(scene_id, [(f"train/{scene_id}.npz", b"x")])], head=head)

    with pytest.raises(
        ArchiveError,
        match=r"1\.tar\.zst: holds scenes that were made with .* but .*0\.tar\.zst with ",
    ):
        ScanNet(paths, split="train")


def test_archive_of_an_older_scene_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.tar.zst"
    head = Head(ArchiveKind.PROCESSED, options=ProcessOptions(), scene_format=1)
    forge(path, [("scene0000_00", [("train/scene0000_00.npz", b"x")])], head=head)

    with pytest.raises(ArchiveError, match="has format 1, expected 2") as caught:
        ScanNet(path, split="train")

    assert "scannet-prep process --force" in caught.value.hint


def test_a_scene_of_an_archive_is_the_file_that_was_packed(
    whole_dir: Path, archive_path: Path, tmp_path: Path
) -> None:
    folder = whole_dir / "processed"
    pack_tree(folder, tmp_path / "stored.tar.zst", level=0)
    start, end = find_parts(archive_path)["scene0000_00"]
    for path in (tmp_path / "stored.tar.zst", archive_path, flip(archive_path, end - 1)):
        reader = ArchiveReader([path], Split.TRAIN)
        found = reader.read(min(reader.lengths))
        assert found == (folder / "train/scene0000_00.npz").read_bytes()
        assert not found.readonly
        reader.close()
    flip(archive_path, (start + end) // 2)
    with pytest.raises(ArchiveError, match="has the SHA-256"):
        ScanNet(archive_path, split="train")[0]
