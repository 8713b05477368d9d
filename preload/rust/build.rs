// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Links libpmalloc.so: from PMALLOC_LIB, a directory, or from where the linker looks.
fn main() {
    println!("cargo:rerun-if-env-changed=PMALLOC_LIB");
    if let Ok(dir) = std::env::var("PMALLOC_LIB") {
        println!("cargo:rustc-link-search=native={dir}");
    }
    println!("cargo:rustc-link-lib=dylib=pmalloc");
}
