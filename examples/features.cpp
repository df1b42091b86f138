// features.cpp: finds the image that looks most like the first one, by the cosine of their pooled features.
//
//     c++ -std=c++17 features.cpp $(pkg-config --cflags --libs cresnet) -o features
//     ./features checkpoints/flowers query.jpg photo1.jpg photo2.jpg
#include <cmath>
#include <cresnet.h>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using Model = std::unique_ptr<cresnet_model, decltype(&cresnet_close)>;

static void check(cresnet_status status, const cresnet_error &error) {
    if (status != CRESNET_OK) throw std::runtime_error(error.text);
}

static Model open_model(const char *path, int images) {
    cresnet_options options;
    cresnet_model  *model = nullptr;
    cresnet_error   error;
    cresnet_options_init(&options);
    options.features  = 1;
    options.max_batch = images < 32 ? images : 32;
    check(cresnet_open(path, &options, &model, &error), error);
    return Model(model, cresnet_close);
}

static double cosine(const float *a, const float *b, int count) {
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < count; i++) {
        ab += double(a[i]) * double(b[i]);
        aa += double(a[i]) * double(a[i]);
        bb += double(b[i]) * double(b[i]);
    }
    return ab / std::sqrt(aa * bb);
}

static void run(const char *path, const std::vector<const char *> &images) {
    const Model  model = open_model(path, int(images.size()));
    cresnet_info info{};
    info.size = sizeof info;
    cresnet_get_info(model.get(), &info);
    std::vector<float> features(images.size() * std::size_t(info.features));
    cresnet_output     output;
    cresnet_error      error;
    cresnet_output_init(&output);
    output.features = features.data();
    check(cresnet_classify_files(model.get(), images.data(), int(images.size()), &output, &error), error);
    for (std::size_t i = 1; i < images.size(); i++)
        std::cout << cosine(features.data(), features.data() + i * std::size_t(info.features), info.features) << "  "
                  << images[i] << "\n";
}

int main(int argc, char **argv) {
    if (argc < 4) {
        std::cerr << "usage: features RUN QUERY IMAGE ...\n";
        return 2;
    }
    try {
        run(argv[1], std::vector<const char *>(argv + 2, argv + argc));
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}
