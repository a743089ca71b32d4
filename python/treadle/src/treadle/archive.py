"""Folders and files as tar archives, checked on this side as on the service's, whatever the other side made of them."""

from __future__ import annotations

import os
import pathlib
import shutil
import tarfile
import uuid
from dataclasses import dataclass
from typing import BinaryIO

from .errors import ActionsError

_block = 512
_longest_name = 4096


@dataclass(frozen=True)
class Limits:
    """Of what is taken from a sandbox: all its content, and how many files, folders and links."""

    bytes: int = 4 * 2**30
    entries: int = 250_000

    @property
    def archive_bytes(self) -> int:
        """Of an archive within them: its headers, those of long names, and what fills up its blocks."""
        return self.bytes + self.entries * (5 * _block + 2 * _longest_name) + 2**20


def pack(source: pathlib.Path, into: BinaryIO) -> None:
    """Of a folder, whose own entry `.` comes first, or of a file. What the service would refuse is refused before it is sent."""
    top = source.resolve(strict=True)
    check = _Check(Limits(2**63, 2**31))

    def checked(member: tarfile.TarInfo) -> tarfile.TarInfo:
        check(member)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(fileobj=into, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(top, arcname="." if top.is_dir() else "file", filter=checked)


def unpack(archive: BinaryIO, target: pathlib.Path, limits: Limits) -> None:
    """Beside `target` first, so that nothing is there where it fails; a folder that is there already is joined."""
    _look_at_headers(archive, limits)
    archive.seek(0)
    place = target if target.is_dir() else target.parent
    stage = place / f".treadle-download-{uuid.uuid4().hex}"
    try:
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            members = tar.getmembers()
            check = _Check(limits)
            for member in members:
                check(member)
            if not members:
                raise _refused("it is empty")
            place.mkdir(parents=True, exist_ok=True)
            stage.mkdir()
            tar.extractall(stage / "in", members, filter="data")
        if members[0].isdir():
            _join(stage / "in", target)
        elif target.is_dir():
            raise _refused(f"'{target}' is a folder; name the file in it")
        else:
            os.replace(stage / "in" / members[0].name, target)
    except tarfile.TarError as error:
        raise _refused(str(error)) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def too_large(limits: Limits) -> ActionsError:
    return _refused(f"it has more than {limits.bytes} bytes or {limits.entries} entries; take less, or raise `limits`")


def _refused(why: str) -> ActionsError:
    return ActionsError(f"the archive is refused: {why}", status="INVALID_ARGUMENT", code="action.invalid")


class _Check:
    """Called with every member in turn, it raises for the first that may not be unpacked."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kinds: dict[str, str] = {}
        self._bytes = 0

    def __call__(self, member: tarfile.TarInfo) -> None:
        path = _path_of(member.name)
        kinds = self._kinds
        if not kinds and path and not member.isreg():
            raise _refused(f"it begins with '{member.name}'; begin with the folder, or with the one file that it is of")
        if kinds and "" not in kinds:
            raise _refused(f"'{member.name}' comes beside a file that stands alone")
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise _refused(f"'{member.name}' is no file, folder or link; leave it out")
        for depth in range(1, len(path)):
            if kinds.setdefault("/".join(path[:depth]), "implied") not in ("folder", "implied"):
                raise _refused(f"'{member.name}' lies in what is no folder")
        name = "/".join(path)
        if name in kinds and not (kinds[name] == "implied" and member.isdir()):
            raise _refused(f"'{member.name}' comes again")
        if member.islnk() and kinds.get("/".join(_path_of(member.linkname))) != "file":
            raise _leads_out(member)
        if member.issym() and not _stays(member.linkname, len(path) - 1):
            raise _leads_out(member)
        kinds[name] = "folder" if member.isdir() else "file" if member.isreg() else "link"
        self._bytes += member.size if member.isreg() else 0
        if self._bytes > self._limits.bytes or len(kinds) > self._limits.entries:
            raise too_large(self._limits)


def _leads_out(member: tarfile.TarInfo) -> ActionsError:
    return _refused(f"the link '{member.name}' leads to '{member.linkname}', out of the folder; leave it out")


def _path_of(name: str) -> list[str]:
    path = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in path or len(name) > _longest_name or "\\" in name and os.name == "nt":
        raise _refused(f"'{name[:200]}' leads out of the folder; leave it out")
    return path


def _stays(target: str, depth: int) -> bool:
    """Up at its beginning alone: what lies behind another link cannot change where that is."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return target != "" and not target.startswith("/") and ups <= depth and ".." not in parts[ups:]


def _look_at_headers(archive: BinaryIO, limits: Limits) -> None:
    """Only such blocks as the service writes, so that no header makes `tarfile` take memory, or read others than were meant."""
    archive.seek(0)
    left = limits.entries * 3 + 1
    while (block := archive.read(_block)) and block.count(0) != len(block):
        kind = block[156:157]
        size = block[124:136].strip(b"\0 ")
        if len(block) < _block or kind not in (b"0", b"1", b"2", b"5", b"L", b"K") or size.strip(b"01234567"):
            raise _refused("it has a header that the service does not write")
        length = int(size or b"0", 8)
        left -= 1
        if left < 0 or (kind in b"LK" and length > _longest_name + 1):
            raise _refused("it has more headers, or longer names, than its limits allow")
        archive.seek(-(-length // _block) * _block, os.SEEK_CUR)


def _join(stage: pathlib.Path, target: pathlib.Path) -> None:
    """By renaming alone. What has the same names is replaced, links too; they are not followed."""
    if not os.path.lexists(target):
        os.rename(stage, target)
        return
    if not target.is_dir():
        raise _refused(f"'{target}' is no folder; remove it first")
    for entry in stage.iterdir():
        place = target / entry.name
        if not _is_folder(entry):
            if _is_folder(place):
                raise _refused(f"'{place}' is a folder, where a file is to be; remove it first")
            os.replace(entry, place)
        elif _is_folder(place):
            _join(entry, place)
        else:
            place.unlink(missing_ok=True)
            os.rename(entry, place)


def _is_folder(path: pathlib.Path) -> bool:
    """Not a link to one."""
    return path.is_dir() and not path.is_symlink()
