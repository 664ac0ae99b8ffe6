"""Downloads: places and homes in order, damaged answers, concurrent runs; the catalog of known corpora."""

import contextlib
import gzip
import hashlib
import http.server
import io
import logging
import os
import tarfile
import threading
import zipfile
from pathlib import Path

import pooch
import pytest

from structsparse.base.downloads import KnownArchive, KnownCorpus, KnownFile
from structsparse.base.errors import UserError
from structsparse.corpora.known.catalog import KNOWN, locate

REAL_DATA = Path(os.environ.get("STRUCTSPARSE_DATA", ""))  # read before the fixture below unsets it
TEXT = {"one.txt": "señor X O\n\n", "two.txt": "a Y B-p\nb Y I-p\n" * 5000}


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STRUCTSPARSE_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")  # requests to localhost go there directly


@contextlib.contextmanager
def serving(answers):
    """A local server that answers each path with bytes or an error code; yields its URL and the requested paths."""
    requested = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            answer = answers.get(self.path, 404)
            if isinstance(answer, int):
                return self.send_error(answer)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            return self.wfile.write(answer)

        def log_message(self, *_):
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requested
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def corpus(*urls):
    files = {name: KnownFile(name, hashlib.sha256(text.encode()).hexdigest()) for name, text in TEXT.items()}
    return KnownCorpus("toy", "toys", urls, {"train": files["one.txt"], "test": files["two.txt"]})


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


ENCODINGS = {
    "plain": lambda text: text.encode(),
    "gzipped": lambda text: gzip.compress(text.encode()),
    "latin-1": lambda text: text.encode("latin-1"),
    "gzipped latin-1": lambda text: gzip.compress(text.encode("latin-1")),
}


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_downloads_are_stored_decompressed_in_utf_8(encode, tmp_path):
    with serving({f"/{name}": encode(text) for name, text in TEXT.items()}) as (url, requested):
        paths = corpus(url + "/{file}").locate()
        assert paths == {split: tmp_path / f"cache/toys/{name}" for split, name in zip(paths, TEXT, strict=True)}
        assert [path.read_text(encoding="utf-8") for path in paths.values()] == list(TEXT.values())
        assert files_below(tmp_path) == ["cache/toys/one.txt", "cache/toys/two.txt"]
        assert requested == ["/one.txt", "/two.txt"]
        assert corpus(url + "/{file}").locate() == paths
        assert len(requested) == 2  # found in the cache
    assert corpus("http://nowhere.invalid/{file}").locate() == paths


def test_homes_are_tried_in_order():
    answers = {"/wrong/one.txt": b"other\n", "/b/one.txt.gz": gzip.compress(TEXT["one.txt"].encode())}
    answers |= {"/b/two.txt.gz": gzip.compress(TEXT["two.txt"].encode())}
    with serving(answers) as (url, requested):
        homes = ("/wrong/{file}", "/missing/{file}", "/b/{file}.gz", "/never/{file}")
        paths = corpus(*(url + home for home in homes)).locate()
    assert [path.read_text(encoding="utf-8") for path in paths.values()] == list(TEXT.values())
    assert requested[:3] == ["/wrong/one.txt", "/missing/one.txt", "/b/one.txt.gz"]
    assert not any(path.startswith("/never") for path in requested)


WHOLE = gzip.compress(TEXT["one.txt"].encode() * 100)
BROKEN = {
    "another text": (b"changed\n", "another text, SHA-256 "),
    "cut short": (TEXT["one.txt"].encode()[:-1], "another text, SHA-256 "),
    "gzip cut short": (WHOLE[:-12], "the compressed file is cut short or damaged"),
    "gzip of nothing else": (WHOLE[:20], "the compressed file is cut short or damaged"),
    "gzip damaged": (WHOLE[:15] + b"\xff\xff" + WHOLE[17:], "the compressed file is cut short or damaged"),
    "gzip checksum": (WHOLE[:-8] + b"\0\0\0\0" + WHOLE[-4:], "the compressed file is cut short or damaged"),
    "not found": (404, "the server answers 404 Not Found"),
    "server error": (503, "the server answers 503 Service Unavailable"),
}


