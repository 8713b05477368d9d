// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc.h for C++17: roots by name and type, memory for std::pmr, and changes of a persistent
// data structure that are made all or none.
//
//   struct world { std::pmr::map<std::pmr::string, long> counts{pm::resource()}; };
//   auto &w = pm::root<world>("world");    // made in the first run, found in the later ones
//   ++w.counts["visits"];
//
//   pm::publish change;
//   auto *n = change.make<node>(list->first.get(), 42);   // constructed; nothing reaches it yet
//   change.store(list->first, n);
//   change.store(list->count, list->count + 1);
//   change.commit();                                      // durable on return
//
// A pm::publish that goes out of scope without commit() frees what it has made. Memory from new and
// malloc lies on the heap as it is, so containers need no allocator of their own. A kill in the
// middle of a container's own change leaves half of it: docs/modes.md says what helps.
#ifndef PM_PMALLOC_HPP
#define PM_PMALLOC_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <cxxabi.h>
#if __has_include(<memory_resource>)
#include <memory_resource>
#endif

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
        return ::new (reserve(sizeof(T), alignof(T))) T(std::forward<Args>(args)...);
    }
    // A block that nothing reaches.
    void *reserve(std::size_t bytes, std::size_t align = 0, unsigned flags = 0) {
        void *p = pmalloc_reserve(next(), bytes, align, flags);
        if (!p)
            throw std::bad_alloc();
        ++count_;
        return p;
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

// ---- roots by name and type ---------------------------------------------------------------------

// How heaps name a type: by its mangled name, which gcc and clang make alike. A type that got
// another name in the program keeps its roots by a specialisation that gives the old one. So does
// a program without RTTI, and one that wants to be refused when it has changed a type's members:
//
//   template <> struct pm::type_name<world> { static const char *get() { return "world, 2"; } };
template <class T> struct type_name {
#ifdef __GXX_RTTI
    static const char *get() noexcept { return typeid(T).name(); }
#else
    static_assert(sizeof(T) == 0, "without RTTI: specialise pm::type_name for this type");
#endif
};

// The heap has a root of this name, but of another type, or the type has another size now. Nothing
// was changed.
class wrong_type : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

// Named roots lie in this root slot.
constexpr unsigned names_slot = PMALLOC_ROOT_SLOTS - 1;

namespace detail {

// A root, in the heap. Behind it lie its name and that of its type.
struct named {
    named *next;
    void *object;
    std::uint64_t size, align;
    std::uint64_t name_bytes, type_bytes;

    std::string_view name() const { return {text(), name_bytes}; }
    std::string_view type() const { return {text() + name_bytes, type_bytes}; }
    const char *text() const { return reinterpret_cast<const char *>(this + 1); }
};
static_assert(sizeof(named) == 48, "frozen");

constexpr std::uint64_t names_magic = 0x3153454d414e4d50; // "PMNAMES1"
struct names {
    std::uint64_t magic = names_magic;
    named *first = nullptr;
};
static_assert(sizeof(names) == 16, "frozen");

inline std::recursive_mutex &names_lock() {
    static std::recursive_mutex lock;
    return lock;
}

inline void renew_resources(const names *all);

// nullptr: there is no named root yet. The lock is held.
inline names *all_names(bool make) {
    static names *of_process; // where no memory outlives it
    static const names *renewed;
    bool keeps = pmalloc_is_persistent();
    auto *all = static_cast<names *>(pmalloc_get_root(names_slot));
    if (!all && !keeps)
        all = of_process;
    if (all && all->magic != names_magic)
        throw wrong_type("root slot " + std::to_string(names_slot) +
                         " is that of pm::root<T>(name), and has another pointer");
    if (all && all != renewed)
        renew_resources(all);
    renewed = all;
    if (all || !make)
        return all;
    publish<2> change;
    all = change.make<names>();
    if (keeps)
        change.store_root(names_slot, all);
    change.commit();
    if (!keeps)
        of_process = all;
    renewed = all;
    return all;
}

inline std::string readable(std::string_view type) {
    std::string name(type);
    int status = 0;
    std::unique_ptr<char, void (*)(void *)> text(
        abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
    return text ? text.get() : name;
}

inline std::string told(std::string_view type, std::uint64_t size, std::uint64_t align) {
    return readable(type) + " (" + std::to_string(size) + " bytes, aligned to " +
           std::to_string(align) + ")";
}

template <class T> void check(const named &root) {
    std::string_view type = type_name<T>::get();
    if (root.type() != type || root.size != sizeof(T) || root.align != alignof(T))
        throw wrong_type("the root \"" + std::string(root.name()) + "\" is a " +
                         told(root.type(), root.size, root.align) + ", and not a " +
                         told(type, sizeof(T), alignof(T)));
}

// Where the pointer to the root of this name lies. nullptr: there is none.
inline named **find(names *all, std::string_view name) {
    for (named **at = all ? &all->first : nullptr; at && *at; at = &(*at)->next)
        if ((*at)->name() == name)
            return at;
    return nullptr;
}

// A kill leaves the whole root or none: until the publish nothing reaches it.
template <class T, class... Args> T &add(names *all, std::string_view name, Args &&...args) {
    std::string_view type = type_name<T>::get();
    publish<3> change;
    T *object = change.make<T>(std::forward<Args>(args)...);
    auto destroy = [](T *p) { p->~T(); };
    std::unique_ptr<T, decltype(destroy)> unless_done(object, destroy);
    void *place = change.reserve(sizeof(named) + name.size() + type.size(), alignof(named));
    auto *root = ::new (place)
        named{all->first, object, sizeof(T), alignof(T), name.size(), type.size()};
    char *text = reinterpret_cast<char *>(root + 1);
    std::memcpy(text, name.data(), name.size());
    std::memcpy(text + name.size(), type.data(), type.size());
    change.store(all->first, root);
    change.commit();
    return *unless_done.release();
}

} // namespace detail

// The root of this name. If there is none, it is constructed with `args`, which may allocate and
// throw, and is durable on return. It stays where it is, in this run and in later ones. Throws
// wrong_type, std::bad_alloc, std::system_error, and what the constructor throws. Thread-safe: one
// thread constructs. Only T's own size is compared with that of the last run; a program that
// changes what members there are calls the type another one, by type_name. On a volatile heap it
// lives as long as the process.
template <class T, class... Args> T &root(std::string_view name, Args &&...args) {
    static_assert(std::is_object<T>::value && !std::is_array<T>::value &&
                      std::is_same<T, std::remove_cv_t<T>>::value,
                  "a root is an object that can change; wrap arrays in std::array");
    std::lock_guard<std::recursive_mutex> guard(detail::names_lock());
    auto *all = detail::all_names(true);
    if (auto **at = detail::find(all, name)) {
        detail::check<T>(**at);
        return *static_cast<T *>((*at)->object);
    }
    return detail::add<T>(all, name, std::forward<Args>(args)...);
}
// The one root of a type, which has its name.
template <class T> T &root() { return root<T>(type_name<T>::get()); }

// The same if it is there, or nullptr: nothing is made.
template <class T> T *find_root(std::string_view name = type_name<T>::get()) {
    std::lock_guard<std::recursive_mutex> guard(detail::names_lock());
    auto **at = detail::find(detail::all_names(false), name);
    if (!at)
        return nullptr;
    detail::check<T>(**at);
    return static_cast<T *>((*at)->object);
}

// Destroys the root. False: there is none. A kill leaves all of it, or nothing.
template <class T> bool drop_root(std::string_view name = type_name<T>::get()) {
    std::lock_guard<std::recursive_mutex> guard(detail::names_lock());
    auto **at = detail::find(detail::all_names(false), name);
    if (!at)
        return false;
    detail::check<T>(**at);
    detail::named *root = *at;
    T *object = static_cast<T *>(root->object);
    publish<2> change;
    change.store(*at, root->next);
    change.free(root);
    change.commit();
    object->~T(); // nothing reaches it any more, so a kill in here frees the rest
    std::free(object);
    return true;
}

// ---- std::pmr -----------------------------------------------------------------------------------

#ifdef __cpp_lib_memory_resource
// Memory of the heap for containers of std::pmr. `flags`: PMALLOC_POINTER_FREE for what has no
// pointers in it, such as text; and the others of pmalloc.h.
class memory_resource : public std::pmr::memory_resource {
  public:
    explicit memory_resource(unsigned flags = 0) noexcept : flags_(flags) {}

  private:
    void *do_allocate(std::size_t bytes, std::size_t align) override {
        std::size_t more = align > alignof(std::max_align_t) ? align : 0;
        void *p = flags_ || more ? pmalloc_alloc(bytes, more, flags_) : std::malloc(bytes);
        if (!p)
            throw std::bad_alloc();
        return p;
    }
    void do_deallocate(void *p, std::size_t, std::size_t) override { std::free(p); }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
#ifdef __GXX_RTTI
        auto *same = dynamic_cast<const memory_resource *>(&other);
        return same && same->flags_ == flags_;
#else
        return this == &other;
#endif
    }

    friend void detail::renew_resources(const detail::names *all);
    unsigned flags_;
};
template <> struct type_name<memory_resource> {
    static const char *get() noexcept { return "pm::memory_resource"; }
};

// A resource that lies in the heap itself, as a named root: containers keep a pointer to theirs, so
// those that outlive the process need one that does. Each start makes it one of its own build, when
// it asks for its first named root.
inline std::pmr::memory_resource *resource(unsigned flags = 0) {
    return &root<memory_resource>("pm::resource, " + std::to_string(flags), flags);
}

namespace detail {
// What an earlier run has made leads to the functions of that one's build.
inline void renew_resources(const names *all) {
    for (const named *at = all->first; at; at = at->next)
        if (at->type() == type_name<memory_resource>::get() && at->size == sizeof(memory_resource))
            ::new (at->object) memory_resource(static_cast<memory_resource *>(at->object)->flags_);
}
} // namespace detail
#else
inline void detail::renew_resources(const names *) {}
#endif

} // namespace pm
#endif
