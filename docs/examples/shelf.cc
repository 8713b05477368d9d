// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A server that keeps everything in ordinary C++ objects: an unordered_map of shared_ptr to classes
// with virtual functions, changed by a thread for each client. It knows nothing of persistence: it
// makes its shelf when the pointer is null, and goes on with it when it is not.
//
//   g++ -std=c++17 -O2 -pthread -o shelf shelf.cc
//   pmalloc-run -H /mnt/pmem/shelf -r shelf -s COMMIT=output ./shelf 7070
//   printf 'add hits 1\nput name Ada\npush list a\nget list\n' | nc 127.0.0.1 7070
//
// Under COMMIT=output no answer leaves before what it tells of is durable, and each commit lies
// between critical sections. So whatever kills the server, a client never sees an answer undone.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

// What lies on the shelf.
class thing {
  public:
    virtual ~thing() = default;
    virtual std::string show() const = 0;
    // False: this is not for such a thing.
    virtual bool add(long) { return false; }
    virtual bool push(const std::string &) { return false; }
};

class text : public thing {
  public:
    explicit text(std::string value) : value_(std::move(value)) {}
    std::string show() const override { return value_; }

  private:
    std::string value_;
};

class counter : public thing {
  public:
    std::string show() const override { return std::to_string(value_); }
    bool add(long more) override {
        value_ += more;
        return true;
    }

  private:
    long value_ = 0;
};

class list : public thing {
  public:
    std::string show() const override {
        std::string all = std::to_string(values_.size());
        for (const std::string &value : values_)
            all += " " + value;
        return all;
    }
    bool push(const std::string &value) override {
        values_.push_back(value);
        return true;
    }

  private:
    std::vector<std::string> values_;
};

struct shelf_of_things {
    std::mutex lock;
    std::unordered_map<std::string, std::shared_ptr<thing>> things;
};

} // namespace

extern "C" {
shelf_of_things *shelf; // the root
}

namespace {

// Finds it, or makes it. The lock is held.
template <class T> std::shared_ptr<thing> &find(const std::string &name) {
    std::shared_ptr<thing> &place = shelf->things[name];
    if (!place)
        place = std::make_shared<T>();
    return place;
}

std::string obey(const std::string &line) {
    std::istringstream words(line);
    std::string order, name, rest;
    words >> order >> name >> std::ws;
    std::getline(words, rest);
    if (name.empty())
        return "what?";
    std::lock_guard<std::mutex> guard(shelf->lock);
    if (order == "put") {
        shelf->things[name] = std::make_shared<text>(rest);
        return "ok";
    }
    if (order == "add") {
        auto thing = find<counter>(name);
        return thing->add(std::strtol(rest.c_str(), nullptr, 10)) ? thing->show() : "no counter";
    }
    if (order == "push")
        return find<list>(name)->push(rest) ? "ok" : "no list";
    auto found = shelf->things.find(name);
    if (found == shelf->things.end())
        return "nothing";
    if (order == "get")
        return found->second->show();
    if (order != "drop")
        return "what?";
    shelf->things.erase(found);
    return "ok";
}

bool send_all(int client, const std::string &answer) {
    for (std::size_t sent = 0; sent < answer.size();) {
        ssize_t got = send(client, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
        if (got <= 0)
            return false;
        sent += static_cast<std::size_t>(got);
    }
    return true;
}

void serve(int client) {
    std::string waiting;
    char bytes[4096];
    for (ssize_t got; (got = recv(client, bytes, sizeof bytes, 0)) > 0;) {
        waiting.append(bytes, static_cast<std::size_t>(got));
        std::string answers;
        for (std::size_t end; (end = waiting.find('\n')) != std::string::npos;) {
            answers += obey(waiting.substr(0, end)) + "\n";
            waiting.erase(0, end + 1);
        }
        if (!send_all(client, answers))
            break;
    }
    close(client);
}

int listen_on(unsigned short port) {
    int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
        listen(server, 64) != 0) {
        std::perror("shelf");
        std::exit(1);
    }
    socklen_t length = sizeof address;
    getsockname(server, reinterpret_cast<sockaddr *>(&address), &length);
    std::printf("shelf: %zu things, port %u\n", shelf->things.size(), ntohs(address.sin_port));
    std::fflush(stdout);
    return server;
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: shelf PORT (0: any that is free)\n");
        return 2;
    }
    if (!shelf)
        shelf = new shelf_of_things;
    int server = listen_on(static_cast<unsigned short>(std::atoi(argv[1])));
    for (;;) {
        int client = accept(server, nullptr, nullptr);
        if (client >= 0)
            std::thread(serve, client).detach();
    }
}
