/* checkpoint/stream.c: copies a tensor between file and store in chunks, converts its type, permutes (OIHW to KRSC). */
#include "checkpoint/internal.h"
#include "core/checksum/crc32c.h"

/* A filter consists of K rows of C x RS (file) or RS x C (store) elements. Any other tensor is one row without
 * permutation. */
struct rows {
    uint64_t count, elems; /* rows, elements in each */
    size_t   c, rs;
    bool     transpose;
};

static struct rows rows_of(const struct cr_ckpt_tensor *tensor) {
    struct rows rows = {.count = 1, .elems = 1};
    for (int i = 0; i < tensor->dims; i++) rows.elems *= (uint64_t)tensor->dim[i];
    if (!tensor->permute_krsc) return rows;
    CR_ASSERT(tensor->dims == 4);
    rows.c         = (size_t)tensor->dim[1];
    rows.rs        = (size_t)(tensor->dim[2] * tensor->dim[3]);
    rows.transpose = rows.c > 1 && rows.rs > 1; /* otherwise both orders are identical */
    if (rows.transpose) {
        rows.count = (uint64_t)tensor->dim[0];
        rows.elems = rows.c * rows.rs;
    }
    return rows;
}

cr_status cr_ckpt_stage_open(const struct cr_ckpt_tensor *tensors, int count, size_t most,
                             struct cr_ckpt_stage *stage) {
    uint64_t bytes = 64;
    for (int i = 0; i < count; i++) {
        struct rows rows = rows_of(&tensors[i]);
        uint64_t    row = rows.elems * 8, all = rows.count * row; /* 8: size of the largest element type */
        bytes = CR_MAX(bytes, CR_MIN(all, (uint64_t)most));
        if (rows.transpose) bytes = CR_MAX(bytes, row);
    }
    *stage = (struct cr_ckpt_stage){.bytes = (size_t)bytes};
    CR_ALLOC(stage->a, stage->bytes);
    CR_ALLOC(stage->b, stage->bytes);
    return CR_OK;
}

void cr_ckpt_stage_close(struct cr_ckpt_stage *stage) {
    cr_free(stage->a);
    cr_free(stage->b);
    *stage = (struct cr_ckpt_stage){0};
}

/* Number of elements in one chunk, with at most `size` bytes each; whole rows when they are permuted. */
static uint64_t chunk_elems(const struct rows *rows, const struct cr_ckpt_stage *stage, size_t size) {
    uint64_t fit =
        CR_MIN(stage->bytes, CR_MAX((size_t)CR_CKPT_CHUNK_BYTES, rows->transpose ? rows->elems * size : 0)) / size;
    return rows->transpose ? CR_MAX(fit / rows->elems, 1) * rows->elems : fit;
}

/* ---- permutation, conversion ---- */

#define TRANSPOSE(type)                                                                                                \
    do {                                                                                                               \
        const type *from = src;                                                                                        \
        type       *to   = dst;                                                                                        \
        for (size_t j = 0; j < columns; j++)                                                                           \
            for (size_t i = 0; i < lines; i++) to[j * lines + i] = from[i * columns + j];                              \
    } while (0)

/* src [lines, columns] to dst [columns, lines]. */
static void transpose(void *dst, const void *src, size_t lines, size_t columns, size_t elem_bytes) {
    switch (elem_bytes) {
    case 1: TRANSPOSE(uint8_t); break;
    case 2: TRANSPOSE(uint16_t); break;
    case 4: TRANSPOSE(uint32_t); break;
    case 8: TRANSPOSE(uint64_t); break;
    default: CR_ASSERT(!"unsupported element size");
    }
}

static void transpose_rows(unsigned char *dst, const unsigned char *src, uint64_t count, size_t lines, size_t columns,
                           size_t elem_bytes) {
    size_t row_bytes = lines * columns * elem_bytes;
    for (uint64_t i = 0; i < count; i++)
        transpose(dst + i * row_bytes, src + i * row_bytes, lines, columns, elem_bytes);
}

