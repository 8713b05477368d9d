# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""preload/rust: the global allocator and roots of the crate, killed under load."""

import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BUILD, ROOT, busy, environment, said

KILLS = int(os.environ.get("RUST_KILLS", "8"))
PLAIN = """
use std::alloc::{GlobalAlloc, Layout};
#[global_allocator]
static HEAP: pmalloc::Heap = pmalloc::Heap;
#[repr(align(4096))]
struct Page([u8; 4096]);
fn main() {
    println!("{}", pmalloc::heap_path().map_or("volatile".into(), |p| p.display().to_string()));
    println!("{:?}", pmalloc::commit().map_err(|e| e.raw_os_error()));
    let pages: Vec<Box<Page>> = (0..9).map(|n| Box::new(Page([n; 4096]))).collect();
    for (n, page) in pages.iter().enumerate() {
        assert!(page.0[9] == n as u8 && page.0.as_ptr() as usize % 4096 == 0);
    }
    for align in [1usize, 16, 64, 4096] {
        unsafe {
            let layout = Layout::from_size_align(100, align).unwrap();
            let block = HEAP.alloc_zeroed(layout);
            assert!((0..100).all(|i| *block.add(i) == 0) && block as usize % align == 0);
            block.write_bytes(5, 100);
            let larger = HEAP.realloc(block, layout, 9000);
            assert!((0..100).all(|i| *larger.add(i) == 5) && larger as usize % align == 0);
            HEAP.dealloc(larger, Layout::from_size_align(9000, align).unwrap());
        }
    }
    let mut text = String::new();
    for n in 0..10000 { text += &n.to_string(); }
    println!("{}", text.len());
    let opened = match std::env::args().nth(1).as_deref() {
        Some("number") => pmalloc::Root::open(3, || 7u64).map(|_| ()),
        Some(_) => pmalloc::Root::open(3, || "seven".to_string()).map(|_| ()),
        None => return,
    };
    println!("{:?}", opened.map_err(|e| e.to_string()));
}
"""


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Where cargo has put them."""
    if not shutil.which("cargo"):
        pytest.skip("cargo is missing")
    folder = tmp_path_factory.mktemp("rust")
    shutil.copytree(ROOT / "preload" / "rust", folder / "crate")
    (folder / "crate" / "examples" / "plain.rs").write_text(PLAIN)
    env = os.environ | {"PMALLOC_LIB": str(BUILD), "CARGO_TARGET_DIR": str(folder / "target")}
    argv = ["cargo", "build", "--offline", "--release", "--examples"]
    done = subprocess.run(
        argv, cwd=folder / "crate", env=env, capture_output=True, text=True, timeout=300 * busy()
    )
    assert done.returncode == 0 and "warning" not in done.stderr, said(done)
    return folder / "target" / "release" / "examples"


def settings(heap=None, **more):
    more = more | ({"HEAP": heap} if heap else {})
    return environment(False, **more) | {"LD_LIBRARY_PATH": str(BUILD)}


def output(program, heap=None, arguments=(), **more):
    argv, env = [program, *arguments], settings(heap, **more)
    done = subprocess.run(argv, env=env, input="", capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, said(done)
    return done.stdout.splitlines()


def test_the_allocator(examples, heap):
    """Alignments, zeroes, growth; on the heap and without one."""
    assert output(examples / "plain", BACKING="volatile")[0] == "volatile"
    found = output(examples / "plain", heap, COMMIT="api")
    assert found == [str(heap), "Ok(())", "38890"]
    assert output(examples / "plain", heap)[1] != "Ok(())", "there is no commit mode"


def test_killed_under_load(examples, heap):
    """Threads and answers: each change is whole, and no answer is undone."""
    answered = sent = 0
    for _ in range(KILLS):
        env = settings(heap, COMMIT="output")
        with subprocess.Popen(
            [examples / "words"], env=env, stdin=-1, stdout=-1, stderr=-1, text=True
        ) as process:
            line = process.stdout.readline()
            found = re.fullmatch(r"(\d+) words in (\d+) lines, whole\n", line)
            assert found and answered <= int(found[2]) <= sent, (line, answered, sent)
            answered = sent = int(found[2])
            until = time.monotonic() + random.uniform(0.02, 0.3) * busy()
            while time.monotonic() < until:
                process.stdin.write(f"word w{sent % 50} again\n")
                process.stdin.flush()
                sent += 1
                answered = int(process.stdout.readline())
                assert answered == sent
            process.stdin.write("one more\n")
            process.stdin.flush()
            sent += 1
            process.send_signal(signal.SIGKILL)
    line = output(examples / "words", heap)[0]
    assert re.fullmatch(r"\d+ words in \d+ lines, whole", line) and answered > KILLS


def test_a_root_of_another_type(examples, heap):
    """It is refused, and what is there stays."""
    for _ in range(2):
        assert output(examples / "plain", heap, ["text"])[-1] == "Ok(())"
        line = output(examples / "plain", heap, ["number"])[-1]
        assert line == "Err(\"root slot 3 has another type than u64, or another build's\")"
