// serving.cpp: see serving.h.
#include "serving.h"

#include "loadgen.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

// ---- times ----

void Server::print_delays() const {
    std::printf("longest times: %.1f ms for a batch, %.1f ms to report it, %.1f ms between two queries\n%s\n",
                computing.milliseconds(), reporting.milliseconds(), pauses.milliseconds(), pauses.text().c_str());
}

// ---- the queue ----

// Wakes a worker when the first request of a batch arrives (the worker then waits for its deadline) and when a batch is
// full. Other requests wake nobody.
void Queue::push(const std::vector<mlperf::QuerySample> &samples) {
    const Clock::time_point now = Clock::now();
    size_t                  before, after;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        before  = waiting.size() - first;
        flushed = false;
        for (const mlperf::QuerySample &sample : samples) waiting.push_back({sample.id, sample.index, now});
        after = waiting.size() - first;
    }
    if (before == 0 || after / batch > before / batch) changed.notify_one();
}

// The oldest requests, or the newest ones when so many wait that the oldest are late anyway.
void Queue::move_out(size_t count, std::vector<Request> &out) {
    if (waiting.size() - first > NEWEST_FIRST * batch) {
        out.assign(waiting.end() - std::ptrdiff_t(count), waiting.end());
        waiting.erase(waiting.end() - std::ptrdiff_t(count), waiting.end());
        return;
    }
    const auto from = waiting.begin() + std::ptrdiff_t(first);
    out.assign(from, from + std::ptrdiff_t(count));
    first += count;
    if (first == waiting.size()) {
        waiting.clear();
        first = 0;
    } else if (first > waiting.size() / 2) { // the memory of requests that were taken is used again
        waiting.erase(waiting.begin(), waiting.begin() + std::ptrdiff_t(first));
        first = 0;
    }
}

void Queue::move_bulk(std::vector<Request> &out) {
    const size_t count = std::min(batch, bulk->size() - bulk_next);
    out.clear();
    for (size_t i = 0; i < count; i++) out.push_back({(*bulk)[bulk_next + i].id, (*bulk)[bulk_next + i].index, {}});
    bulk_next += count;
}

bool Queue::take(std::vector<Request> &out) {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        const size_t count = waiting.size() - first;
        if (bulk && bulk_next < bulk->size()) {
            move_bulk(out);
            return true;
        }
        if (count >= batch || (count && (flushed || closed || Clock::now() >= waiting[first].arrival + deadline))) {
            move_out(std::min(count, batch), out);
            const bool more = waiting.size() > first;
            lock.unlock();
            if (more) changed.notify_one(); // somebody must wait for the deadline of the next request
            return true;
        }
        if (closed) return false;
        if (count)
            changed.wait_until(lock, waiting[first].arrival + deadline);
        else
            changed.wait(lock);
    }
}

void Queue::flush() {
    const std::lock_guard<std::mutex> lock(mutex);
    flushed = true;
    changed.notify_all();
}

void Queue::close() {
    const std::lock_guard<std::mutex> lock(mutex);
    closed = true;
    changed.notify_all();
}

void Queue::push_bulk(const std::vector<mlperf::QuerySample> &samples) {
    const std::lock_guard<std::mutex> lock(mutex);
    bulk      = &samples;
    bulk_next = bulk_done = 0;
    changed.notify_all();
}

void Queue::wait_for_bulk() {
    std::unique_lock<std::mutex> lock(mutex);
    bulk_finished.wait(lock, [&] { return bulk_done == bulk->size(); });
    bulk = nullptr;
}

void Queue::count_done(size_t samples) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!bulk) return;
    bulk_done += samples;
    if (bulk_done == bulk->size()) bulk_finished.notify_one();
}

// ---- batches ----

struct Server::Stream {
    cresnet_model                           *model;
    bool                                     on_device;
    void                                    *cuda_stream;
    std::vector<Request>                     requests;
    std::vector<cresnet_tensor>              tensors;
    std::vector<int32_t>                     labels;
    std::vector<mlperf::QuerySampleResponse> responses;

