// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A server as C++ programs are: a thread for each client, containers of the standard library, and
// locks of its own around them. It knows nothing of PMAlloc. A start says "whole N", where N is
// what each client had stored, or what is torn.
//
//   sections_server PORT    requests are lines, from any number of clients:
//
//   put CLIENT NUMBER    the next number of the client, into a hash table and an ordered index
//   move FROM TO         one coin from one account to another, each with a lock of its own
//   job NUMBER           into a queue; a worker takes it out and notes it as done
//   sum                  what all accounts have, by a reader
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>

namespace {

constexpr unsigned ACCOUNTS = 32, WORKERS = 2, MOVERS = 2;
constexpr long COINS = 1000;

struct account {
    std::mutex mutex;
    long coins = COINS;
    std::list<std::string> history; // the last few moves
};

struct store {
    // Each entry of one is in the other, and each client's last number is in `last`.
    std::shared_mutex table_mutex;
    std::unordered_map<std::string, long> table;
    std::map<std::pair<long, std::string>, std::string> index;
    std::map<std::string, long> last;

    account accounts[ACCOUNTS];

    std::mutex queue_mutex;
    std::condition_variable queue_filled;
    std::deque<std::string> queue;
    std::multiset<std::string> done;
    long queued = 0, taken = 0;
};

} // namespace

extern "C" {
void *root; // the store
}

namespace {

store &all() { return *static_cast<store *>(root); }

[[noreturn]] void torn(const std::string &what) {
    std::cerr << "torn: " << what << std::endl;
    _exit(3);
}

// ---- what each section leaves whole -------------------------------------------------------------

void check_table(const store &s) {
    size_t count = 0;
    std::map<std::string, long> found;
    for (const auto &[key, number] : s.table) {
        count++;
        std::string client = key.substr(0, key.find('.'));
        found[client] = std::max(found[client], number);
        auto entry = s.index.find({number, client});
        if (entry == s.index.end() || entry->second != key)
            torn("the index lacks " + key);
        if (s.table.find(key) == s.table.end())
            torn("the table does not find " + key);
    }
    if (count != s.table.size() || count != s.index.size())
        torn("the table has another size than the index");
    const std::pair<long, std::string> *before = nullptr;
    for (const auto &entry : s.index) {
        if (before && !(*before < entry.first))
            torn("the index is not in order");
        before = &entry.first;
    }
    if (found != s.last)
        torn("the last numbers are not those of the table");
}

long sum_of(const store &s) {
    long sum = 0;
    for (const account &a : s.accounts)
        sum += a.coins;
    return sum;
}

void check_accounts(const store &s) {
    if (sum_of(s) != COINS * ACCOUNTS)
        torn("the accounts have " + std::to_string(sum_of(s)));
    for (const account &a : s.accounts)
        if (size_t(std::distance(a.history.begin(), a.history.end())) != a.history.size())
            torn("a list has another size than it says");
}

void check_queue(const store &s) {
    if (s.queued != s.taken + long(s.queue.size()) || s.taken != long(s.done.size()))
        torn("the queue has " + std::to_string(s.queue.size()));
    for (const std::string &job : s.queue)
        if (job.compare(0, 4, "job ") != 0)
            torn("a job is " + job);
}

void begin() {
    if (!root) {
        root = new store;
        std::cerr << "new" << std::endl;
        return;
    }
    check_table(all());
    check_accounts(all());
    check_queue(all());
    std::cerr << "whole";
    for (const auto &[client, number] : all().last)
        std::cerr << ' ' << client << '=' << number;
    std::cerr << std::endl;
}

// ---- the sections -------------------------------------------------------------------------------

void put(const std::string &client, long number) {
    store &s = all();
    std::string key = client + "." + std::to_string(number);
    std::unique_lock lock(s.table_mutex);
    s.table[key] = number;
    s.index[{number, client}] = key;
    if (number >= 400) { // the oldest goes
        s.table.erase(client + "." + std::to_string(number - 400));
        s.index.erase({number - 400, client});
    }
    s.last[client] = number;
}

void note(account &a, const std::string &text) {
    a.history.push_back(text);
    if (a.history.size() > 8)
        a.history.pop_front();
}

void move(unsigned from, unsigned to) {
    if (from == to)
        return;
    account &a = all().accounts[from], &b = all().accounts[to];
    std::scoped_lock lock(a.mutex, b.mutex);
    a.coins--;
    note(a, "to " + std::to_string(to));
    b.coins++;
    note(b, "from " + std::to_string(from));
}

void queue_job(const std::string &number) {
    {
        std::lock_guard lock(all().queue_mutex);
        all().queue.push_back("job " + number);
        all().queued++;
    }
    all().queue_filled.notify_one();
}

long sum() {
    store &s = all();
    for (account &a : s.accounts)
        a.mutex.lock();
    long sum = sum_of(s);
    for (account &a : s.accounts)
        a.mutex.unlock();
    std::shared_lock lock(s.table_mutex);
    return s.table.size() == s.index.size() ? sum : -1;
}

[[noreturn]] void take_jobs() {
    for (;;) {
        std::unique_lock lock(all().queue_mutex);
        all().queue_filled.wait(lock, [] { return !all().queue.empty(); });
        std::string job = std::move(all().queue.front());
        all().queue.pop_front();
        all().taken++;
        all().done.insert(std::move(job));
    }
}

// Nobody asks for these, so there are sections at any instant.
[[noreturn]] void move_coins(unsigned seed) {
    for (;;) {
        seed = seed * 1103515245 + 12345;
        move(seed >> 16 & (ACCOUNTS - 1), seed >> 24 & (ACCOUNTS - 1));
    }
}

// ---- clients ------------------------------------------------------------------------------------

std::string answer_to(const std::string &line) {
    std::istringstream words(line);
    std::string what, client, number;
    long from, to;
    words >> what;
    if (what == "put" && words >> client >> to)
        put(client, to);
    else if (what == "move" && words >> from >> to)
        move(unsigned(from) % ACCOUNTS, unsigned(to) % ACCOUNTS);
    else if (what == "job" && words >> number)
        queue_job(number);
    else if (what == "sum")
        return std::to_string(sum()) + "\n";
    else
        return "what?\n";
    return "ok\n";
}

void serve(int fd) {
    std::string pending;
    char bytes[4096];
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;) {
        pending.append(bytes, size_t(got));
        for (size_t end; (end = pending.find('\n')) != std::string::npos;) {
            std::string answer = answer_to(pending.substr(0, end));
            pending.erase(0, end + 1);
            if (write(fd, answer.data(), answer.size()) != ssize_t(answer.size()))
                break;
        }
    }
    close(fd);
}

int listen_at(int port) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(uint16_t(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, reinterpret_cast<sockaddr *>(&at), sizeof at) != 0 || listen(fd, 64) != 0) {
        perror("listen");
        exit(1);
    }
    return fd;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    begin();
    int fd = listen_at(atoi(argv[1]));
    for (unsigned i = 0; i < WORKERS; i++)
        std::thread(take_jobs).detach();
    for (unsigned i = 0; i < MOVERS; i++)
        std::thread(move_coins, i + 1).detach();
    for (;;) {
        int client = accept(fd, nullptr, nullptr);
        if (client < 0)
            return 1;
        std::thread(serve, client).detach();
    }
}