@pytest.mark.parametrize(("answer", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_download_leaves_no_file_and_says_where_to_put_one(answer, reason, tmp_path):
    with serving({"/one.txt": answer}) as (url, _), pytest.raises(UserError) as error:
        corpus(url + "/{file}").locate()
    assert not list(tmp_path.rglob("*"))
    message = str(error.value)
    assert message.startswith(f"corpus toy: no one.txt, and its download failed ({url}/one.txt: {reason}")
    where = f"STRUCTSPARSE_DATA/toys/one.txt (STRUCTSPARSE_DATA: not set) or at {tmp_path}/cache/toys/one.txt"
    assert message.endswith(f"put it at {where}, beside two.txt")


def test_without_a_network_the_error_stays_short(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path))
    with serving({}) as (url, _):
        pass  # the server has stopped
    with pytest.raises(UserError) as error:
        corpus(url + "/{file}").locate()
    assert f"({url}/one.txt: no connection)" in str(error.value)
    assert f"(STRUCTSPARSE_DATA: {tmp_path})" in str(error.value)


def test_the_data_folder_comes_before_the_cache_and_the_cache_before_the_network(tmp_path, monkeypatch):
    data, cache = tmp_path / "data/toys", tmp_path / "cache/toys"
    with serving({f"/{name}": text.encode() for name, text in TEXT.items()}) as (url, requested):
        toys = corpus(url + "/{file}")
        assert toys.locate() == {"train": cache / "one.txt", "test": cache / "two.txt"}
        data.mkdir(parents=True)
        (data / "one.txt").write_text("mine\n")
        assert toys.locate()["train"] == cache / "one.txt"
        monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path / "data"))
        assert toys.locate() == {"train": data / "one.txt", "test": cache / "two.txt"}
        assert len(requested) == 2
    assert (data / "one.txt").read_text() == "mine\n"


def test_the_default_cache_is_that_of_the_platform(tmp_path, monkeypatch):
    monkeypatch.delenv("STRUCTSPARSE_CACHE")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "home" / name)
    with serving({f"/{name}": text.encode() for name, text in TEXT.items()}) as (url, _):
        corpus(url + "/{file}").locate()
    assert files_below(tmp_path) == ["home/structsparse/toys/one.txt", "home/structsparse/toys/two.txt"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with serving({"/one.txt": TEXT["one.txt"].encode()}) as (url, _), pytest.raises(UserError, match="cache/toys"):
        corpus(url + "/{file}").locate()


def test_concurrent_runs_find_complete_files(tmp_path):
    results = []
    with serving({f"/{name}": text.encode() for name, text in TEXT.items()}) as (url, _):

        def run():
            results.append([path.read_text(encoding="utf-8") for path in corpus(url + "/{file}").locate().values()])

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [list(TEXT.values())] * 8
    assert files_below(tmp_path) == ["cache/toys/one.txt", "cache/toys/two.txt"]


def test_downloading_is_quiet(capfd, caplog):
    caplog.set_level(logging.INFO, logger=pooch.get_logger().name)
    with serving({f"/{name}": text.encode() for name, text in TEXT.items()}) as (url, _):
        corpus(url + "/{file}").locate()
    assert not [record for record in caplog.records if "pooch" in record.name]
    assert capfd.readouterr() == ("", "")


def test_the_error_for_an_unknown_corpus_lists_the_known_ones():
    with pytest.raises(UserError, match=r"'conll1999' is unknown, expected one of conll2000, conll2002_esp, "):
        locate("conll1999")


@pytest.mark.parametrize("name", KNOWN)
def test_the_catalog_has_a_checksum_for_each_file_and_urls_can_be_replaced(name, tmp_path):
    checksums = [file.sha256 for file in KNOWN[name].files.values()]
    assert all(len(bytes.fromhex(checksum)) == 32 for checksum in checksums)
    assert len(set(checksums)) == len(checksums)
    assert {"train", "test"} <= set(KNOWN[name].files) <= {"train", "dev", "test"}
    with serving({}) as (url, requested), pytest.raises(UserError, match=f"corpus {name}: no "):
        locate(name, [url + "/a/{file}", url + "/b/{file}.gz"])
    first = KNOWN[name].files["train"].name
    assert requested == [f"/a/{first}", f"/b/{first}.gz"]
    assert not list(tmp_path.rglob("*"))


@pytest.mark.corpus
@pytest.mark.skipif("STRUCTSPARSE_DATA" not in os.environ, reason="needs STRUCTSPARSE_DATA")
@pytest.mark.parametrize("name", KNOWN)
def test_the_real_files_pass_their_checksums_as_utf_8_and_as_latin_1(name, monkeypatch):
    originals = {
        file.name: (REAL_DATA / KNOWN[name].folder / file.name).read_bytes() for file in KNOWN[name].files.values()
    }
    answers = {f"/{file}.gz": gzip.compress(text.decode().encode("latin-1"), 1) for file, text in originals.items()}
    with serving(answers) as (url, _):
        paths = locate(name, [url + "/{file}.gz"])
    assert {path.name: path.read_bytes() for path in paths.values()} == originals
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(REAL_DATA))
    assert all(path.is_relative_to(REAL_DATA) for path in locate(name).values())