    Stream(cresnet_model *m, size_t batch, const DeviceMemory &memory)
        : model(m), on_device(memory.on_device()), cuda_stream(memory.stream()), tensors(batch), labels(batch) {
        requests.reserve(batch);
        responses.reserve(batch);
    }
    void set_image(size_t i, const uint8_t *image) {
        tensors[i]           = cresnet_tensor{};
        tensors[i].data      = image;
        tensors[i].type      = CRESNET_U8;
        tensors[i].layout    = CRESNET_NHWC;
        tensors[i].count     = 1;
        tensors[i].on_device = on_device;
        tensors[i].stream    = cuda_stream;
    }
    void classify(size_t count) {
        cresnet_output output;
        cresnet_error  error;
        cresnet_output_init(&output);
        output.labels = labels.data();
        if (cresnet_classify_tensors(model, tensors.data(), int(count), &output, &error) != CRESNET_OK)
            throw Failure(error.text);
    }
};

void end_process(const std::exception &failure) {
    static std::atomic_flag ended = ATOMIC_FLAG_INIT;
    while (ended.test_and_set()) std::this_thread::sleep_for(std::chrono::seconds(1));
    std::fprintf(stderr, "cresnet-loadgen: error: %s\n", failure.what());
    std::_Exit(1);
}

void Server::compute(Stream &stream, const std::vector<Request> &requests) {
    const Clock::time_point begin = Clock::now();
    try {
        for (size_t i = 0; i < requests.size(); i++) stream.set_image(i, samples->image(requests[i].sample));
        stream.classify(requests.size());
    } catch (const std::exception &failure) {
        end_process(failure);
    }
    const Clock::time_point end = Clock::now();
    computing.add(end - begin);
    stream.responses.clear();
    for (size_t i = 0; i < requests.size(); i++)
        stream.responses.emplace_back(requests[i].id, reinterpret_cast<uintptr_t>(&stream.labels[i]),
                                      sizeof stream.labels[i]);
    mlperf::QuerySamplesComplete(stream.responses.data(), stream.responses.size());
    reporting.add(Clock::now() - end);
}

void Server::work(size_t index, DeviceMemory *memory) {
    Stream stream(models[index % streams].get(), batch, *memory);
    while (queue->take(stream.requests)) {
        compute(stream, stream.requests);
        queue->count_done(stream.requests.size());
    }
}

// ---- queries ----

void Server::IssueQuery(const std::vector<mlperf::QuerySample> &query) {
    if (direct) {
        for (const mlperf::QuerySample &sample : query) compute(*own, {{sample.id, sample.index, {}}});
    } else if (offline) { // all samples of the test
        queue->push_bulk(query);
        queue->wait_for_bulk();
    } else {
        pauses.called();
        try {
            queue->push(query);
        } catch (const std::exception &failure) { // in a thread of LoadGen, which catches nothing
            end_process(failure);
        }
    }
}

void Server::FlushQueries() {
    if (queue) queue->flush();
}

// ---- models ----

static int cores() {
    return std::max(1, int(std::thread::hardware_concurrency()));
}

void Server::open_models(const Options &options) {
    cresnet_options o;
    cresnet_error   error;
    cresnet_options_init(&o);
    o.device    = options.device.c_str();
    o.precision = options.precision.c_str();
    o.max_batch = int(batch);
    o.log       = [](void *, cresnet_log_level level, const char *line) {
        if (level == CRESNET_LOG_WARNING) std::fprintf(stderr, "cresnet-loadgen: %s\n", line);
    };
    if (!gpu) o.threads = std::max(1, cores() / int(streams)); // on a GPU the threads only decode images
    for (size_t i = 0; i < streams; i++) {
        cresnet_model *opened = nullptr;
        if (cresnet_open(options.run.c_str(), &o, &opened, &error) != CRESNET_OK) throw Failure(error.text);
        models.emplace_back(opened, cresnet_close);
    }
}

