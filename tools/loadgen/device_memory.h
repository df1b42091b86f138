// device_memory.h: memory for the samples: on the GPU that computes, or on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

class DeviceMemory {
  public:
    virtual ~DeviceMemory()                       = default;
    virtual bool     on_device() const            = 0;
    virtual void    *stream() const               = 0; // idle; nullptr on the host
    virtual uint8_t *reserve(size_t bytes)        = 0; // throws Failure
    virtual void     release(uint8_t *memory)     = 0;
    virtual void     copy_from_host(uint8_t *to, const uint8_t *host,
                                    size_t bytes) = 0; // throws Failure; returns when done
};

// `device` is a device of the library: "cpu", "cuda" or "cuda:N". Throws Failure.
std::unique_ptr<DeviceMemory> open_memory(const std::string &device);
