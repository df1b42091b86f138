/* tests/tools/emulator_exec.c: exec for a program of another processor that runs in an emulator (scripts/cross-arm.sh).
 * The system cannot start such programs, so a program that starts itself starts the emulator instead. The file
 * /etc/emulator of the emulated system has two lines: the path of the emulator, and the root of that system. */
#include <elf.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__aarch64__)
enum { THIS_MACHINE = EM_AARCH64 };
#else
enum { THIS_MACHINE = EM_X86_64 };
#endif

/* A program of the emulated processor. */
static int is_emulated(const char *path) {
    Elf64_Ehdr header;
    FILE      *file = fopen(path, "rbe");
    const int  ok   = file && fread(&header, sizeof header, 1, file) == 1;
    if (file) fclose(file);
    return ok && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == THIS_MACHINE;
}

static int read_line(FILE *file, char *line) {
    if (!fgets(line, PATH_MAX, file)) return 0;
    line[strcspn(line, "\n")] = '\0';
    return 1;
}

int execve(const char *path, char *const argv[], char *const environment[]) {
    char emulator[PATH_MAX], folder[PATH_MAX], program[PATH_MAX];
    if (realpath(path, program) && is_emulated(program)) {
        FILE *file = fopen("/etc/emulator", "re");
        int   n    = 0;
        while (argv[n]) n++;
        const char **longer = calloc((size_t)n + 7, sizeof *longer);
        if (file && longer && read_line(file, emulator) && read_line(file, folder)) {
            const char *first[] = {emulator, "-0", argv[0], "-L", folder, program};
            memcpy(longer, first, sizeof first);
            if (n > 1) memcpy(longer + 6, argv + 1, (size_t)(n - 1) * sizeof *longer);
            syscall(SYS_execve, emulator, longer, environment);
        }
        if (file) fclose(file);
        free(longer);
    }
    return (int)syscall(SYS_execve, path, argv, environment);
}

int execv(const char *path, char *const argv[]) {
    return execve(path, argv, environ);
}
