import posixpath
import re

from vitrine.page import TYPES, offline_files, served_files
from vitrine.page.files import INDEX

# A reference in one file to another, relative as on any host.
REFERENCES = re.compile(
    r'(?:src|href)="([a-z][^":#]*\.[a-z]+)"|(?:from|import|import\(|URL\()\s*"(\./[^"]+)"'
)


def names_in(name: str, text: str) -> set[str]:
    found = {first or second for first, second in REFERENCES.findall(text)}
    return {posixpath.normpath(posixpath.join(posixpath.dirname(name), one)) for one in found}


def missing_in(files: dict[str, bytes], *, elsewhere: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [
        (name, other)
        for name, data in files.items()
        if not name.endswith(".py")
        for other in names_in(name, data.decode())
        if other not in files and other not in elsewhere
    ]


def test_every_file_that_a_file_names_is_there() -> None:
    assert missing_in(served_files(), elsewhere=frozenset({"openapi.json"})) == []
    # training.js is loaded only for a run, and docs by a link that is hidden without a server.
    offline = {"openapi.json", "page/training.js"}
    assert missing_in(offline_files(), elsewhere=frozenset(offline)) == []


def test_no_file_loads_anything_from_elsewhere_or_names_a_place_on_the_host() -> None:
    for name, data in (served_files() | offline_files()).items():
        text = data.decode().replace("http://www.w3.org/2000/svg", "")
        if name == "start.py":
            continue
        text = text.replace('new URL(path, "http://localhost")', "")  # to read a question's parameters
        assert not re.search(r"https?://|//[a-z]+\.|@import|\bcdn\b", text), name
        assert not re.search(r'(?:src|href)="/', text), name


def test_both_pages_are_the_same_but_for_where_they_compute() -> None:
    served, offline = served_files(), offline_files()
    differing = {name for name in served.keys() & offline.keys() if served[name] != offline[name]}
    assert differing == {INDEX, "page/api.js"}
    exported = {
        name: set(
            re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", data.decode(), re.MULTILINE)
        )
        for name, data in (("served", served["page/api.js"]), ("offline", offline["page/api.js"]))
    }
    assert exported["offline"] == {"ask", "query", "Refused"} <= exported["served"]


def test_the_page_without_a_server_may_connect_to_its_own_host_alone() -> None:
    index = offline_files()[INDEX].decode()
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]+)"', index)
    assert policy.startswith("default-src 'self';") and "connect-src" not in policy
    assert 'data-place="device"' in index and "EXPORT_ID" in offline_files()["service-worker.js"].decode()


def test_every_kind_of_file_has_a_type() -> None:
    assert {name.rsplit(".", 1)[1] for name in served_files()} <= set(TYPES)
