// delays.h: the longest delays of a measurement, and what a thread did during its longest pause.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

using Clock = std::chrono::steady_clock;

// The longest time of one kind, in nanoseconds. Any thread may add times.
class Longest {
  public:
    void   add(Clock::duration time);
    double milliseconds() const { return double(longest) / 1e6; }

  private:
    std::atomic<int64_t> longest{0};
};

// What the calling thread has used since it started, from the kernel.
struct ThreadUse {
    Clock::time_point at{};
    double            running = 0, ready = 0; // milliseconds on a processor, and waiting for a processor
    long              faults = 0, waits = 0, preemptions = 0;

    static ThreadUse now();
};

// Pauses between the calls of a thread. The text of the longest pause says whether the thread ran, waited for a
// processor, or slept. Any thread may call `called`.
class Pauses {
  public:
    void        called();
    double      milliseconds() const { return longest.milliseconds(); }
    int         long_ones() const { return count; } // pauses of more than 10 ms
    std::string text() const;

  private:
    Longest            longest;
    std::atomic<int>   count{0};
    mutable std::mutex mutex;
    ThreadUse          before, after; // of the longest pause
    double             pause = 0;     // milliseconds

    void note(const ThreadUse &from, const ThreadUse &to, double milliseconds);
};
