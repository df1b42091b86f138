/* tests/gpu/fatbin_limits.h: what the launches of CUDA kernels need, on a machine without a GPU.
 *
 * The program is linked with --wrap for the functions of the CUDA runtime that launchers call. The wrappers
 * (fatbin_limits_runtime.c) record each launch and run nothing. What the launched kernels need is read from the machine
 * code inside this program (fatbin_limits_code.c): nvcc puts an ELF file for each architecture into a "fatbin". */
#ifndef FATBIN_LIMITS_H
#define FATBIN_LIMITS_H

#include "core/base.h"

/* Machine code of one kernel for one architecture. */
struct fatbin_code {
    const char *name;         /* mangled name; not owned */
    uint32_t    hash;         /* of the name */
    int         arch;         /* 80 for sm_80 */
    bool        specific;     /* sm_90a: runs on this architecture only */
    int         registers;    /* of a thread */
    int         threads;      /* most threads of a block, from __launch_bounds__; 1024 without */
    int64_t     shared_bytes; /* static shared memory of a block */
};

enum { FATBIN_UNPACKED_MAX = 16 };
/* One fatbin of the program: all kernels of one .cu file. */
struct fatbin {
    const void         *image;
    struct fatbin_code *code; /* of all its architectures */
    int                 count;
    int                 packed; /* number of compressed files that could not be read */
    char               *unpacked[FATBIN_UNPACKED_MAX];
    int                 unpacked_count;
};
/* Reads fatbin->image and fills the other members. CR_ERR_FORMAT when the bytes are not what nvcc writes. */
CR_MUST cr_status fatbin_read(struct fatbin *fatbin);
void              fatbin_free(struct fatbin *fatbin);

/* The code of kernel `name` that a GPU of compute capability cc (times 10) runs: its own, else that of an older GPU of
 * the same family. Without such code, *foreign is set and the newest code for an older family is returned: PTX of the
 * same kernel, which the driver compiles, needs about as much. NULL: this fatbin has no code for it. */
const struct fatbin_code *fatbin_find(const struct fatbin *fatbin, const char *name, int cc, bool *foreign);
/* Whether the kernel has code for 9.0a: for other GPUs it is an empty body. */
bool fatbin_is_specific(const struct fatbin *fatbin, const char *name);

/* ---- launches ---- */

/* One launch of a kernel. */
struct fatbin_launch {
    const struct fatbin *fatbin;
    const char          *name; /* mangled name of the kernel */
    unsigned             grid[3], block[3];
    int64_t              dynamic_bytes; /* dynamic shared memory */
    int64_t              allowed_bytes; /* allowed with cudaFuncSetAttribute; 0: not called */
    bool                 overlaps;      /* dependent launch */
    unsigned             cluster;       /* blocks of a cluster; 1 without */
};
enum { FATBIN_LAUNCHES_MAX = 64 };
struct fatbin_record {
    struct fatbin_launch launch[FATBIN_LAUNCHES_MAX];
    int                  count;       /* launches since fatbin_start */
    bool                 tensor_maps; /* descriptors of TMA were made */
};
extern struct fatbin_record fatbin_record;

/* Launches from now on are those of a GPU of compute capability cc (times 10). Empties fatbin_record. */
void fatbin_start(int cc);
struct fatbin_totals {
    int kernels, files, packed; /* kernels; files with machine code; compressed files that could not be read */
    int oldest;                 /* architecture of the oldest machine code; 0: none */
};
/* Reads the machine code of the whole program. */
CR_MUST cr_status fatbin_open_program(struct fatbin_totals *totals);
void              fatbin_close_program(void);

#endif
