/* core/output_file.h: decides whether an output file that the user names may be created or overwritten (--force).
 *
 *   a new name                        is created
 *   an empty file                     is replaced
 *   a file of the expected kind       is replaced: cresnet wrote it, as its content shows
 *   any other regular file            is CR_ERR_CONFIG, unless the user gives --force
 *   a device, pipe or socket          is opened and written, never replaced; /dev/stdout, /dev/stderr and /dev/fd/N
 *                                     mean the open descriptor
 *   a link                            is followed and its target is checked; a link to nothing is CR_ERR_IO
 *   a folder                          is CR_ERR_IO
 * A command checks when it starts, before the long work, and again when it writes. */
#ifndef CR_OUTPUT_FILE_H
#define CR_OUTPUT_FILE_H

#include "core/files.h"

enum cr_output_kind {
    CR_OUTPUT_SAFETENSORS, /* of cresnet export; not the files of checkpoints */
    CR_OUTPUT_ONNX,
    CR_OUTPUT_CONFUSION,
    CR_OUTPUT_PREDICTIONS,
    CR_OUTPUT_REPORT,
    CR_OUTPUT_POOL_SVG,
    CR_OUTPUT_EXPLAIN_PNG,
    CR_OUTPUT_EXPLAIN_CSV,
    CR_OUTPUT_SHOW_PNG,
    CR_OUTPUT_PACK,
    CR_OUTPUT_UNMARKED, /* arrays and names of cresnet features: nothing tells them from those of other programs */
    CR_OUTPUT_KINDS,
};

/* Marks by which files are recognised; the functions that write these files use them. */
#define CR_OUTPUT_EXPORT_KEY "cresnet_export"       /* metadata of exported weights */
#define CR_OUTPUT_PRODUCER "cresnet"                /* producer of ONNX files */
#define CR_OUTPUT_CSV_START "label\\predicted"      /* first cell of a confusion matrix */
#define CR_OUTPUT_CSV_LIST "label,predicted,images" /* the same as a list of cells */
#define CR_OUTPUT_PREDICTIONS_START "file,predicted_label,predicted_class,probability" /* first columns of --csv */
#define CR_OUTPUT_EXPLAIN_SOFTWARE "cresnet explain" /* text chunk "Software" of its overlay */
#define CR_OUTPUT_SHOW_SOFTWARE "cresnet data show"  /* the same of its page */
#define CR_OUTPUT_EXPLAIN_START "row\\column"        /* first cell of its map */
/* of the pool of cresnet plan */
#define CR_OUTPUT_POOL_SVG_START "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pool\""

enum cr_output_flags {
    CR_OUTPUT_FORCE    = 1, /* replace any regular file */
    CR_OUTPUT_NO_FORCE = 2, /* the command has no --force: the message does not mention it */
    CR_OUTPUT_NO_LINK  = 4, /* links, devices and pipes are errors: for folders that somebody else may have made */
};

struct cr_output_file {
    char path[CR_PATH_MAX]; /* the file to create or replace, links resolved; or the device */
    bool direct;            /* a device, pipe, socket or descriptor */
    int  fd;                /* the number of the descriptor that the name means, else -1 */
};

/* Checks `name`; `flags` are of enum cr_output_flags. Nothing is opened for writing. CR_ERR_CONFIG, CR_ERR_IO. */
CR_MUST cr_status cr_output_file_find(const char *name, enum cr_output_kind kind, unsigned flags,
                                      struct cr_output_file *out);
/* Writes the bytes: replaces or creates a file by a rename, or writes to the device. CR_ERR_IO. */
CR_MUST cr_status cr_output_file_write(const struct cr_output_file *file, const void *bytes, size_t count);
/* Opens a file for which `direct` is true; the caller closes *fd. */
CR_MUST cr_status cr_output_file_open_direct(const struct cr_output_file *file, int *fd);

#endif
