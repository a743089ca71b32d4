"""Folders on their way: what either side refuses of the other, and what is left where it fails."""

from __future__ import annotations

import asyncio
import io
import os
import pathlib
import tarfile

import pytest

from treadle import Actions, ActionsError, AsyncActions, Limits
from treadle.archive import pack, unpack

from conftest import Relay


def made(place: pathlib.Path) -> pathlib.Path:
    (place / "deep").mkdir(parents=True)
    (place / "deep/run.sh").write_text("echo ran")
    (place / "deep/run.sh").chmod(0o755)
    (place / "link").symlink_to("deep/run.sh")
    os.link(place / "deep/run.sh", place / "same")
    (place / ("long " * 30)).write_text("")
    (place / "größe").write_bytes(bytes(range(256)) * 8000)
    return place


def contents(place: pathlib.Path) -> dict[str, object]:
    return {
        str(path.relative_to(place)): os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in sorted(place.rglob("*"))
    }


def test_folders_and_files_go_there_and_back(actions: Actions, tmp_path: pathlib.Path) -> None:
    source = made(tmp_path / "source")
    with actions.open_trajectory() as trajectory:
        trajectory.upload(source, "there/it is")
        assert trajectory.run(["sh", "-c", '"./there/it is/link"'], check=True).text == "ran\n"
        assert trajectory.run(["ls", "-A"], check=True).text == "there\n"
        trajectory.download("there/it is", tmp_path / "new/back")
        assert contents(tmp_path / "new/back") == contents(source)
        assert (tmp_path / "new/back/deep/run.sh").stat().st_mode & 0o111
        trajectory.upload(source / "deep/run.sh", "one/name.sh")
        trajectory.download("one/name.sh", tmp_path / "name.sh")
        assert (tmp_path / "name.sh").read_text() == "echo ran"
        (tmp_path / "empty").mkdir()
        trajectory.upload(tmp_path / "empty", "empty")
        trajectory.download("empty", tmp_path / "nothing")
        assert contents(tmp_path / "nothing") == {}


def test_one_that_is_there_is_joined_and_its_links_are_not_followed(actions: Actions, tmp_path: pathlib.Path) -> None:
    target, aside = tmp_path / "target", tmp_path / "aside"
    (target / "sub").mkdir(parents=True)
    aside.mkdir()
    (target / "kept").write_text("kept")
    (target / "link").symlink_to(aside)
    (target / "a").symlink_to(aside / "own")
    (aside / "own").write_text("own")
    with actions.open_trajectory() as trajectory:
        for name in ("f/a", "f/sub/b", "f/link/c"):
            trajectory.write_file(name, name)
        trajectory.download("f", target)
    assert contents(aside) == {"own": b"own"}
    assert contents(target) == {
        **{name: False for name in ("link", "sub")},
        **{name: f"f/{name}".encode() for name in ("a", "sub/b", "link/c")},
        "kept": b"kept",
    }


def test_what_leads_out_is_refused_before_it_is_sent_and_before_it_is_written(
    actions: Actions, tmp_path: pathlib.Path
) -> None:
    source = made(tmp_path / "source")
    with actions.open_trajectory() as trajectory:
        for make, why in (
            (lambda path: path.symlink_to("/etc/passwd"), "the link './bad' leads to '/etc/passwd'"),
            (lambda path: path.symlink_to("deep/../../x"), "leads to 'deep/../../x'"),
            (lambda path: os.mkfifo(path), "'./bad' is no file, folder or link"),
        ):
            make(source / "bad")
            with pytest.raises(ActionsError, match=why):
                trajectory.upload(source, "f")
            (source / "bad").unlink()
        trajectory.run(["sh", "-c", "mkdir g; echo > g/a; ln -s ../../x g/l; echo > file"], check=True)
        with pytest.raises(ActionsError, match='the link "./l" leads to "../../x"'):
            trajectory.download("g", tmp_path / "g")
        with pytest.raises(ActionsError, match="could not be packed"):
            trajectory.download("nowhere", tmp_path / "g")
        (tmp_path / "here").mkdir()
        with pytest.raises(ActionsError, match="is a folder; name the file in it"):
            trajectory.download("file", tmp_path / "here")
        trajectory.write_file("big/a", b"x" * 100_000)
        for limits in (Limits(bytes=50_000), Limits(entries=1)):
            with pytest.raises(ActionsError, match="take less, or raise `limits`"):
                trajectory.download("big", tmp_path / "g", limits=limits)
        with pytest.raises(FileNotFoundError):
            trajectory.upload(tmp_path / "nowhere", "f")
        assert trajectory.run(["ls", "-A"]).text == "big\nfile\ng\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "source"]


