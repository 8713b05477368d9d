# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Debian's programs that use libgc do under libpmalloc_gc.so what they do under libgc: the same
output and the same files, with many more collections."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import compiled, said, tool

GUILE = """
(define (loop n) (let lp ((i 0) (s 0)) (if (= i n) s (lp (+ i 1) (+ s (vector-length
    (make-vector 10 i)))))))
(display (loop 300000)) (newline)
(define table (make-weak-key-hash-table))
(let lp ((i 0)) (when (< i 20000) (hash-set! table (cons i i) i) (lp (+ i 1))))
(gc) (gc)
(display (hash-fold (lambda (k v n) (+ n 1)) 0 table)) (newline)
(define guard (make-guardian))
(guard (cons 1 2))
(display (string-length (object->string (map (lambda (i) (make-string i #\\a)) (iota 500)))))
"""
ECL = """(progn (let ((s 0)) (dotimes (i 300000) (incf s (length (list i i)))) (print s))
    (ext:gc t) (print (length (loop for i below 10000 collect (make-string 5)))) (ext:quit))"""
NEKO = """
var list = null; var i = 0;
while (i < 300000) { list = { next => if (i % 100 != 0) list else null, text => "n" + i }; i += 1 }
var count = 0;
while (list != null) { count += $ssize(list.text); list = list.next }
$print(count, "\\n");
"""
POKE = """
var all = string[]();
for (var i = 0; i < 400; i++) { var text = "a" * i as uint<64>; all += [text]; }
printf ("%u64d %u64d\\n", all'length, all[399]'length);
"""
PARSER = """@main[]
$table[^hash::create[]]
^for[i](1;20000){$table.[key ^eval($i % 500)][value $i]}
^memory:compact[]
^table.foreach[key;value]{$value^;}
"""
ASYMPTOTE = """
size(200); path[] all;
for (int i = 0; i < 400; ++i) { all.push(shift(i, i * i % 37) * unitcircle); draw(all[i]); }
write(all.length);
"""
LILYPOND = r"""\version "2.22.0"
\score { \new PianoStaff << \new Staff \relative c' { \repeat unfold 8 { c8 d e f g a b c } }
    \new Staff { \clef bass \repeat unfold 8 { <c e g>2 <d f a>2 } } >> \layout { } }
"""
PAGE = "<table><tr><td>a<td>b</table><p>hello &eacute;<ul><li>one<li>two</ul>" * 3000

# Of each program: its input files, the command, and the least number of collections.
PROGRAMS = {
    "guile": ({}, ["guile", "--no-auto-compile", "-c", GUILE], 10),
    "ecl": ({}, ["ecl", "-norc", "-eval", ECL], 8),
    "neko": ({"list.neko": NEKO}, ["sh", "-c", "nekoc list.neko && neko list.n"], 5),
    "poke": ({"list.pk": POKE}, ["poke", "-q", "-L", "list.pk"], 3),
    "w3m": ({"page.html": PAGE}, ["w3m", "-dump", "page.html"], 10),
    "mmv": ({f"{i}.old": str(i) for i in range(300)}, ["mmv", "-v", "*.old", "new.#1"], 0),
    "parser3": ({"list.p": PARSER}, ["parser3", "list.p"], 1),
    "asy": ({"list.asy": ASYMPTOTE}, ["asy", "-noV", "-f", "eps", "-nosafe", "list.asy"], 1),
    "lilypond": (
        {"a.ly": LILYPOND},
        ["lilypond", "-s", "--svg", "-dno-point-and-click", "a.ly"],
        50,
    ),
}

# Where the package has another name. asymptote comes with TeX, so bootstrap leaves it out.
PACKAGES = {"guile": "guile-3.0", "asy": "asymptote", "parser3": "parser3-cgi"}


def normal(data):
    return re.sub(rb"(?m)^%%(CreationDate|Creator).*$", b"", data)


def outcome(name, folder, command, **settings):
    """What the program says, and the files that are there afterwards."""
    folder.mkdir()
    for file, text in PROGRAMS[name][0].items():
        (folder / file).write_text(text)
    env = os.environ | {"HOME": str(folder.parent), "GUILE_AUTO_COMPILE": "0", **settings}
    done = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert done.returncode == 0, said(done)
    files = {path.name: normal(path.read_bytes()) for path in folder.iterdir()}
    return done.stdout, done.stderr, files


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_debian(name, tmp_path):
    _, argv, least = PROGRAMS[name]
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed: apt-get install {PACKAGES.get(name, name)}")
    plain = outcome(name, tmp_path / "plain", argv)
    assert plain[0] or plain[2].keys() > PROGRAMS[name][0].keys()
    count = compiled("boehm_count.c", "-fPIC", "-shared", name="boehm_count.so")
    with_gc = [tool("pmalloc-run"), "--gc", "-s", "BACKING=volatile", "--", *argv]
    ours = outcome(
        name,
        tmp_path / "ours",
        with_gc,
        LD_PRELOAD=str(count),
        COLLECTIONS=str(tmp_path / "collections"),
        GC_FREE_SPACE_DIVISOR="1000",
    )
    assert ours == plain
    collections = (tmp_path / "collections").read_text().split()
    assert sum(map(int, collections)) >= least, collections
