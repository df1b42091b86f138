/* tests/gpu/fatbin_limits_code.c: reads the machine code in a fatbin. See tests/gpu/fatbin_limits.h.
 *
 * The formats are not documented; `cuobjdump -res-usage` of CUDA 12.4 prints the same numbers. A fatbin is a header and
 * entries, each with a header of its own and an ELF file (or PTX), which nvcc compresses when it is large: by zstd, or
 * by LZ4 before CUDA 12.8. The ELF file has for a kernel K
 *   .text.K         its code
 *   .nv.shared.K    its static shared memory
 *   .nv.info        attributes of all kernels; REGCOUNT: a symbol and the number of registers
 *   .nv.info.K      attributes of K; MAX_THREADS: the launch bounds */
#include "tests/gpu/fatbin_limits.h"

#include <dlfcn.h>
#include <elf.h>
#include <string.h>

enum { FATBIN_MAGIC = 0x466243b1, IMAGE_MAGIC = (int)0xba55ed50, KIND_ELF = 2, THREADS_MAX = 1024 };
enum { FORMAT_BYTES = 4, ATTR_MAX_THREADS = 0x05, ATTR_REGCOUNT = 0x2f };
/* From 9.0 on, .nv.shared.K begins with memory of the driver, which is no part of the limit of a block. */
enum { RESERVED_BYTES = 1024, RESERVED_FROM = 90 };
enum { FLAG_LZ4 = 1 << 13, FLAG_ZSTD = 1 << 15, FLAG_SPECIFIC = 1 << 20 };

struct wrapper { /* what __cudaRegisterFatBinary gets */
    int32_t     magic, version;
    const char *data;
    const void *more;
};
struct image_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of the entries */
};
struct entry_header {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes; /* of the payload */
    uint32_t packed_bytes, options;
    uint16_t minor, major;
    uint32_t arch, name_at, name_bytes;
    uint64_t flags, zero, elf_bytes; /* elf_bytes: of the ELF file, if the payload is compressed */
};

struct elf {
    const char       *at;
    size_t            bytes;
    const Elf64_Shdr *section;
    int               sections;
    const char       *names;
};

static bool elf_open(const char *at, size_t bytes, struct elf *out) {
    const Elf64_Ehdr *header = (const void *)at;
    if (bytes < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_shoff > bytes ||
        header->e_shnum > (bytes - header->e_shoff) / sizeof(Elf64_Shdr) || header->e_shstrndx >= header->e_shnum)
        return false;
    *out         = (struct elf){.at = at, .bytes = bytes, .sections = header->e_shnum};
    out->section = (const void *)(at + header->e_shoff);
    for (int i = 0; i < out->sections; i++) {
        const Elf64_Shdr *s = &out->section[i];
        if (s->sh_type != SHT_NOBITS && (s->sh_offset > bytes || s->sh_size > bytes - s->sh_offset)) return false;
    }
    out->names = at + out->section[header->e_shstrndx].sh_offset;
    return true;
}

/* The part of a section's name after the prefix, or NULL. */
static const char *after(const struct elf *elf, int section, const char *prefix) {
    const char  *name   = elf->names + elf->section[section].sh_name;
    const size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 ? name + length : NULL;
}

static int find_section(const struct elf *elf, const char *prefix, const char *name) {
    for (int i = 0; i < elf->sections; i++) {
        const char *rest = after(elf, i, prefix);
        if (rest && strcmp(rest, name) == 0) return i;
    }
    return -1;
}

/* Calls `use` for each attribute of an .nv.info section that has a payload. */
static void each_attribute(const struct elf *elf, int section, struct fatbin_code *code, int symbol,
                           void (*use)(int attribute, const uint32_t *value, size_t words, struct fatbin_code *code,
                                       int symbol)) {
    const Elf64_Shdr *s = &elf->section[section];
    for (size_t at = 0; at + 4 <= s->sh_size;) {
        const unsigned char *p     = (const unsigned char *)elf->at + s->sh_offset + at;
        const size_t         bytes = p[0] == FORMAT_BYTES ? (size_t)(p[2] | p[3] << 8) : 0;
        if (at + 4 + bytes > s->sh_size) return;
        if (bytes) use(p[1], (const void *)(p + 4), bytes / 4, code, symbol);
        at += 4 + bytes;
    }
}

