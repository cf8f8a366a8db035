"""Whatever its source, what `movielens` gives is the whole table, and a source that fails or hangs leads to the next.

The real ratings may not be passed on: the tables here are drawn, and the expected counts and fingerprint are theirs.
"""

import contextlib
import errno
import hashlib
import io
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

from matrix_adagrad.cli import main
from matrix_adagrad.datasets import movielens as data

HEADER = b"user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
RNG = random.Random(0)
ROWS = [(user, item, RNG.randint(1, 5), RNG.randrange(10**8, 10**9)) for user in range(1, 9) for item in range(1, 13)]
RNG.shuffle(ROWS)
GROUPLENS, RECBOLE = data._grouplens, data._recbole


def text(rows=ROWS):
    return b"".join(b"%d\t%d\t%d\t%d\n" % row for row in rows)


def zipped(name="ml-100k/u.data", content=None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file, words in (("ml-100k/README", "not this one"), (name, text() if content is None else content)):
            archive.writestr(zipfile.ZipInfo(file), words, zipfile.ZIP_DEFLATED)  # of a fixed date
    return out.getvalue()


def flipped(raw, at):
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


def files_under(folder):
    return [file for file in folder.rglob("*") if file.is_file()]


def fails(error):
    def fetch():
        raise error

    return fetch


@pytest.fixture(autouse=True)
def _expected(monkeypatch, tmp_path):
    packed = b"".join(struct.pack("<4q", *row) for row in sorted(ROWS))
    monkeypatch.setattr(data, "COUNTS", {"ratings": 96, "users": 8, "items": 12})
    monkeypatch.setattr(data, "FINGERPRINT", hashlib.sha256(packed).hexdigest())
    monkeypatch.setattr(data, "_grouplens", fails(OSError("GroupLens is down")))
    monkeypatch.setattr(data, "_recbole", fails(OSError("pip is down")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def cached(tmp_path):
    return tmp_path / "cache" / "matrix-adagrad" / "ml-100k.tsv"


FORMATS = {
    "u.data": text(),
    "u.data with the line ends of Windows": text().replace(b"\n", b"\r\n"),
    "ml-100k.zip": zipped(),
    "ml-100k.inter": HEADER + text(),
    "recbole.whl": zipped("recbole/dataset_example/ml-100k/ml-100k.inter", HEADER + text()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_sorted_table_numbered_from_0(name, tmp_path, cached):
    (tmp_path / name).write_bytes(FORMATS[name])
    found = data.movielens(tmp_path / name)
    columns = (found.users + 1, found.items + 1, found.ratings, found.timestamps)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == sorted(ROWS)
    assert {column.dtype for column in columns} == {torch.int64}
    assert (found.source, found.cached) == (str(tmp_path / name), cached)
    assert cached.read_bytes() == text(sorted(ROWS))


@pytest.mark.parametrize("name", ["u.data", "ml-100k.zip", "ml-100k.inter"])
def test_a_folder_is_searched_for_the_files_by_name(name, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README").write_text("not this one", encoding="utf-8")
    (folder / name).write_bytes(FORMATS[name])
    assert data.movielens(folder).source == str(folder / name)


TITLES = [f"Título {item}" for item in range(1, 13)]
U_ITEM = "".join(f"{item}|{title} (1995)|01-Jan-1995||0|1\n" for item, title in enumerate(TITLES, 1)).encode("latin-1")
RECBOLES = "".join(f"{item}\t{title}\t1995\tDrama Comedy\n" for item, title in enumerate(TITLES, 1)).encode()
RECBOLES = b"item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n" + RECBOLES
TITLED = tuple(f"{title} (1995)" for title in TITLES)


def zipped_with(titles, name="ml-100k/u.item"):
    out = io.BytesIO(zipped())
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr(name, titles)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "raw"), [("u.item", U_ITEM), ("u.item", U_ITEM.replace(b"\n", b"\r\n")), ("ml-100k.item", RECBOLES)]
)
def test_titles_are_read_from_the_zip_or_beside_the_ratings_and_cached(name, raw, tmp_path, cached):
    (tmp_path / "u.data").write_bytes(text())
    (tmp_path / "zip").write_bytes(zipped_with(raw, f"ml-100k/{name}"))
    assert data.movielens(tmp_path).titles is None
    (tmp_path / name).write_bytes(raw)
    for path in (tmp_path, tmp_path / "u.data", tmp_path / "zip"):
        shutil.rmtree(cached.parent)
        assert data.movielens(path).titles == TITLED
        found = data.movielens()
        assert (found.source, found.titles) == (str(cached), TITLED)


def test_a_download_brings_titles_if_it_has_them(cached, monkeypatch):
    monkeypatch.setattr(data, "_recbole", zipped)
    assert data.movielens().titles is None
    cached.unlink()
    monkeypatch.setattr(data, "_grouplens", lambda: zipped_with(U_ITEM))
    assert data.movielens().titles == TITLED


@pytest.mark.parametrize(
    ("titles", "message"),
    [
        (U_ITEM.partition(b"\n")[2], "it has 11 titles, not one for each of 12 items"),
        (U_ITEM + b"13|Another\n", "it has 13 titles, not one for each of 12 items"),
        (b"", "it has 0 titles"),
        (b"<html>please log in</html>", "line 1 of the titles is not item, title, …: b'<html>please"),
        (RECBOLES.replace(b"\t1995\tDrama Comedy", b""), "line 2 of the titles is not item, title"),
    ],
)
def test_titles_that_are_not_those_of_the_items_are_refused(titles, message, tmp_path, cached, monkeypatch):
    (tmp_path / "zip").write_bytes(zipped_with(titles))
    with pytest.raises(ValueError, match=f"zip is not MovieLens 100K: {message}"):
        data.movielens(tmp_path / "zip")
    monkeypatch.setattr(data, "_grouplens", lambda: zipped_with(titles))
    monkeypatch.setattr(data, "_recbole", zipped)
    assert data.movielens().source == "the wheel of recbole==1.2.1"
    (cached.parent / "u.item").write_bytes(titles)
    assert data.movielens().source == "the wheel of recbole==1.2.1"  # and not the cache


ALTERED = [(*ROWS[0][:2], ROWS[0][2] % 5 + 1, ROWS[0][3]), *ROWS[1:]]
REFUSED = {
    "empty": (b"", "it has 0 ratings instead of 96"),
    "cut at a line": (text(ROWS[:-1]), "it has 95 ratings instead of 96"),
    "cut within a number": (text()[:-4], "its counts are right, but not its values: sha256"),
    "cut within a line": (text()[:-12], "line 96 is not user, item, rating, timestamp"),
    "a line twice": (text([*ROWS, ROWS[0]]), "it has 97 ratings instead of 96"),
    "a user too many": (text([(99, *ROWS[0][1:]), *ROWS[1:]]), "it has 9 users instead of 8"),
    "an item too many": (text([(ROWS[0][0], 99, *ROWS[0][2:]), *ROWS[1:]]), "it has 13 items instead of 12"),
    "an altered rating": (text(ALTERED), "its counts are right, but not its values: sha256"),
    "a number of 80 bits": (text([(*ROWS[0][:3], 1 << 80), *ROWS[1:]]), "a number that needs more than 64 bits"),
    "another format": (b"userId,movieId,rating,timestamp\n1,1,4.0,964982703\n", "line 1 is not .*b'userId,movieId"),
    "a web page": (b"<html>please log in</html>", "line 1 is not .*please log in"),
    "a zip without the table": (zipped("ml-1m/ratings.dat"), "the zip holds neither u.data nor ml-100k.inter"),
    "a zip cut short": (zipped()[:-40], "the zip is damaged or cut short"),
    "a zip with an altered byte": (flipped(zipped(), 400), "the zip is damaged .*CRC"),
    "a zip that does not inflate": (
        flipped(zipped(), zipped().index(b"PK", 2) + 28),
        "the zip is damaged .*(decompress|Overlapped)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_file_that_is_not_the_whole_table_is_refused_and_leaves_nothing_behind(what, tmp_path, cached):
    raw, message = REFUSED[what]
    (tmp_path / "u.data").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"u.data is not MovieLens 100K: .*{message}.*Get https://.*give its path"):
        data.movielens(tmp_path / "u.data")
    assert not cached.parent.exists()


@pytest.mark.parametrize("what", REFUSED)
def test_a_download_that_is_not_the_whole_table_is_refused_and_the_next_source_is_used(what, cached, monkeypatch):
    monkeypatch.setattr(data, "_grouplens", lambda: REFUSED[what][0])
    with pytest.raises(OSError, match=REFUSED[what][1]):
        data.movielens()
    assert not cached.parent.exists()
    monkeypatch.setattr(data, "_recbole", lambda: FORMATS["recbole.whl"])
    assert data.movielens().source == "the wheel of recbole==1.2.1"


def bomb(declared=None):
    """A zip of a few kilobytes whose table has 64 MB, and says how many it has, or lies."""
    raw = zipped(content=bytes(64_000_000))
    return raw if declared is None else raw.replace(struct.pack("<I", 64_000_000), struct.pack("<I", declared))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (bomb(), "ml-100k/u.data in the zip has 64,000,000 bytes, and the table at most 4,194,304"),
        (bomb(declared=1000), "the zip is damaged .*CRC"),
        (b"PK" + bytes(40_000_000), "it has more than 33,554,432 bytes"),
    ],
    ids=["a bomb", "a bomb that lies", "a file"],
)
def test_oversized_data_is_never_read_into_memory(raw, message, tmp_path):
    (tmp_path / "ml-100k.zip").write_bytes(raw)
    tracemalloc.start()
    with pytest.raises(ValueError, match=rf"is not MovieLens 100K: {message}"):
        data.movielens(tmp_path / "ml-100k.zip")
    assert tracemalloc.get_traced_memory()[1] < 35_000_000
    tracemalloc.stop()


def test_an_endless_download_is_aborted(server, monkeypatch):
    monkeypatch.setattr(data, "ARCHIVE_BYTES", 1000)
    for endless in (response(bytes(1001)), b"HTTP/1.0 200 OK\r\n\r\n" + bytes(1001)):  # with and without a length
        answer(server, [endless])
        with pytest.raises(OSError, match="it has more than 1,000 bytes"):
            GROUPLENS()


def test_a_wrong_path_is_an_error_even_if_other_sources_would_work(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_grouplens", zipped)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        data.movielens(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match="folder holds none of u.data, ml-100k.inter, ml-100k.zip"):
        data.movielens(tmp_path / "folder")


def test_the_sources_are_the_cache_then_grouplens_then_recbole(tmp_path, cached, monkeypatch):
    monkeypatch.setattr(data, "_recbole", lambda: FORMATS["recbole.whl"])
    assert data.movielens(cache=tmp_path / "a").source == "the wheel of recbole==1.2.1"
    monkeypatch.setattr(data, "_grouplens", zipped)
    assert data.movielens().source == data.GROUPLENS
    monkeypatch.setattr(data, "_grouplens", lambda: pytest.fail("the cached file is there"))
    found = data.movielens()
    assert (found.source, found.cached) == (str(cached), cached)


@pytest.mark.parametrize("damage", [b"", text(ALTERED), b"\0" * 100, text()[:-12]])
def test_a_damaged_cached_file_is_fetched_again(damage, cached, monkeypatch):
    cached.parent.mkdir(parents=True)
    cached.write_bytes(damage)
    monkeypatch.setattr(data, "_grouplens", zipped)
    assert data.movielens().source == data.GROUPLENS
    assert data.movielens().source == str(cached)
    assert files_under(cached.parent) == [cached]


def test_if_every_source_fails_one_error_lists_all_reasons(cached):
    with pytest.raises(OSError, match="no source has MovieLens 100K. Get https://.* and give its path.") as failed:
        data.movielens()
    lines = str(failed.value).splitlines()[1:]
    assert [str(cached) in lines[0], "No such file" in lines[0]] == [True, True]
    assert lines[1:] == [f"  {data.GROUPLENS}: GroupLens is down", "  the wheel of recbole==1.2.1: pip is down"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_failure_while_the_cache_is_written_leaves_no_part_of_a_file(step, error, cached, monkeypatch):
    def broken(*_):
        raise error

    monkeypatch.setattr(data, "_grouplens", zipped)
    monkeypatch.setattr(os, step, broken)
    if isinstance(error, OSError):
        found = data.movielens()
        assert (len(found.users), found.cached) == (96, None)
    else:
        with pytest.raises(KeyboardInterrupt):
            data.movielens()
    assert files_under(cached.parent) == []


def test_an_unwritable_cache_only_disables_caching(tmp_path, monkeypatch, capsys):
    (tmp_path / "cache").write_text("a file, where the folder should be", encoding="utf-8")
    monkeypatch.setattr(data, "_grouplens", zipped)
    assert data.movielens().cached is None
    assert main(["data"]) == 0
    assert "cached: no, it could not be written" in capsys.readouterr().out


def test_without_xdg_cache_home_the_cache_is_in_the_home(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data._default_cache() == tmp_path / ".cache" / "matrix-adagrad"


@pytest.fixture
def server(monkeypatch):
    """A listening socket, and `GROUPLENS` its address; it answers when somebody accepts."""
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(data, "GROUPLENS", f"http://127.0.0.1:{listening.getsockname()[1]}/ml-100k.zip")
        yield listening


def answer(server, *answers, pause=0.0):
    """Each answer goes to a connection of its own, in parts."""

    def serve():
        for parts in answers:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)

    threading.Thread(target=serve, daemon=True).start()


def response(content, length=None, status="200 OK"):
    return f"HTTP/1.0 {status}\r\nContent-Length: {length or len(content)}\r\n\r\n".encode() + content


def test_grouplens_sends_the_zip(server):
    answer(server, [response(zipped())])
    assert GROUPLENS() == zipped()


def test_grouplens_may_have_moved(server):
    moved = b"HTTP/1.0 302 Found\r\nLocation: /elsewhere.zip\r\nContent-Length: 0\r\n\r\n"
    answer(server, [moved], [response(zipped())])
    assert GROUPLENS() == zipped()


def test_a_page_instead_of_the_zip_is_refused_and_leaves_nothing(server, cached, monkeypatch):
    monkeypatch.setattr(data, "_grouplens", GROUPLENS)
    answer(server, [response(b"<html>log in to this network</html>")])
    with pytest.raises(OSError, match="line 1 is not user, item, rating, timestamp"):
        data.movielens()
    assert not cached.parent.exists()


def test_an_archive_with_paths_outside_its_folder_writes_nothing_there(tmp_path, cached):
    file = tmp_path / "inside" / "ml-100k.zip"
    file.parent.mkdir()
    file.write_bytes(zipped("../../outside/u.data"))
    assert len(data.movielens(file).users) == 96  # its content is the table, and its path does not matter
    assert {found.name for found in files_under(tmp_path)} == {"ml-100k.zip", cached.name}


def test_grouplens_may_refuse_or_disconnect(server):
    answer(server, [response(b"no", status="503 Busy")])
    with pytest.raises(OSError, match="503: Busy"):
        GROUPLENS()
    answer(server, [response(zipped()[:100], length=1000)])
    with pytest.raises(OSError, match="100 bytes read, 900 more expected"):
        GROUPLENS()
    server.close()
    with pytest.raises(OSError, match="refused"):
        GROUPLENS()


def test_a_silent_or_slow_server_is_given_up(server, monkeypatch):
    monkeypatch.setattr(data, "CONNECT", 0.05)
    with pytest.raises(OSError, match="no answer within 0.05 seconds|timed out"):
        GROUPLENS()
    server.accept()[0].close()
    monkeypatch.setattr(data, "CONNECT", 5)
    monkeypatch.setattr(data, "DOWNLOAD", 0.1)
    answer(server, [response(b"", length=1000), *[b"."] * 10], pause=0.02)
    with pytest.raises(TimeoutError, match="no answer within 0.1 seconds"):
        GROUPLENS()


def test_a_hanging_dns_lookup_is_given_up(monkeypatch):
    monkeypatch.setattr(data, "CONNECT", 0.05)
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(10) and [])
    with pytest.raises(TimeoutError, match="no answer within 0.05 seconds"):
        GROUPLENS()
    released.set()


def test_pip_downloads_the_wheel_into_a_temporary_folder(monkeypatch):
    folders = []

    def run(arguments, **_):
        folders.append(Path(arguments[-1]))
        assert arguments[:5] == [sys.executable, "-m", "pip", "download", "recbole==1.2.1"]
        (folders[0] / "recbole-1.2.1-py3-none-any.whl").write_bytes(FORMATS["recbole.whl"])

    monkeypatch.setattr(subprocess, "run", run)
    assert RECBOLE() == FORMATS["recbole.whl"]
    assert not folders[0].exists()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('a warning\\nERROR: no such package', file=sys.stderr); sys.exit(1)", "failed: ERROR: no such package"),
        ("sys.exit(1)", "pip download failed: "),
        ("import time; time.sleep(20)", "pip did not finish within 0.3 seconds"),
    ],
)
def test_pip_may_fail_or_hang(program, message, monkeypatch):
    real = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda _, **options: real([sys.executable, "-Ic", f"import sys; {program}"], **options)
    )
    monkeypatch.setattr(data, "DOWNLOAD", 0.3 if "sleep" in program else 30)
    with pytest.raises(OSError, match=message):
        RECBOLE()


def test_the_command_prints_the_source_the_counts_and_the_cached_file(tmp_path, cached, capsys):
    (tmp_path / "ml-100k.zip").write_bytes(zipped())
    assert main(["data", "--path", str(tmp_path / "ml-100k.zip")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"MovieLens 100K, from {tmp_path / 'ml-100k.zip'}",
        "96 ratings of 12 items by 8 users, as published",
        f"cached: {cached}",
    ]


def test_the_command_prints_json(tmp_path, cached, capsys):
    (tmp_path / "u.data").write_bytes(text())
    assert main(["data", "--json", "--path", str(tmp_path)]) == 0
    expected = {"source": str(tmp_path / "u.data"), "ratings": 96, "users": 8, "items": 12, "cached": str(cached)}
    assert json.loads(capsys.readouterr().out) == expected


def test_downloads_are_announced_and_local_files_are_not(monkeypatch, capsys):
    monkeypatch.setattr(data, "_recbole", lambda: zipped())
    data.movielens()
    told = [f"MovieLens 100K: downloading {data.GROUPLENS}"]
    told += ["MovieLens 100K: downloading the wheel of recbole==1.2.1 with pip"]
    assert capsys.readouterr() == ("", "\n".join(told) + "\n")
    data.movielens()
    assert capsys.readouterr() == ("", "")


def test_the_command_says_what_is_wrong_and_fails(tmp_path, capsys):
    assert main(["data", "--path", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["data"]) == 1
    assert "pip is down" in capsys.readouterr().err
