// device_memory.cpp: see device_memory.h. GPU memory comes from the CUDA driver, which is opened at run time: the
// adapter is built without the CUDA toolkit. Pointers and streams of the driver are valid in libcresnet, because both
// use the device's primary context.
#include "device_memory.h"

#include "options.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

namespace {

class HostMemory : public DeviceMemory {
  public:
    bool     on_device() const override { return false; }
    void    *stream() const override { return nullptr; }
    void     release(uint8_t *memory) override { std::free(memory); }
    uint8_t *reserve(size_t bytes) override {
        void *memory = std::malloc(bytes);
        if (!memory) throw Failure("out of memory: " + std::to_string(bytes) + " bytes for samples");
        return static_cast<uint8_t *>(memory);
    }
    void copy_from_host(uint8_t *to, const uint8_t *host, size_t bytes) override { std::memcpy(to, host, bytes); }
};

// The part of cuda.h that is used. The driver's interface is stable: names with _v2 are those that cuda.h selects.
using CUresult    = int;
using CUdevice    = int;
using CUdeviceptr = unsigned long long;
struct Driver {
    CUresult (*init)(unsigned)                                    = nullptr;
    CUresult (*device_get)(CUdevice *, int)                       = nullptr;
    CUresult (*primary_retain)(void **, CUdevice)                 = nullptr;
    CUresult (*set_current)(void *)                               = nullptr;
    CUresult (*stream_create)(void **, unsigned)                  = nullptr;
    CUresult (*reserve)(CUdeviceptr *, size_t)                    = nullptr;
    CUresult (*release)(CUdeviceptr)                              = nullptr;
    CUresult (*copy_to_device)(CUdeviceptr, const void *, size_t) = nullptr;
    CUresult (*error_text)(CUresult, const char **)               = nullptr;
};

class GpuMemory : public DeviceMemory {
  public:
    explicit GpuMemory(int index) {
        enum { NON_BLOCKING = 1 };
        void    *library = dlopen("libcuda.so.1", RTLD_NOW);
        CUdevice device;
        if (!library) throw Failure("--device cuda: no NVIDIA driver: " + std::string(dlerror()));
        find(library, "cuGetErrorString", driver.error_text);
        find(library, "cuInit", driver.init);
        find(library, "cuDeviceGet", driver.device_get);
        find(library, "cuDevicePrimaryCtxRetain", driver.primary_retain);
        find(library, "cuCtxSetCurrent", driver.set_current);
        find(library, "cuStreamCreate", driver.stream_create);
        find(library, "cuMemAlloc_v2", driver.reserve);
        find(library, "cuMemFree_v2", driver.release);
        find(library, "cuMemcpyHtoD_v2", driver.copy_to_device);
        check(driver.init(0), "cuInit");
        check(driver.device_get(&device, index), "cuDeviceGet");
        check(driver.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
        check(driver.set_current(context), "cuCtxSetCurrent");
        // Work on the default stream would wait for other streams. This one never has work: copies are synchronous.
        check(driver.stream_create(&idle, NON_BLOCKING), "cuStreamCreate");
    }
    bool     on_device() const override { return true; }
    void    *stream() const override { return idle; }
    uint8_t *reserve(size_t bytes) override {
        CUdeviceptr memory = 0;
        check(driver.set_current(context), "cuCtxSetCurrent");
        check(driver.reserve(&memory, bytes), "cuMemAlloc of samples");
        return reinterpret_cast<uint8_t *>(memory);
    }
    void release(uint8_t *memory) override {
        (void)driver.set_current(context);
        (void)driver.release(reinterpret_cast<CUdeviceptr>(memory));
    }
    void copy_from_host(uint8_t *to, const uint8_t *host, size_t bytes) override {
        check(driver.set_current(context), "cuCtxSetCurrent");
        check(driver.copy_to_device(reinterpret_cast<CUdeviceptr>(to), host, bytes), "cuMemcpyHtoD of samples");
    }

  private:
    Driver driver;
    void  *context = nullptr, *idle = nullptr;

    template <typename Function> static void find(void *library, const char *name, Function &function) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        if (!function) throw Failure(std::string("libcuda.so.1 has no ") + name + ": the NVIDIA driver is too old");
    }
    void check(CUresult result, const char *what) const {
        const char *text = nullptr;
        if (result == 0) return;
        (void)driver.error_text(result, &text);
        throw Failure(std::string(what) + ": " + (text ? text : "error " + std::to_string(result)));
    }
};

} // namespace

std::unique_ptr<DeviceMemory> open_memory(const std::string &device) {
    if (device.rfind("cuda", 0) != 0) return std::make_unique<HostMemory>();
    return std::make_unique<GpuMemory>(device.size() > 5 ? std::atoi(device.c_str() + 5) : 0);
}