static void use_registers(int attribute, const uint32_t *value, size_t words, struct fatbin_code *code, int symbol) {
    if (attribute == ATTR_REGCOUNT && words == 2 && value[0] == (uint32_t)symbol) code->registers = (int)value[1];
}
static void use_threads(int attribute, const uint32_t *value, size_t words, struct fatbin_code *code, int symbol) {
    if (attribute == ATTR_MAX_THREADS && words == 3) code->threads = (int)(value[0] * value[1] * value[2]);
}

static int find_function(const struct elf *elf, const char *name) {
    for (int i = 0; i < elf->sections; i++) {
        const Elf64_Shdr *s = &elf->section[i];
        if (s->sh_type != SHT_SYMTAB || (int)s->sh_link >= elf->sections) continue;
        const Elf64_Sym *symbol = (const void *)(elf->at + s->sh_offset);
        const char      *names  = elf->at + elf->section[s->sh_link].sh_offset;
        for (size_t k = 0; k < s->sh_size / sizeof *symbol; k++)
            if (ELF64_ST_TYPE(symbol[k].st_info) == STT_FUNC && strcmp(names + symbol[k].st_name, name) == 0)
                return (int)k;
    }
    return -1;
}

/* Kernels of a file have long names with the same prefix, so their hashes are compared first. */
static uint32_t hash_of(const char *name) {
    uint32_t hash = 2166136261u;
    for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

static void read_kernel(const struct elf *elf, int text, struct fatbin_code *code) {
    const int info = find_section(elf, ".nv.info", ""), own = find_section(elf, ".nv.info.", code->name),
              shared = find_section(elf, ".nv.shared.", code->name);
    code->hash       = hash_of(code->name);
    code->threads    = THREADS_MAX;
    if (info >= 0) each_attribute(elf, info, code, find_function(elf, code->name), use_registers);
    if (own >= 0) each_attribute(elf, own, code, 0, use_threads);
    if (shared >= 0) code->shared_bytes = (int64_t)elf->section[shared].sh_size;
    if (code->arch >= RESERVED_FROM && code->shared_bytes >= RESERVED_BYTES) code->shared_bytes -= RESERVED_BYTES;
}

/* Decompresses with a library of this machine; false when it is missing or rejects the bytes. */
static bool unpack(uint64_t flags, const char *from, size_t from_bytes, char *to, size_t to_bytes) {
    const bool zstd    = flags & FLAG_ZSTD;
    void      *library = dlopen(zstd ? "libzstd.so.1" : "liblz4.so.1", RTLD_LAZY | RTLD_NODELETE);
    union { /* ISO C has no conversion from void * to a function pointer */
        void *symbol;
        size_t (*zstd)(void *to, size_t to_bytes, const void *from, size_t from_bytes);
        int (*lz4)(const char *from, char *to, int from_bytes, int to_bytes);
    } call        = {.symbol = library ? dlsym(library, zstd ? "ZSTD_decompress" : "LZ4_decompress_safe") : NULL};
    const bool ok = call.symbol && (zstd ? call.zstd(to, to_bytes, from, from_bytes) == to_bytes
                                         : call.lz4(from, to, (int)from_bytes, (int)to_bytes) == (int)to_bytes);
    if (library) dlclose(library);
    return ok;
}

/* Sets *at and *bytes to the ELF file of the entry. *at is NULL when it cannot be decompressed. */
static cr_status find_elf(struct fatbin *f, const struct entry_header *entry, const char **at, size_t *bytes) {
    const char *payload = (const char *)entry + entry->header_bytes;
    *at                 = payload;
    *bytes              = entry->bytes;
    if (!(entry->flags & (FLAG_LZ4 | FLAG_ZSTD))) return CR_OK;
    char *elf;
    if (f->unpacked_count == FATBIN_UNPACKED_MAX || entry->elf_bytes > INT32_MAX)
        return CR_FAIL(CR_ERR_FORMAT, "a fatbin has more compressed files than expected");
    CR_ALLOC(elf, entry->elf_bytes);
    f->unpacked[f->unpacked_count++] = elf;
    *at    = unpack(entry->flags, payload, entry->packed_bytes, elf, entry->elf_bytes) ? elf : NULL;
    *bytes = entry->elf_bytes;
    return CR_OK;
}

static cr_status read_elf(struct fatbin *f, const struct entry_header *entry, int *capacity) {
    const char *at;
    size_t      bytes;
    struct elf  elf;
    CR_TRY(find_elf(f, entry, &at, &bytes));
    if (!at || !elf_open(at, bytes, &elf)) {
        f->packed++;
        return CR_OK;
    }
    for (int i = 0; i < elf.sections; i++) {
        const char *name = after(&elf, i, ".text.");
        if (!name) continue;
        CR_GROW(f->code, f->count, *capacity, 64);
        struct fatbin_code *code = &f->code[f->count++];
        *code = (struct fatbin_code){.name = name, .arch = (int)entry->arch, .specific = entry->flags & FLAG_SPECIFIC};
        read_kernel(&elf, i, code);
    }
    return CR_OK;
}

cr_status fatbin_read(struct fatbin *f) {
    const struct wrapper      *wrapper  = f->image;
    const struct image_header *header   = (const void *)wrapper->data;
    int                        capacity = 0;
    if (wrapper->magic != FATBIN_MAGIC || header->magic != (uint32_t)IMAGE_MAGIC)
        return CR_FAIL(CR_ERR_FORMAT, "a fatbin does not begin as nvcc writes it");
    const char *at = wrapper->data + header->header_bytes, *end = at + header->bytes;
    while (at < end) {
        const struct entry_header *entry = (const void *)at;
        if (entry->header_bytes < sizeof *entry) return CR_FAIL(CR_ERR_FORMAT, "an entry of a fatbin has no header");
        if (entry->kind == KIND_ELF) CR_TRY(read_elf(f, entry, &capacity));
        at += entry->header_bytes + entry->bytes;
    }
    return CR_OK;
}

void fatbin_free(struct fatbin *f) {
    while (f->unpacked_count > 0) cr_free(f->unpacked[--f->unpacked_count]);
    cr_free(f->code);
    f->code  = NULL;
    f->count = 0;
}

/* Whether `a` suits the GPU better than `b`: its family, its specific code, then the newest. */
static bool is_better(const struct fatbin_code *a, const struct fatbin_code *b, int cc) {
    if (!b) return true;
    if ((a->arch / 10 == cc / 10) != (b->arch / 10 == cc / 10)) return a->arch / 10 == cc / 10;
    return a->arch != b->arch ? a->arch > b->arch : a->specific;
}

const struct fatbin_code *fatbin_find(const struct fatbin *f, const char *name, int cc, bool *foreign) {
    const struct fatbin_code *best = NULL;
    const uint32_t            hash = hash_of(name);
    for (int i = 0; i < f->count; i++) {
        const struct fatbin_code *code = &f->code[i];
        if (code->hash != hash || code->arch > cc || (code->specific && code->arch != cc)) continue;
        if (strcmp(code->name, name) != 0) continue;
        if (is_better(code, best, cc)) best = code;
    }
    *foreign = best && best->arch / 10 != cc / 10;
    return best;
}

bool fatbin_is_specific(const struct fatbin *f, const char *name) {
    const uint32_t hash = hash_of(name);
    for (int i = 0; i < f->count; i++)
        if (f->code[i].specific && f->code[i].hash == hash && strcmp(f->code[i].name, name) == 0) return true;
    return false;
}
