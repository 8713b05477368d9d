// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.h for C++17: changes of a persistent data structure that are made all or none.
//
//   pm::publish change;
//   auto *n = change.make<node>(list->first.get(), 42);   // constructed; nothing reaches it yet
//   change.store(list->first, n);
//   change.store(list->count, list->count + 1);
//   change.commit();                                      // durable on return
//
// A pm::publish that goes out of scope without commit() frees what it has made. Memory from new and
// malloc lies on the heap as it is, so containers need no allocator of their own.
#ifndef PM_PMALLOC_HPP
#define PM_PMALLOC_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <type_traits>
#include <utility>

#include "pmalloc.h"

namespace pm {

// A pointer in persistent memory: 8 bytes, a plain pointer on media. It can be read everywhere, but
// only a pm::publish changes it, so no change is forgotten by a crash.
template <class T> class ptr {
  public:
    ptr(T *p = nullptr) noexcept : p_(p) {}
    ptr(const ptr &) = default;
    ptr &operator=(const ptr &) = delete;
    T *get() const noexcept { return p_; }
    operator T *() const noexcept { return p_; }
    T *operator->() const noexcept { return p_; }
    T &operator*() const noexcept { return *p_; }

  private:
    T *p_;
};
static_assert(sizeof(ptr<int>) == sizeof(std::uint64_t), "a plain pointer on media");

// Up to `Room` changes: blocks made, stores, blocks freed.
template <std::size_t Room = 16> class publish {
  public:
    publish() = default;
    publish(const publish &) = delete;
    publish &operator=(const publish &) = delete;
    ~publish() { cancel(); }

    // Constructs an object in a block that nothing reaches. Its constructor may allocate and throw.
    template <class T, class... Args> T *make(Args &&...args) {
        void *p = pmalloc_reserve(next(), sizeof(T), alignof(T), 0);
        if (!p)
            throw std::bad_alloc();
        ++count_;
        return ::new (p) T(std::forward<Args>(args)...);
    }
    // `where` will be `value`: a word of 8 bytes in the heap or in a captured root.
    template <class T, class U> void store(T &where, const U &value) {
        static_assert(std::is_trivially_copyable<T>::value && sizeof(T) == 8, "a word of 8 bytes");
        T converted = value;
        std::uint64_t word;
        std::memcpy(&word, &converted, sizeof word);
        put(pmalloc_store(next(), &where, word));
    }
    template <class T, class U> void store(ptr<T> &where, U *value) {
        T *converted = value;
        put(pmalloc_store(next(), &where, reinterpret_cast<std::uintptr_t>(converted)));
    }
    template <class T> void store(ptr<T> &where, const ptr<T> &value) { store(where, value.get()); }
    template <class T> void store(ptr<T> &where, std::nullptr_t) {
        store(where, static_cast<T *>(nullptr));
    }
    void store_root(unsigned slot, void *p) { put(pmalloc_store_root(next(), slot, p)); }
    // The object will be freed. Its destructor is not run: it could not be undone.
    template <class T> void free(T *p) {
        static_assert(std::is_trivially_destructible<T>::value, "its destructor would not run");
        pmalloc_defer_free(next(), p);
        ++count_;
    }
    template <class T> void free(const ptr<T> &p) { free(p.get()); }

    // All or none, durable on return. Throws std::system_error; then nothing has changed.
    void commit() {
        if (pmalloc_publish(op_, count_) != 0)
            throw std::system_error(errno, std::generic_category(), "pmalloc_publish");
        count_ = 0;
    }
    void cancel() noexcept {
        pmalloc_cancel(op_, count_);
        count_ = 0;
    }

  private:
    pmalloc_op *next() {
        if (count_ == Room)
            throw std::length_error("pm::publish has no room for more changes");
        return &op_[count_];
    }
    void put(int status) {
        if (status != 0)
            throw std::system_error(errno, std::generic_category(), "pmalloc_store");
        ++count_;
    }

    pmalloc_op op_[Room];
    std::size_t count_ = 0;
};

// The object in a root slot, or nullptr.
template <class T> T *root(unsigned slot) { return static_cast<T *>(pmalloc_get_root(slot)); }

// Makes the bytes of an object durable.
template <class T> void persist(const T &object) { pmalloc_persist(&object, sizeof object); }

// For containers whose type names an allocator. Memory comes from the heap, as all does.
template <class T> struct allocator {
    using value_type = T;
    allocator() = default;
    template <class U> allocator(const allocator<U> &) noexcept {}
    T *allocate(std::size_t n) {
        if (n > SIZE_MAX / sizeof(T))
            throw std::bad_alloc();
        return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t(alignof(T))));
    }
    void deallocate(T *p, std::size_t) noexcept {
        ::operator delete(p, std::align_val_t(alignof(T)));
    }
    friend bool operator==(const allocator &, const allocator &) { return true; }
    friend bool operator!=(const allocator &, const allocator &) { return false; }
};

} // namespace pm
#endif
