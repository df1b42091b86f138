// samples.h: the query sample library: prepared images of a folder, or random ones, in memory of the device.
#pragma once

#include "device_memory.h"

#include "cresnet.h"
#include "query_sample_library.h"

#include <string>
#include <vector>

class Samples : public mlperf::QuerySampleLibrary {
  public:
    // Lists the images of data/val/CLASS, or of data/CLASS when there is no val; with `data` empty there are 1,024
    // random images without labels. `model` decodes the images. Throws Failure.
    Samples(const std::string &data, cresnet_model *model, DeviceMemory &device_memory);
    ~Samples() override;

    const std::string &Name() override { return name; }
    size_t             TotalSampleCount() override { return files.empty() ? RANDOM_SAMPLES : files.size(); }
    size_t             PerformanceSampleCount() override;
    // The prepared images of these samples are written to the device, as MLPerf allows for a system whose network
    // interface writes to device memory (start_from_device). Exits on an error: LoadGen has no way to report one.
    void LoadSamplesToRam(const std::vector<mlperf::QuerySampleIndex> &samples) override;
    void UnloadSamplesFromRam(const std::vector<mlperf::QuerySampleIndex> &samples) override;

    // The image of a loaded sample, u8 [size][width][channels].
    const uint8_t *image(mlperf::QuerySampleIndex sample) const { return memory + slot[sample] * image_bytes; }
    // Writes a line "label path" for each sample. Throws Failure.
    void write_labels(const std::string &path) const;

    static constexpr size_t RANDOM_SAMPLES = 1024, LOADED_SAMPLES = 1024;

  private:
    std::string              name;
    cresnet_model           *decoder;
    DeviceMemory            &device;
    size_t                   image_bytes = 0;
    std::vector<std::string> files;  // sorted by class, then by name
    std::vector<int>         labels; // of the files
    std::vector<uint32_t>    slot;   // of each sample: position in `memory`
    uint8_t                 *memory = nullptr;

    void list_class(const std::string &folder, int label);
    void load(const std::vector<mlperf::QuerySampleIndex> &samples);
};
