// samples.cpp: see samples.h.
#include "samples.h"

#include "options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace fs = std::filesystem;

namespace {

bool is_image(const fs::path &path) {
    std::string end = path.extension().string();
    for (char &c : end) c = char(std::tolower(static_cast<unsigned char>(c)));
    return end == ".png" || end == ".jpg" || end == ".jpeg";
}

std::vector<std::string> class_folders(const fs::path &root) {
    std::vector<std::string> names;
    for (const auto &entry : fs::directory_iterator(root))
        if (entry.is_directory() && entry.path().filename().string()[0] != '.')
            names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

// The label of a class in the model. A model without class names has the classes in the order of the folders.
int label_of(const cresnet_model *model, int classes, const std::string &folder, int position) {
    if (!cresnet_class_name(model, 0)) return position;
    for (int k = 0; k < classes; k++)
        if (cresnet_class_name(model, k) && folder == cresnet_class_name(model, k)) return k;
    throw Failure("the model has no class \"" + folder +
                  "\": --data must have the classes that the model was trained with");
}

} // namespace

Samples::Samples(const std::string &data, cresnet_model *model, DeviceMemory &device_memory)
    : name(data.empty() ? "random images" : data), decoder(model), device(device_memory) {
    cresnet_info info{};
    info.size = sizeof info;
    if (cresnet_get_info(model, &info) != CRESNET_OK) throw Failure("cresnet_get_info failed");
    image_bytes = size_t(info.image_size) * size_t(info.image_width) * size_t(info.channels);
    if (info.bits != 8) throw Failure("the model's images have 16 bits: this tool sends bytes (data.bits = 8)");
    if (!data.empty()) {
        if (!fs::is_directory(data)) throw Failure("--data " + data + ": is no folder");
        const fs::path root     = fs::is_directory(fs::path(data) / "val") ? fs::path(data) / "val" : fs::path(data);
        int            position = 0;
        for (const std::string &folder : class_folders(root))
            list_class((root / folder).string(), label_of(model, info.classes, folder, position++));
        if (files.empty()) throw Failure("--data " + data + ": no PNG or JPEG images in " + root.string() + "/CLASS/");
    }
    slot.resize(TotalSampleCount());
    memory = device.reserve(PerformanceSampleCount() * image_bytes);
}

Samples::~Samples() {
    device.release(memory);
}

size_t Samples::PerformanceSampleCount() {
    return std::min(TotalSampleCount(), LOADED_SAMPLES);
}

void Samples::list_class(const std::string &folder, int label) {
    const size_t first = files.size();
    for (const auto &entry : fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink))
        if (entry.is_regular_file() && is_image(entry.path())) files.push_back(entry.path().string());
    std::sort(files.begin() + std::ptrdiff_t(first), files.end());
    labels.resize(files.size(), label);
}

void Samples::load(const std::vector<mlperf::QuerySampleIndex> &samples) {
    std::vector<uint8_t>      images(samples.size() * image_bytes);
    std::vector<const char *> paths;
    cresnet_error             error;
    if (samples.size() > PerformanceSampleCount()) throw Failure("LoadGen loads more samples than fit");
    for (size_t i = 0; i < samples.size(); i++) slot[samples[i]] = uint32_t(i);
    if (files.empty()) {
        for (size_t i = 0; i < samples.size(); i++) {
            std::mt19937 random(uint32_t(samples[i]) + 1);
            for (size_t at = 0; at < image_bytes; at++) images[i * image_bytes + at] = uint8_t(random() >> 24);
        }
    } else {
        for (mlperf::QuerySampleIndex sample : samples) paths.push_back(files[sample].c_str());
        if (cresnet_prepare_files(decoder, paths.data(), int(paths.size()), images.data(), nullptr, &error) !=
            CRESNET_OK)
            throw Failure(error.text);
    }
    device.copy_from_host(memory, images.data(), images.size());
}

void Samples::LoadSamplesToRam(const std::vector<mlperf::QuerySampleIndex> &samples) {
    try {
        load(samples);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "cresnet-loadgen: error: loading samples: %s\n", failure.what());
        std::_Exit(1);
    }
}

// The next set overwrites these samples.
void Samples::UnloadSamplesFromRam(const std::vector<mlperf::QuerySampleIndex> &) {}

void Samples::write_labels(const std::string &path) const {
    std::ofstream out(path);
    for (size_t i = 0; i < files.size(); i++) out << labels[i] << ' ' << files[i] << '\n';
    out.close();
    if (!out) throw Failure(path + ": cannot be written: " + std::strerror(errno));
}
