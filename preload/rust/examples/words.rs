// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts words of all runs, in a HashMap of Rust's library:
//
//   PMALLOC_LIB=/path cargo build --example words
//   PMALLOC_HEAP=$HOME/words PMALLOC_COMMIT=output words < text
use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use std::thread;

#[global_allocator]
static HEAP: pmalloc::Heap = pmalloc::Heap;

#[derive(Default)]
struct Words {
    seen: HashMap<String, u64>,
    lines: Vec<String>,
    all: u64,
}

fn take(words: &mut Words, line: &str) -> (u64, u64) {
    for word in line.split_whitespace() {
        *words.seen.entry(word.to_string()).or_default() += 1;
        words.all += 1;
    }
    words.lines.push(line.to_string());
    (words.all, words.lines.len() as u64)
}

fn main() -> io::Result<()> {
    let words = pmalloc::Root::open(3, Words::default)?;
    let whole = words.with(|w| w.seen.values().sum::<u64>() == w.all);
    let (all, lines) = words.with(|w| (w.all, w.lines.len()));
    println!("{all} words in {lines} lines, {}", if whole { "whole" } else { "torn" });
    // Others count, too: each its own word.
    for number in 0..2 {
        thread::spawn(move || loop {
            words.with(|w| {
                *w.seen.entry(format!("thread-{number}")).or_default() += 1;
                w.all += 1;
            });
            thread::yield_now();
        });
    }
    for line in io::stdin().lock().lines() {
        let (_, lines) = words.with(|w| take(w, line.as_deref().unwrap_or("")));
        println!("{lines}");
        io::stdout().flush()?;
    }
    std::process::exit(0)
}
