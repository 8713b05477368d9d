// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//! A global allocator whose memory is a PMAlloc heap, and roots that name what of it is kept.
//!
//! ```no_run
//! #[global_allocator]
//! static HEAP: pmalloc::Heap = pmalloc::Heap;
//!
//! let visits = pmalloc::Root::open(0, Vec::<String>::new).unwrap();
//! visits.with(|all| all.push("Ada".into()));
//! ```
//!
//! A root is found again by a later run of the same program. Its type has a name, a size and an
//! alignment, which are kept with it: a build whose type differs in one of these is refused. That
//! is a check, not a proof: between builds Rust may lay out fields of the same size in another
//! order, so give such types `#[repr(C)]`.
//!
//! Under `PMALLOC_COMMIT` a kill takes the heap back to an instant between two `with()`: they take
//! a lock of the C library's, which commits wait for. Rust's own locks are not seen, so do not let
//! a change of what a root reaches go on after its `with()`.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::collections::hash_map::DefaultHasher;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::PathBuf;

extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn calloc(count: usize, size: usize) -> *mut c_void;
    fn realloc(block: *mut c_void, size: usize) -> *mut c_void;
    fn aligned_alloc(align: usize, size: usize) -> *mut c_void;
    fn free(block: *mut c_void);
    fn pthread_mutex_lock(lock: *mut c_void) -> c_int;
    fn pthread_mutex_unlock(lock: *mut c_void) -> c_int;
    fn pmalloc_get_root(slot: c_uint) -> *mut c_void;
    fn pmalloc_set_root(slot: c_uint, block: *mut c_void) -> c_int;
    fn pmalloc_commit() -> c_int;
    fn pmalloc_heap_path() -> *const c_char;
}

/// The allocator. Every block is one of the heap, as those of C are.
pub struct Heap;

/// What malloc aligns to.
const PLAIN: usize = 16;

unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= PLAIN {
            return malloc(layout.size()).cast();
        }
        // C asks for a multiple of the alignment.
        let size = layout.pad_to_align().size();
        aligned_alloc(layout.align(), size).cast()
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= PLAIN {
            return calloc(1, layout.size()).cast();
        }
        let block = self.alloc(layout);
        if !block.is_null() {
            block.write_bytes(0, layout.size());
        }
        block
    }
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        free(block.cast());
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= PLAIN {
            return realloc(block.cast(), size).cast();
        }
        let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
        if !new.is_null() {
            block.copy_to_nonoverlapping(new, layout.size().min(size));
            free(block.cast());
        }
        new
    }
}

/// In the heap, behind a root slot.
struct Kept<T> {
    kind: u64, // of the type
    value: T,
}

/// A `pthread_mutex_t`, which is zeroes at first. It is the process's, so no kill leaves it held.
struct Lock(UnsafeCell<[u64; 8]>);
unsafe impl Sync for Lock {}
static LOCK: Lock = Lock(UnsafeCell::new([0; 8]));

struct Held;
impl Held {
    fn take() -> Self {
        unsafe { pthread_mutex_lock(LOCK.0.get().cast()) };
        Held
    }
}
impl Drop for Held {
    fn drop(&mut self) {
        unsafe { pthread_mutex_unlock(LOCK.0.get().cast()) };
    }
}

fn kind_of<T>() -> u64 {
    let mut hasher = DefaultHasher::new();
    std::any::type_name::<T>().hash(&mut hasher);
    (std::mem::size_of::<T>(), std::mem::align_of::<T>()).hash(&mut hasher);
    hasher.finish()
}

/// A value that outlives the program.
pub struct Root<T: 'static>(*mut Kept<T>);
unsafe impl<T: Send> Send for Root<T> {}
unsafe impl<T: Send> Sync for Root<T> {}

impl<T: 'static> Clone for Root<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: 'static> Copy for Root<T> {}

impl<T: 'static> Root<T> {
    /// The value in this slot, from 0 to 511; `make` makes it where there is none yet.
    ///
    /// Fails with `InvalidData` if another type has the slot, and as `pmalloc_set_root()` does.
    pub fn open(slot: u32, make: impl FnOnce() -> T) -> io::Result<Self> {
        let _held = Held::take();
        let found: *mut Kept<T> = unsafe { pmalloc_get_root(slot) }.cast();
        if found.is_null() {
            let new = Box::into_raw(Box::new(Kept { kind: kind_of::<T>(), value: make() }));
            if unsafe { pmalloc_set_root(slot, new.cast()) } != 0 {
                let error = io::Error::last_os_error();
                drop(unsafe { Box::from_raw(new) });
                return Err(error);
            }
            return Ok(Root(new));
        }
        if unsafe { (*found).kind } != kind_of::<T>() {
            let name = std::any::type_name::<T>();
            let text = format!("root slot {slot} has another type than {name}, or another build's");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Root(found))
    }

    /// Calls `change` with the value. One thread at a time is in any `with()`, and none may call it
    /// from within: that waits for ever.
    pub fn with<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let _held = Held::take();
        change(unsafe { &mut (*self.0).value })
    }
}

/// Makes a commit now (`PMALLOC_COMMIT`). Not from within `with()`.
pub fn commit() -> io::Result<()> {
    match unsafe { pmalloc_commit() } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where the heap is; `None`: on volatile memory.
pub fn heap_path() -> Option<PathBuf> {
    let path = unsafe { CStr::from_ptr(pmalloc_heap_path()) }.to_str().ok()?;
    (!path.is_empty()).then(|| path.into())
}