def zipped(files):
    with io.BytesIO() as received:
        with zipfile.ZipFile(received, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return received.getvalue()


def test_files_are_extracted_from_a_zip_archive():
    answers = {"/a.zip": zipped({f"inner/{name}": text for name, text in TEXT.items()}), "/b.zip": b"PK no"}
    answers["/c.zip"] = zipped({"other": ""})
    with serving(answers) as (url, _):
        paths = corpus(*(f"{url}/{name}.zip#inner/{{file}}" for name in "bca")).locate()
        assert [path.read_text(encoding="utf-8") for path in paths.values()] == list(TEXT.values())
        for path in paths.values():
            path.unlink()
        with pytest.raises(UserError, match=r"file is cut short or damaged.*an archive without inner/one.txt"):
            corpus(*(f"{url}/{name}.zip#inner/{{file}}" for name in "bc")).locate()


def tarred(files):
    with io.BytesIO() as received:
        with tarfile.open(fileobj=received, mode="w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        return received.getvalue()


def archive(data, *urls):
    checksum = hashlib.sha256(data).hexdigest()
    return KnownArchive("toy", "toys", urls, checksum, {"train": "toy-train", "test": "toy-test"}, "train/<file>")


def test_an_archive_is_downloaded_once_and_unpacked(tmp_path, monkeypatch):
    data = tarred({"toy-train/a/1": "one", "toy-test/b/2": "two", "readme": "no"})
    with serving({"/toy.tar.gz": data, "/wrong": b"other"}) as (url, requested):
        toys = archive(data, f"{url}/wrong", f"{url}/missing", f"{url}/toy.tar.gz")
        assert toys.locate() == tmp_path / "cache/toys"
        assert files_below(tmp_path) == ["cache/toys/test/b/2", "cache/toys/train/a/1"]
        assert toys.locate() == tmp_path / "cache/toys"
        assert requested == ["/wrong", "/missing", "/toy.tar.gz"]
    for part in ("train", "test"):
        (tmp_path / "data/toys" / part).mkdir(parents=True)
    monkeypatch.setenv("STRUCTSPARSE_DATA", str(tmp_path / "data"))
    assert toys.locate() == tmp_path / "data/toys"


def test_another_or_damaged_archive_leaves_no_file_and_says_where_to_put_one(tmp_path):
    data = tarred({"toy-train/a/1": "one", "toy-test/b/2": "two"})
    cut = data[: len(data) // 2]
    with serving({"/other": data, "/cut": cut}) as (url, _):
        with pytest.raises(UserError, match=r"another archive, SHA-256 .*train/<file> .STRUCTSPARSE_DATA: not set. or"):
            archive(b"", f"{url}/other").locate()
        with pytest.raises(UserError, match="the compressed file is cut short or damaged"):
            archive(cut, f"{url}/cut").locate()
    assert files_below(tmp_path) == []


def test_an_archive_cannot_write_outside_its_folder(tmp_path):
    data = tarred({"toy-train/a/1": "one", "toy-test/b/2": "two", "../../outside": "no"})
    with serving({"/toy": data}) as (url, _), pytest.raises(UserError, match="its download failed"):
        archive(data, f"{url}/toy").locate()
    assert files_below(tmp_path) == []


def test_concurrent_runs_find_a_complete_folder(tmp_path):
    data, paths = tarred({"toy-train/a/1": "one", "toy-test/b/2": "two"}), []
    with serving({"/toy": data}) as (url, _):
        threads = [
            threading.Thread(target=lambda: paths.append(archive(data, f"{url}/toy").locate())) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert paths == [tmp_path / "cache/toys"] * 8
    assert files_below(tmp_path) == ["cache/toys/test/b/2", "cache/toys/train/a/1"]
