/* data/scratch.h: scratch memory of a thread that decodes images. Private to data/ and to code that decodes on its own.
 *
 * Invariant: the memory that a sample needs is part of the scratch of the thread that works on it. A loader therefore
 * stops allocating once its largest image has been read. */
#ifndef CR_SCRATCH_H
#define CR_SCRATCH_H

#include "data/data.h"

/* One per thread; a zeroed struct is empty. */
struct cr_buffer {
    uint8_t *bytes;
    size_t   capacity;
};
struct cr_jpeg;        /* data/image/jpeg.c: a decoder and the image whose header it has read */
struct cr_jpeg_tables; /* data/image/jpeg_baseline.c: tables of its entropy decoder */
struct cr_scratch {
    struct cr_buffer file, pixels, oriented, tables, entropy, planes, copy;
    struct cr_jpeg  *jpeg; /* allocated at first use */
    struct cr_jpeg_tables
        *jpeg_tables; /* allocated at first use; of the last image, reused if the next image has the same tables */
    struct cr_load_counts counts;
};
/* data/image/buffer.c: grows the buffer to at least `count` bytes; its content is lost. CR_ERR_MEMORY. */
CR_MUST cr_status cr_buffer_reserve(struct cr_buffer *buffer, size_t count);
/* data/image/buffer.c: to be called when the pixels of an image are no longer needed. After an image that had the turn
 * of cr_image_admit it frees its memory and ends the turn; otherwise it does nothing. */
void cr_scratch_release(struct cr_scratch *scratch);
/* Ends the turn of a thread that will never return to its image; it may be called without one. */
void cr_image_abandon_turn(void);
void cr_scratch_free(struct cr_scratch *scratch);

#endif