Server::Server(const Options &options)
    : direct(options.scenario == "SingleStream"), offline(options.scenario == "Offline") {
    gpu     = options.device.rfind("cuda", 0) == 0;
    batch   = direct ? 1 : options.batch ? size_t(options.batch) : gpu ? 256 : 8;
    // The fastest numbers that were measured in Offline (2 x 2), and the ones that kept Server's limit of 15 ms (4 x 1).
    streams = direct ? 1 : options.streams ? size_t(options.streams) : !gpu ? 1 : offline ? 2 : 4;
    calls   = direct ? 1 : options.calls ? size_t(options.calls) : gpu && offline ? 2 : 1;
    // The operating system may stop a thread for some milliseconds; then the other threads still issue their queries.
    const size_t threads = std::thread::hardware_concurrency() >= 16 ? 8 : 1;
    // With one thread, LoadGen calls from the thread that starts the test.
    issue_threads = options.issue_threads ? size_t(options.issue_threads) : threads;
    if (options.scenario != "Server" || issue_threads == 1) issue_threads = 0;
    open_models(options);
    cresnet_info info{};
    info.size = sizeof info;
    if (cresnet_get_info(model(), &info) != CRESNET_OK) throw Failure("cresnet_get_info failed");
    name = std::string("cresnet ") + cresnet_version() + ", " + info.network + ", " + info.precision + ", batch " +
           std::to_string(batch) + ", streams " + std::to_string(streams) + ", calls " + std::to_string(calls) + ", " +
           info.device;
    queue = std::make_unique<Queue>(batch, std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double, std::milli>(options.deadline_ms)));
}

Server::~Server() {
    stop();
}

double Server::warm_up(double seconds, DeviceMemory &memory) {
    enum { FIRST_RUNS = 3 };
    cresnet_info info{};
    info.size = sizeof info;
    if (cresnet_get_info(model(), &info) != CRESNET_OK) throw Failure("cresnet_get_info failed");
    const size_t             bytes = size_t(info.image_size) * size_t(info.image_width) * size_t(info.channels);
    uint8_t                 *image = memory.reserve(bytes);
    std::atomic<size_t>      images{0};
    std::atomic<bool>        failed{false};
    std::vector<std::thread> threads;
    std::string              text;
    memory.copy_from_host(image, std::vector<uint8_t>(bytes, 128).data(), bytes);
    // Each stream runs a few batches alone first: these load kernels and are not measured.
    for (Model &m : models) {
        Stream stream(m.get(), batch, memory);
        for (size_t i = 0; i < batch; i++) stream.set_image(i, image);
        for (int run = 0; run < (gpu ? FIRST_RUNS : 1); run++) stream.classify(batch);
    }
    const Clock::time_point begin = Clock::now();
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (size_t k = 0; k < streams * calls; k++)
        threads.emplace_back([&, handle = models[k % streams].get()] {
            Stream stream(handle, batch, memory);
            for (size_t i = 0; i < batch; i++) stream.set_image(i, image);
            try {
                do {
                    stream.classify(batch);
                    images += batch;
                } while (Clock::now() < end);
            } catch (const std::exception &failure) {
                if (!failed.exchange(true)) text = failure.what();
            }
        });
    for (std::thread &thread : threads) thread.join();
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    memory.release(image);
    if (failed) throw Failure(text);
    return double(images) / elapsed;
}

void Server::start(const Samples &loaded, DeviceMemory &memory) {
    samples = &loaded;
    own     = std::make_unique<Stream>(model(), batch, memory);
    for (size_t i = 0; !direct && i < streams * calls; i++) workers.emplace_back(&Server::work, this, i, &memory);
    for (size_t i = 0; i < issue_threads; i++) issuers.emplace_back(mlperf::RegisterIssueQueryThread);
}

void Server::stop() {
    queue->close();
    for (std::thread &worker : workers) worker.join();
    for (std::thread &issuer : issuers) issuer.join(); // LoadGen ends them with the test
    workers.clear();
    issuers.clear();
}
