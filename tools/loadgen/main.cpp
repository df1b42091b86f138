// main.cpp: cresnet-loadgen: runs one scenario of MLPerf's LoadGen with libcresnet as the system under test. Called by
// scripts/mlperf.sh, which describes the options.
//
// Written to the folder --out: LoadGen's mlperf_log_summary.txt, mlperf_log_detail.txt and mlperf_log_accuracy.json,
// user.conf (the settings that differ from MLPerf's mlperf.conf) and labels.txt (label and path of each sample).
#include "serving.h"

#include "loadgen.h"
#include "test_settings.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>

namespace {

constexpr uint64_t OFFLINE_SAMPLES = 24576; // MLPerf's least number of samples in Offline
constexpr double   OFFLINE_MARGIN  = 1.05;  // on the measured rate
constexpr double   SINGLE_FRACTION = 0.25;  // expected latency of SingleStream, as a fraction of the measured one
constexpr double   SERVER_FRACTION = 0.8;   // default target of Server, as a fraction of the measured rate

// MLPerf's settings of the benchmark resnet50 are part of LoadGen. user.conf holds what differs.
void write_settings(const Options &o, const std::string &path, double rate, size_t samples) {
    const std::string key = "resnet50." + o.scenario + ".";
    std::ofstream     conf(path);
    conf << "# Settings of this run that differ from MLPerf's mlperf.conf.\n"
         << key << "min_duration = " << uint64_t(o.seconds * 1000) << '\n'
         << "resnet50.*.performance_sample_count_override = " << samples << '\n';
    if (o.scenario == "Offline") {
        // LoadGen multiplies seconds and rate to get the number of samples, and a run that ends early is invalid. A
        // slow device would need longer than the given time for MLPerf's least number of samples.
        const double expected = o.qps > 0 ? o.qps : rate * OFFLINE_MARGIN;
        conf << key << "target_qps = " << expected << '\n'
             << key << "min_query_count = " << std::min(OFFLINE_SAMPLES, uint64_t(std::max(1.0, expected * o.seconds)))
             << '\n';
    } else if (o.scenario == "Server") {
        conf << key << "target_qps = " << (o.qps > 0 ? o.qps : rate * SERVER_FRACTION) << '\n'
             << key << "coalesce_queries = 1\n"; // requests that are due are given in one call
    } else {
        // Milliseconds. LoadGen prepares as many queries as fit into the time with this latency, and it is an error
        // when they do not suffice.
        conf << key << "target_latency = " << std::max(0.001, SINGLE_FRACTION * 1000 / rate) << '\n';
    }
    conf.close();
    if (!conf) throw Failure(path + ": cannot be written");
}

mlperf::TestSettings settings_of(const Options &o, const std::string &conf) {
    mlperf::TestSettings settings;
    settings.scenario = o.scenario == "Offline"  ? mlperf::TestScenario::Offline
                        : o.scenario == "Server" ? mlperf::TestScenario::Server
                                                 : mlperf::TestScenario::SingleStream;
    if (settings.FromConfig(conf, "resnet50", o.scenario) != 0) throw Failure(conf + ": LoadGen cannot read it");
    settings.mode = o.accuracy ? mlperf::TestMode::AccuracyOnly : mlperf::TestMode::PerformanceOnly;
    return settings;
}

void run(const Options &o) {
    Server                        server(o);
    std::unique_ptr<DeviceMemory> memory = open_memory(o.device);
    Samples                       samples(o.data, server.model(), *memory);
    const double                  rate = server.warm_up(std::min(2.0, o.seconds / 2), *memory);
    std::printf("%s\n%zu samples, %zu of them in memory of the %s; warm-up: %.1f images/s\n", server.Name().c_str(),
                samples.TotalSampleCount(), samples.PerformanceSampleCount(), memory->on_device() ? "GPU" : "host",
                rate);
    std::fflush(stdout);
    if (!o.data.empty()) samples.write_labels(o.out + "/labels.txt");
    write_settings(o, o.out + "/user.conf", rate, samples.PerformanceSampleCount());
    mlperf::TestSettings settings           = settings_of(o, o.out + "/user.conf");
    settings.server_num_issue_query_threads = server.issuing_threads(); // no key of user.conf
    mlperf::LogSettings        log;
    log.log_output.outdir = o.out;
    log.enable_trace      = false;
    server.start(samples, *memory);
    try {
        mlperf::StartTest(&server, &samples, settings, log, o.out + "/audit.config");
    } catch (const std::exception &failure) { // by Samples, or by LoadGen
        end_process(failure);
    }
    server.stop();
    if (o.scenario == "Server") server.print_delays();
}

} // namespace

int main(int argc, char **argv) {
    try {
        run(read_options(argc, argv));
        return 0;
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "cresnet-loadgen: error: %s\n", failure.what());
        return 1;
    }
}
