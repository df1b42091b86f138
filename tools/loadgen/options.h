// options.h: the command line of cresnet-loadgen, and errors that end it.
#pragma once

#include <stdexcept>
#include <string>

// An error of the user or of the machine: main prints the text and exits with 1.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Options {
    std::string scenario;              // Offline, Server or SingleStream
    std::string run;                   // run folder, checkpoint or .safetensors file
    std::string data;                  // folder of images; empty: 1,024 random images
    std::string out;                   // folder of the logs; exists
    std::string device        = "cpu"; // "cpu", "cuda" or "cuda:N"
    std::string precision     = "auto";
    int         batch         = 0;     // images of a batch; here and below, 0: chosen by scenario and device
    int         streams       = 0;     // models that compute at the same time, each on a CUDA stream
    int         calls         = 0;     // batches that are given to a model at the same time
    int         issue_threads = 0;     // Server: threads of LoadGen that issue queries; 0: 8 if there are 16 processors
    double      deadline_ms   = 8;     // Server: a batch that is not full starts when its first request is this old
    double      seconds       = 120;   // min_duration
    double      qps           = 0;     // expected (Offline) or target (Server) rate; 0: derived from a measurement
    bool        accuracy      = false; // accuracy mode instead of performance mode
};

// Reads argv. Throws Failure.
Options read_options(int argc, char **argv);
