# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --svg, --html, --diff: pictures that a browser shows, figures that are right."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree

import pytest
from conftest import CC, busy, environment, needs
from tool_heaps import INFO, RUN, call, fingerprint, one_line

# Blocks that only `a` reaches, only `b`, and both. Each list is linked through its first words.
PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
void *a[2], *b[2];
static void *list(int count, size_t size) {
    void **head = NULL;
    while (count--) {
        void **one = calloc(1, size);
        *one = head;
        head = one;
    }
    return head;
}
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "more"))
        b[0] = b[0] ? b[0] : NULL, *(void **)a[1] = list(7, 512);
    else if (!a[0])
        a[0] = list(100, 64), b[0] = list(50, 128), a[1] = b[1] = list(1, 100000);
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "lists.c").write_text(PROGRAM)
    subprocess.run([CC, "-O1", folder / "lists.c", "-o", folder / "lists"], check=True)
    return folder / "lists"


@pytest.fixture
def drawn(program, shm):
    """A heap whose name is full of markup."""
    heap = shm / "<i>&\"heap'"
    assert call(RUN, "-H", heap, "-r", "a,b", program).returncode == 0
    return heap


class Tables(html.parser.HTMLParser):
    """The rows of each table of a page, as lists of texts, by the table's id."""

    def __init__(self, page):
        super().__init__()
        self.tables, self.at, self.open = {}, None, []
        self.feed(page)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        if tag == "table":
            self.at = self.tables.setdefault(dict(attrs)["id"], [])
        elif tag == "tr":
            self.at.append([])
        elif tag in ("td", "th"):
            self.at[-1].append("")

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.at[-1][-1] += data


def test_page_says_what_each_root_keeps_alive(drawn):
    before = fingerprint(drawn)
    done = call(INFO, "--html", drawn)
    assert (done.returncode, done.stderr) == (0, "")
    assert "<i>" not in done.stdout and "src=" not in done.stdout and "url(" not in done.stdout
    roots = {row[0]: row[1:4] + row[5:] for row in Tables(done.stdout).tables["roots"][1:]}
    assert roots["a"] == ["16 B", "100", "6.2 KiB", "100 of 64 B"]
    assert roots["b"] == ["16 B", "50", "6.2 KiB", "50 of 128 B"]
    assert roots["more than one root"][1] == "1"
    assert "1 of over 16384 B" in roots["more than one root"][3]
    assert fingerprint(drawn) == before


def test_slots_are_roots_too(shm, program, tmp_path):
    source = tmp_path / "slots.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "__attribute__((weak)) int pmalloc_set_root(unsigned, void *);\n"
        "int main(void) { return pmalloc_set_root(3, calloc(1, 320)) | "
        "pmalloc_set_root(9, calloc(1, 96)); }\n"
    )
    subprocess.run([CC, source, "-o", tmp_path / "slots"], check=True)
    done = call(RUN, "-H", shm / "heap", tmp_path / "slots")
    assert done.returncode == 0, done
    page = Tables(call(INFO, "--html", shm / "heap").stdout)
    roots = {row[0]: row[5] for row in page.tables["roots"][1:]}
    assert (roots["slot 3"], roots["slot 9"]) == ("1 of 320 B", "1 of 96 B")


# Slot i has i + 1 blocks of 64 bytes, and the first two slots a large one together.
SLOTS = r"""
#include <stdlib.h>
__attribute__((weak)) int pmalloc_set_root(unsigned, void *);
void *a;
int main(void) {
    void *large = calloc(1, 100000);
    a = calloc(1, 320);
    for (unsigned i = 0, failed = 0; i < 512; i++) {
        void **head = NULL;
        for (unsigned n = 0; n <= i; n++) {
            void **one = calloc(1, 64);
            one[0] = head;
            one[1] = i < 2 ? large : NULL;
            head = one;
        }
        failed |= pmalloc_set_root(i, head);
        if (failed)
            return 1;
    }
}
"""


def test_figures_of_all_slots(shm, tmp_path):
    """More roots than a page shows: what it shows is the largest, and the others have one row."""
    (tmp_path / "slots.c").write_text(SLOTS)
    subprocess.run([CC, tmp_path / "slots.c", "-o", tmp_path / "slots"], check=True)
    done = call(RUN, "-H", shm / "heap", "-r", "a", tmp_path / "slots")
    assert done.returncode == 0, done
    rows = Tables(call(INFO, "--html", shm / "heap").stdout).tables["roots"][1:]
    shown, others, shared = rows[:-2], rows[-2], rows[-1]
    assert [row[0] for row in shown] == [f"slot {i}" for i in range(511, 447, -1)]
    for i, row in zip(range(511, 447, -1), shown):
        kib = (i + 1) * 64 / 1024
        assert row[1:4] == ["8 B", str(i + 1), f"{kib:.1f} KiB"] and row[5] == f"{i + 1} of 64 B"
    # Slots 0 to 447, and the variable.
    small = 448 * 449 // 2
    assert others[:3] == ["449 other roots", "3.5 KiB", f"{small + 1:,}"], others
    assert others[3] == f"{(small * 64 + 320) / 1024 / 1024:.1f} MiB", others
    assert others[5] == f"{small:,} of 64 B, 1 of 320 B", others
    assert shared[0] == "more than one root" and shared[2] == "1", shared
    assert shared[5].startswith("1 of over 16384 B"), shared


def test_picture_is_what_the_map_says(drawn):
    done = call(INFO, "--svg", drawn)
    root = xml.etree.ElementTree.fromstring(done.stdout)
    titles = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    letters = re.search(r"^map:.*\n((?:  \S+\n)+)", call(INFO, "--map", drawn).stdout, re.MULTILINE)
    row = letters[1].split()[0]
    assert len(titles) == sum(1 for i, c in enumerate(row) if not i or row[i - 1] != c)
    assert any(t.startswith("large") for t in titles) and any(t.startswith("slabs") for t in titles)
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "100 of 1,020 live" in texts or any(t.startswith("100 of ") for t in texts)


