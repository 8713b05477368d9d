// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A root with containers of each kind, for pmalloc-info --tree.
#include <array>
#include <atomic>
#include <deque>
#include <forward_list>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

struct order {
    std::string who;
    int lots;
};

struct book {
    std::vector<int> numbers{3, 1, 4};
    std::vector<order> orders{{"ann", 7}, {"a name that is too long to be stored in place", -2}};
    std::vector<std::vector<char>> nested{{1}, {}, {2, 3}};
    std::vector<bool> bits{true, false, true};
    std::string text = "he said \"no\"", empty, large = std::string(5000, 'x');
    std::map<std::string, std::vector<double>> prices{{"b", {2.5}}, {"a\n", {}}, {"c", {1, 2}}};
    std::map<int, order> by_number;
    std::map<order *, int> by_order{{&orders[0], 9}};
    std::set<long> some{-5, 2, 900};
    std::multimap<int, char> twice{{1, 'a'}, {1, 'b'}};
    std::unordered_map<std::string, int> one_word{{"key", 42}};
    std::unordered_set<unsigned> one{7};
    std::list<std::string> list{"first", "second"};
    std::forward_list<int> forward{8, 9};
    std::deque<int> queue;
    std::unique_ptr<order> own = std::make_unique<order>(order{"own", 1});
    std::shared_ptr<order> shared = std::make_shared<order>(order{"shared", 2});
    std::weak_ptr<order> weak = shared;
    std::unique_ptr<order> none;
    std::optional<int> some_number = 5, no_number;
    std::atomic<int> count{6};
    std::array<short, 3> three{1, 0, 2};
    std::map<int, int> cut{{1, 2}}; // as a kill amid an insertion may leave it
    std::list<int> also_cut{4, 5};
    book() {
        for (int i = 0; i < 100; i++)
            by_number[i * 7 % 100] = {std::to_string(i), i};
        for (int i = 0; i < 300; i++)
            queue.push_back(i);
        for (int i = 0; i < 150; i++)
            queue.pop_front();
        reinterpret_cast<size_t *>(&cut)[5] = 1000;
        reinterpret_cast<size_t *>(&also_cut)[2] = 1000;
    }
};

namespace app {
book *store;
std::map<int, int> squares;
} // namespace app

int main() {
    if (!app::store)
        app::store = new book;
    for (int i = 0; i < 5; i++)
        app::squares[i] = i * i;
}