bool cr_ckpt_can_convert(enum cr_dtype from, enum cr_dtype to) {
    return from == to || (to == CR_F32 && (from == CR_F16 || from == CR_BF16 || from == CR_F64 || from == CR_I8));
}

static void convert(float *dst, const void *src, enum cr_dtype from, uint64_t count) {
    const uint16_t *half  = src;
    const double   *whole = src;
    const int8_t   *small = src;
    if (from == CR_F16)
        for (uint64_t i = 0; i < count; i++) dst[i] = cr_f16_to_f32(half[i]);
    else if (from == CR_BF16)
        for (uint64_t i = 0; i < count; i++) dst[i] = cr_bf16_to_f32(half[i]);
    else if (from == CR_I8)
        for (uint64_t i = 0; i < count; i++) dst[i] = (float)small[i];
    else
        for (uint64_t i = 0; i < count; i++) dst[i] = (float)whole[i];
}

/* ---- a tensor ---- */

cr_status cr_ckpt_tensor_out(struct cr_st_writer *writer, const struct cr_ckpt_tensor *tensor,
                             const struct cr_ckpt_stage *stage, const struct cr_ckpt_io *io) {
    struct rows rows  = rows_of(tensor);
    size_t      size  = cr_dtype_bytes(tensor->dtype);
    uint64_t    total = rows.count * rows.elems, chunk = chunk_elems(&rows, stage, size);
    for (uint64_t done = 0; done < total; done += chunk) {
        uint64_t elems = CR_MIN(chunk, total - done);
        size_t   bytes = (size_t)elems * size;
        for (size_t at = 0; at < bytes; at += CR_CKPT_CHUNK_BYTES)
            CR_TRY(io->get(io->self, tensor->address, done * size + at, stage->a + at,
                           CR_MIN(bytes - at, (size_t)CR_CKPT_CHUNK_BYTES)));
        if (rows.transpose) transpose_rows(stage->b, stage->a, elems / rows.elems, rows.rs, rows.c, size);
        CR_TRY(cr_st_write(writer, rows.transpose ? stage->b : stage->a, bytes));
    }
    return CR_OK;
}

cr_status cr_ckpt_tensor_in(struct cr_st_file *file, const struct cr_st_entry *entry,
                            const struct cr_ckpt_tensor *tensor, const struct cr_ckpt_stage *stage,
                            const struct cr_ckpt_io *io) {
    struct rows rows = rows_of(tensor);
    size_t      size = cr_dtype_bytes(tensor->dtype), file_size = cr_dtype_bytes(entry->dtype);
    uint64_t    total = rows.count * rows.elems, chunk = chunk_elems(&rows, stage, CR_MAX(size, file_size));
    const bool  sums = cr_st_has_sums(file);
    uint32_t    crc  = 0;
    for (uint64_t done = 0; done < total; done += chunk) {
        uint64_t       elems   = CR_MIN(chunk, total - done);
        size_t         bytes   = (size_t)elems * size;
        unsigned char *current = stage->a, *spare = stage->b;
        CR_TRY(cr_st_read(file, entry, done * file_size, current, (size_t)elems * file_size));
        if (sums) crc = cr_crc32c(crc, current, (size_t)elems * file_size);
        if (entry->dtype != tensor->dtype) {
            convert((float *)(void *)spare, current, entry->dtype, elems);
            current = stage->b;
            spare   = stage->a;
        }
        if (rows.transpose) {
            transpose_rows(spare, current, elems / rows.elems, rows.c, rows.rs, size);
            current = spare;
        }
        for (size_t at = 0; at < bytes; at += CR_CKPT_CHUNK_BYTES)
            CR_TRY(io->put(io->self, tensor->address, done * size + at, current + at,
                           CR_MIN(bytes - at, (size_t)CR_CKPT_CHUNK_BYTES)));
    }
    return cr_st_check_sum(file, entry, crc);
}