SVG = "{http://www.w3.org/2000/svg}"
# A byte alone, a form that is too long, a surrogate, half a character, controls, U+FFFF; and what
# stays as it is.
ODD = b"\xff-\xc0\xaf-\xed\xa0\x80-\xe2\x82-\x1b\x7f-\xef\xbf\xbf-\xc3\xa9\xe2\x82\xac"
SHOWN = "\ufffd-\ufffd\ufffd-\ufffd\ufffd\ufffd-\ufffd\ufffd-??-\ufffd-\xe9\u20ac"


def test_names_that_are_not_utf8(program, shm):
    """A heap and a program whose names are odd bytes: XML and UTF-8 stay valid."""
    folder = os.fsencode(shm) + b"/" + ODD
    os.mkdir(folder)
    shutil.copy(program, folder + b"/program")
    heap = folder + b"/heap"
    subprocess.run([RUN, "-H", heap, "-r", "a,b", folder + b"/program"], check=True)
    pictures = [subprocess.run([INFO, kind, heap], capture_output=True, check=True).stdout
                for kind in ("--svg", "--html")]
    root = xml.etree.ElementTree.fromstring(pictures[0])
    texts = [t.text or "" for t in [*root.iter(SVG + "title"), *root.iter(SVG + "text")]]
    assert f"{shm}/{SHOWN}/heap" in texts, texts
    page = pictures[1].decode()  # strictly
    assert f"<h1>{shm}/{SHOWN}/heap</h1>" in page
    facts = dict(row[:2] for row in Tables(page).tables["facts"])
    assert facts["program"] == f"{shm}/{SHOWN}/program", facts


def colours(png):
    """The share of each colour of a picture."""
    done = subprocess.run(
        ["convert", png, "-depth", "8", "-format", "%c", "histogram:info:"],
        capture_output=True, text=True, check=True,
    )
    counts = {c.lower(): int(n) for n, c in re.findall(r"(\d+):.*?(#[0-9A-Fa-f]{6})", done.stdout)}
    return {colour: n / sum(counts.values()) for colour, n in counts.items()}


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_browser_shows_it(drawn, tmp_path, kind):
    needs("chromium")
    shown = tmp_path / f"heap.{kind}"
    shown.write_text(call(INFO, f"--{kind}", drawn).stdout)
    subprocess.run(
        ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=960,1000",
         "--hide-scrollbars", f"--user-data-dir={tmp_path}/profile",
         f"--screenshot={tmp_path}/shot.png", shown.as_uri()],
        env={**environment(preload=False), "HOME": str(tmp_path)},
        capture_output=True, timeout=90 * busy(), check=True,
    )
    seen = colours(tmp_path / "shot.png")
    assert seen["#ffffff"] > 0.5
    assert seen["#e0a030"] > 1e-4, "a large block"
    assert seen["#2f6db5"] > 1e-5, "live small blocks"
    assert seen["#e8e8e8"] > 1e-4, "free space"


def test_diff_tells_what_grew(drawn, program, shm):
    copy = shm / "before"
    shutil.copytree(drawn, copy)
    assert call(RUN, "-H", drawn, program, "more").returncode == 0
    done = call(INFO, "--diff", "--json", copy, drawn)
    found = json.loads(done.stdout)
    assert found["live_objects"]["after"] - found["live_objects"]["before"] == 7
    assert found["live_bytes"]["after"] - found["live_bytes"]["before"] == 7 * 512
    alone = [json.loads(call(INFO, "--json", heap).stdout) for heap in (copy, drawn)]
    figures = {key: value for key, value in found.items() if isinstance(value, dict)}
    assert len(figures) > 20
    assert all([one[key] for one in alone] == list(figures[key].values()) for key in figures)
    classes = {c["size"]: c["live"] for c in found["classes"]}
    assert classes[512]["after"] - classes[512]["before"] == 7
    assert classes[64]["after"] == classes[64]["before"]
    text = call(INFO, "--diff", copy, drawn).stdout
    assert re.search(r"^live blocks of 512 B +\S+ +\S+ +\+7$", text, re.MULTILINE)
    assert "live blocks of 64 B" not in text
    back = call(INFO, "--diff", drawn, copy).stdout
    assert re.search(r"^live objects .* -7$", back, re.MULTILINE)


def test_wrong_requests(drawn, shm):
    one_line(call(INFO, "--diff", drawn), "pmalloc-info", 16, "two heaps")
    one_line(call(INFO, "--diff", drawn, shm / "none"), "pmalloc-info", 8, "none")
    one_line(call(INFO, "--svg", "--html", drawn), "pmalloc-info", 16, "goes with no other")
    one_line(call(INFO, "--html", "--follow", drawn), "pmalloc-info", 16, "goes with")
    one_line(call(INFO, "--svg", shm / "none"), "pmalloc-info", 8, "none")
    (drawn / "superblock").write_bytes(b"x" * 4096)
    assert call(INFO, "--html", drawn).returncode in (4, 8)
    assert call(INFO, "--diff", drawn, drawn).returncode in (4, 8)


def test_a_heap_without_roots(shm):
    heap = shm / "plain"
    assert call(RUN, "-H", heap, "true").returncode == 0
    page = call(INFO, "--html", heap)
    assert page.returncode == 0 and len(Tables(page.stdout).tables["roots"]) == 1
    xml.etree.ElementTree.fromstring(call(INFO, "--svg", heap).stdout)
