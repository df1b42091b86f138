/* tests/fuzz/fuzz.h: the function of a fuzz target, which libFuzzer or replay.c calls. */
#ifndef CR_FUZZ_H
#define CR_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#endif
