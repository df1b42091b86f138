// serving.h: the system under test: requests wait in a queue, and worker threads compute them in batches.
#pragma once

#include "delays.h"
#include "options.h"
#include "samples.h"

#include "cresnet.h"
#include "system_under_test.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using Model = std::unique_ptr<cresnet_model, decltype(&cresnet_close)>;

struct Request {
    mlperf::ResponseId       id;
    mlperf::QuerySampleIndex sample;
    Clock::time_point        arrival;
};

// Requests in the order of arrival.
//
// When more than NEWEST_FIRST batches wait, the newest requests are taken first. That happens after LoadGen's thread
// stood still: its requests then arrive at once. The oldest of them are late in any order. Taken first, they would
// delay all requests that follow, until the queue is empty again. Taken last, they use the time that is left over.
//
// A batch is complete when it is full, or when its first request has waited for the deadline. Waiting costs latency at
// a low rate of requests, and saves computation at a high one: a batch that is not full takes as long as a full one.
class Queue {
  public:
    Queue(size_t most, Clock::duration longest_wait) : batch(most), deadline(longest_wait) {}
    void push(const std::vector<mlperf::QuerySample> &samples);
    // Waits for a batch and moves it to `out`. Returns false after close.
    bool take(std::vector<Request> &out);
    // The requests that wait now are complete batches.
    void flush();
    void close();
    // Offline: the samples of one query are divided into full batches, without a copy: `samples` is used until
    // wait_for_bulk returns. push must not be used meanwhile.
    void push_bulk(const std::vector<mlperf::QuerySample> &samples);
    void wait_for_bulk();
    void count_done(size_t samples);

  private:
    enum { NEWEST_FIRST = 4 };

    const size_t                            batch;
    const Clock::duration                   deadline;
    std::mutex                              mutex;
    std::condition_variable                 changed, bulk_finished;
    std::vector<Request>                    waiting; // from `first` on
    size_t                                  first     = 0;
    const std::vector<mlperf::QuerySample> *bulk      = nullptr;
    size_t                                  bulk_next = 0, bulk_done = 0;
    bool                                    flushed = false, closed = false;

    void move_out(size_t count, std::vector<Request> &out);
    void move_bulk(std::vector<Request> &out);
};

// Prints the error and ends the process. LoadGen's threads end with the test only, and it waits for every response:
// after an error during a test nothing can be joined. The first error counts; threads with a later one wait for the
// end.
[[noreturn]] void end_process(const std::exception &failure);

class Server : public mlperf::SystemUnderTest {
  public:
    // Opens the models. Throws Failure.
    explicit Server(const Options &options);
    ~Server() override;

    const std::string &Name() override { return name; }
    void               IssueQuery(const std::vector<mlperf::QuerySample> &samples) override;
    void               FlushQueries() override;

    cresnet_model *model() const { return models.front().get(); }
    bool           on_gpu() const { return gpu; }
    // Computes for about `seconds` on all streams, which also loads kernels. Returns images per second. Throws Failure.
    double warm_up(double seconds, DeviceMemory &memory);
    void   start(const Samples &samples, DeviceMemory &memory);
    size_t issuing_threads() const { return issue_threads; } // Server: 0 for the thread that calls StartTest
    void   stop();
    // Prints the longest delays: they explain a Server run whose 99th percentile is far above its median.
    void print_delays() const;

  private:
    struct Stream; // the arrays of one batch

    std::string              name;
    size_t                   batch, streams, calls, issue_threads;
    bool                     gpu = false;
    bool                     direct, offline; // direct: the thread of LoadGen computes (SingleStream)
    std::vector<Model>       models;
    std::unique_ptr<Queue>   queue;
    std::vector<std::thread> workers, issuers;
    std::unique_ptr<Stream>  own; // of the thread of LoadGen
    const Samples           *samples = nullptr;
    Longest                  computing, reporting;
    Pauses                   pauses; // of IssueQuery

    void open_models(const Options &options);
    void work(size_t index, DeviceMemory *memory);
    void compute(Stream &stream, const std::vector<Request> &requests);
};
