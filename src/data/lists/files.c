/* data/lists/files.c: files that are no dataset as one: all images of a folder, or those of a list. See data/data.h. */
#include "data/source.h"
#include "data/source/folder_list.h"

cr_status cr_dataset_open_files(const struct cr_config *config, const char *root, const char *const *files,
                                int64_t count, struct cr_dataset **out) {
    static const char *no_class = "";
    struct cr_dataset *dataset;
    cr_status          status = CR_OK;
    CR_ALLOC(dataset, 1);
    dataset->format      = cr_format_of(config);
    dataset->max_pixels  = config->data.max_pixels;
    dataset->classes     = 1;
    dataset->class_names = &no_class;
    CR_TRY_OUT(cr_folder_begin(config, root, dataset));
    for (int64_t i = 0; i < count; i++) CR_TRY_OUT(cr_folder_add(dataset->state, files[i], 0));
    CR_TRY_OUT(cr_folder_finish(dataset));
    status = cr_dataset_alloc_logged(dataset);
out:
    if (status != CR_OK)
        cr_dataset_close(dataset);
    else
        *out = dataset;
    return status;
}
