// options.cpp: the command line of cresnet-loadgen. See options.h. scripts/mlperf.sh --help describes the options.
#include "options.h"

#include <cstdlib>
#include <sys/stat.h>

namespace {

double number(const std::string &name, const std::string &text, double least, double most) {
    char        *end   = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end || !(value >= least && value <= most))
        throw Failure(name + " " + text + ": give a number from " + std::to_string(least) + " to " +
                      std::to_string(most));
    return value;
}

void set(Options &o, const std::string &name, const std::string &value) {
    if (name == "--scenario")
        o.scenario = value;
    else if (name == "--run")
        o.run = value;
    else if (name == "--data")
        o.data = value;
    else if (name == "--out")
        o.out = value;
    else if (name == "--device")
        o.device = value;
    else if (name == "--precision")
        o.precision = value;
    else if (name == "--batch")
        o.batch = int(number(name, value, 1, 65536));
    else if (name == "--streams")
        o.streams = int(number(name, value, 1, 64));
    else if (name == "--calls")
        o.calls = int(number(name, value, 1, 64));
    else if (name == "--deadline-ms")
        o.deadline_ms = number(name, value, 0, 1e6);
    else if (name == "--issue-threads")
        o.issue_threads = int(number(name, value, 1, 256));
    else if (name == "--seconds")
        o.seconds = number(name, value, 0.1, 1e6);
    else if (name == "--qps")
        o.qps = number(name, value, 0.001, 1e9);
    else
        throw Failure("unknown option " + name);
}

} // namespace

Options read_options(int argc, char **argv) {
    Options     o;
    struct stat info;
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        if (name == "--accuracy") {
            o.accuracy = true;
            continue;
        }
        if (i + 1 == argc) throw Failure(name + ": the value is missing");
        set(o, name, argv[++i]);
    }
    if (o.scenario != "Offline" && o.scenario != "Server" && o.scenario != "SingleStream")
        throw Failure("unknown scenario \"" + o.scenario + "\": give Offline, Server or SingleStream");
    if (o.device != "cpu" && o.device != "cuda" && o.device.rfind("cuda:", 0) != 0)
        throw Failure("unknown device \"" + o.device + "\": give cpu, cuda or cuda:N");
    if (o.run.empty()) throw Failure("--run RUN is missing");
    if (o.accuracy && o.data.empty()) throw Failure("--accuracy needs images with labels: give --data DIR");
    // LoadGen returns without a word when it cannot write its logs.
    if (stat(o.out.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) throw Failure("--out " + o.out + ": is no folder");
    return o;
}
