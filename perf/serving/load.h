// load: sends requests to a Server, and measures how long they take. Closed loop: each of so many clients sends a
// request as soon as it got its answer. Open loop: requests come at a rate whatever happens (Poisson, the same for all
// contenders), and the time of each counts from when it was due, so that a server that falls behind cannot hide it.
//
// A Server is:
//   Server(const Config&, const Model&)
//   Client MakeClient()                    called by the client's thread
//   const float* Client::Ask(const float* request)   kBatch scores, valid until its next call
// Cases: closed_CLIENTS, open_RATE (per second), idle (processor time in the second after one request).
#pragma once

#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <csignal>
#include <random>
#include <string>
#include <thread>

#include "../peers/runner.h"
#include "model.h"

namespace perf::serving {

struct Usage {
  double cpu_us;
  double switches;
};
inline Usage Used() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& t) { return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec); };
  return {us(usage.ru_utime) + us(usage.ru_stime), static_cast<double>(usage.ru_nvcsw + usage.ru_nivcsw)};
}

// `clients` threads send `n` requests in turn. `due(i)`: when request i is sent; if that is long past, at once.
template <class Server, class Due>
Answer Serve(Server& server, std::size_t clients, std::size_t n, Due&& due) {
  constexpr std::size_t kRequests = 64;  // how many requests differ
  std::vector<std::vector<float>> requests;
  for (uint32_t i = 0; i < kRequests; ++i) requests.push_back(Model::Request(i));
  std::vector<double> us(n);
  std::atomic<std::size_t> next{0};
  std::barrier start(static_cast<std::ptrdiff_t>(clients) + 1);
  Clock::time_point began;
  std::vector<std::thread> threads;
  for (std::size_t c = 0; c < clients; ++c)
    threads.emplace_back([&, c] {
      prctl(PR_SET_TIMERSLACK, 1);  // nanosecond, so that an open loop is woken when a request is due
      auto client = server.MakeClient();
      for (std::size_t i = 0; i < 3; ++i) client.Ask(requests[(c + i) % kRequests].data());
      start.arrive_and_wait();  // all clients are warm
      start.arrive_and_wait();  // the clock runs
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) {
        const Clock::time_point at = due(began, i);
        std::this_thread::sleep_until(at);
        const Clock::time_point asked = at == Clock::time_point() ? Clock::now() : at;
        client.Ask(requests[i % kRequests].data());
        us[i] = NsBetween(asked, Clock::now()) / 1e3;
      }
    });
  start.arrive_and_wait();
  const Usage before = Used();
  began = Clock::now();
  start.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  const double wall = NsBetween(began, Clock::now());
  const Usage after = Used();
  const auto count = static_cast<double>(n);
  return {{{"ns_per_op", wall / count},
           {"p50_us", Quantile(us, 0.5)},
           {"p90_us", Quantile(us, 0.9)},
           {"p99_us", Quantile(us, 0.99)},
           {"us_per_request", wall / count / 1e3},
           {"cpu_us_per_request", (after.cpu_us - before.cpu_us) / count},
           {"switches_per_request", (after.switches - before.switches) / count}},
          {}};
}

template <class Server>
Answer Case(Server& server, const std::string& name, std::size_t n) {
  if (name.starts_with("closed_"))
    return Serve(server, std::stoul(name.substr(7)), n,
                 [](Clock::time_point, std::size_t) { return Clock::time_point(); });
  if (name.starts_with("open_")) {
    const double rate = std::stod(name.substr(5));
    std::mt19937_64 random(1);
    std::exponential_distribution<double> gap(rate);
    std::vector<std::chrono::nanoseconds> at(n);
    double seconds = 0;
    for (auto& a : at) a = std::chrono::nanoseconds(static_cast<int64_t>((seconds += gap(random)) * 1e9));
    return Serve(server, 32, n, [&](Clock::time_point began, std::size_t i) { return began + at[i]; });
  }
  if (name != "idle") return Answer::Skip("no such case");
  auto client = server.MakeClient();
  client.Ask(Model::Request(1).data());
  const double before = Used().cpu_us;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return {{{"idle_cpu_us", Used().cpu_us - before}}, {}};
}

template <class Server>
void CheckAnswers(Server& server, const Model& model) {
  Loop loop(model);
  auto client = server.MakeClient();
  for (uint32_t i = 0; i < 5; ++i) {
    const std::vector<float> request = Model::Request(i);
    if (!std::equal(loop.Run(request.data()), loop.Run(request.data()) + kBatch, client.Ask(request.data())))
      throw std::runtime_error("the answers differ from the loop's");
  }
}

template <class Server>
int Main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  KeepFreedMemory();
  FILE* answers = TakeStdout();
  const auto serve = [&](auto&& answer) {
    std::string name;
    for (std::size_t n = 0; std::cin >> name >> n;) {
      std::fprintf(answers, "%s\n", ToJson(answer(name, n)).c_str());
      std::fflush(answers);
    }
    return 0;
  };
  try {
    const Model model;
    Server server(ParseArgs(argc, argv), model);
    CheckAnswers(server, model);
    return serve([&](const std::string& name, std::size_t n) { return Case(server, name, n); });
  } catch (const std::exception& error) {
    return serve([&](const std::string&, std::size_t) { return Answer::Skip(error.what()); });
  }
}

}  // namespace perf::serving