def evil(*members: tuple[str, bytes, str], first: str | None = ".", kind: int = tarfile.GNU_FORMAT) -> io.BytesIO:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=kind) as tar:
        if first is not None:
            top = tarfile.TarInfo(first)
            top.type = tarfile.DIRTYPE
            tar.addfile(top)
        for name, type, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = type, target
            tar.addfile(member)
    return data


sym, file, hard = tarfile.SYMTYPE, tarfile.REGTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "archive,why",
    [
        (evil(("../evil", file, "")), "leads out"),
        (evil(("/evil", file, "")), "leads out"),
        (evil(("evil", sym, "/etc/passwd")), "leads to '/etc/passwd'"),
        (evil(("evil", sym, "../x")), "leads to '../x'"),
        (evil(("a/b/evil", sym, "c/../../../x")), "leads to"),
        (evil(("evil", hard, "/etc/passwd")), "leads out"),
        (evil(("evil", hard, "nowhere")), "leads to"),
        (evil(("s", sym, "a"), ("s/evil", file, "")), "lies in what is no folder"),
        (evil(("a", file, ""), ("a", sym, "b")), "comes again"),
        (evil(("evil", tarfile.FIFOTYPE, "")), "does not write"),
        (evil(("evil", tarfile.CHRTYPE, "")), "does not write"),
        (evil(("evil", sym, "x"), first=None), "it begins with"),
        (evil(("evil", file, ""), ("b", file, ""), first=None), "stands alone"),
        (evil(("é", file, ""), kind=tarfile.PAX_FORMAT), "does not write"),
        (evil(("x" * 5000, file, "")), "longer names"),
        (evil(*((str(number), file, "") for number in range(200))), "more headers|more than"),
        (io.BytesIO(b"x" * 1024), "does not write"),
        (io.BytesIO(), "empty"),
    ],
)
def test_an_archive_of_a_hostile_service_is_refused_and_leaves_nothing(
    tmp_path: pathlib.Path, archive: io.BytesIO, why: str
) -> None:
    with pytest.raises(ActionsError, match=why):
        unpack(archive, tmp_path / "a/target", Limits(bytes=1000, entries=100))
    assert list(tmp_path.rglob("*")) == []


def test_what_is_packed_is_unpacked(tmp_path: pathlib.Path) -> None:
    source = made(tmp_path / "source")
    with open(tmp_path / "archive", "w+b") as archive:
        pack(source, archive)
        unpack(archive, tmp_path / "target", Limits())
    assert contents(tmp_path / "target") == contents(source)


def test_a_transfer_whose_connection_is_cut_begins_again(target: str, tmp_path: pathlib.Path) -> None:
    big = os.urandom(2**20) * 24
    (tmp_path / "big").write_bytes(big)

    async def main() -> None:
        async with Relay(target) as relay, AsyncActions(relay.target) as actions:
            async with await actions.open_trajectory() as trajectory:

                async def cut(work: asyncio.Future[None]) -> None:
                    await asyncio.wait([work], timeout=0.05)
                    relay.cut()
                    await work

                await cut(asyncio.ensure_future(trajectory.upload(tmp_path, "there")))
                await cut(asyncio.ensure_future(trajectory.download("there", tmp_path / "back")))
                assert (await trajectory.run(["ls", "-A"])).text == "there\n"

    asyncio.run(main())
    assert (tmp_path / "back/big").read_bytes() == big
