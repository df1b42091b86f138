/* core/cpu_resources.h: the limits behind cr_cpu_cores and cr_cpu_memory_free, read below a folder that stands for "/".
 * Tests pass a folder with files of their own; core/cpu.h passes "". Files that are missing or strange are no limit. */
#ifndef CR_CPU_RESOURCES_H
#define CR_CPU_RESOURCES_H

#include "core/base.h"

/* The CPU quota of the control groups of this process in cores, rounded up; INT_MAX without a quota. */
int cr_cpu_quota_below(const char *root);
/* See cr_cpu_memory_free. */
size_t cr_cpu_memory_below(const char *root);

#endif
