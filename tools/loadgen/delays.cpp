// delays.cpp: see delays.h.
#include "delays.h"

#include <cstdio>
#include <sys/resource.h>

namespace {

constexpr double                    LONG_PAUSE = 10; // milliseconds
constexpr std::chrono::milliseconds REFRESH{100};    // age of the state to which a pause is compared

double milliseconds_of(Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
}

} // namespace

void Longest::add(Clock::duration time) {
    const int64_t ns  = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    int64_t       old = longest;
    while (ns > old && !longest.compare_exchange_weak(old, ns)) {
    }
}

ThreadUse ThreadUse::now() {
    ThreadUse          use;
    rusage             usage;
    unsigned long long running = 0, ready = 0;
    use.at = Clock::now();
    if (getrusage(RUSAGE_THREAD, &usage) == 0) {
        use.faults      = usage.ru_minflt + usage.ru_majflt;
        use.waits       = usage.ru_nvcsw;
        use.preemptions = usage.ru_nivcsw;
    }
    if (FILE *file = std::fopen("/proc/thread-self/schedstat", "r")) {
        if (std::fscanf(file, "%llu %llu", &running, &ready) == 2) {
            use.running = double(running) / 1e6;
            use.ready   = double(ready) / 1e6;
        }
        std::fclose(file);
    }
    return use;
}

void Pauses::called() {
    static thread_local Clock::time_point last;
    static thread_local ThreadUse         use;
    const Clock::time_point               now = Clock::now();
    if (last == Clock::time_point{}) {
        use = ThreadUse::now();
    } else {
        const double length = milliseconds_of(now - last);
        longest.add(now - last);
        if (length > LONG_PAUSE) {
            const ThreadUse current = ThreadUse::now();
            note(use, current, length);
            use = current;
        } else if (now - use.at > REFRESH) {
            use = ThreadUse::now();
        }
    }
    last = Clock::now();
}

void Pauses::note(const ThreadUse &from, const ThreadUse &to, double milliseconds) {
    const std::lock_guard<std::mutex> lock(mutex);
    count++;
    if (milliseconds <= pause) return;
    pause  = milliseconds;
    before = from;
    after  = to;
}

std::string Pauses::text() const {
    char                              line[384];
    const std::lock_guard<std::mutex> lock(mutex);
    if (count == 0) return "no pause of more than 10 ms between two queries of a thread";
    std::snprintf(line, sizeof line,
                  "%d pauses of more than 10 ms between two queries of a thread; in the %.0f ms before the end of the "
                  "longest the thread ran %.1f ms, waited for a processor %.1f ms, had %ld page faults, waited %ld "
                  "times and was preempted %ld times",
                  count.load(), milliseconds_of(after.at - before.at), after.running - before.running,
                  after.ready - before.ready, after.faults - before.faults, after.waits - before.waits,
                  after.preemptions - before.preemptions);
    return line;
}
