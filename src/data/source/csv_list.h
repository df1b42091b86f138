/* data/source/csv_list.h: reads the lines of a list of images (CSV), and the labels of images that have several. */
#ifndef CR_CSV_LIST_H
#define CR_CSV_LIST_H

#include "data/source.h"
#include "data/source/folder_list.h"

enum { CR_CSV_CLASSES_MAX = 1000000 };

struct cr_csv_entry {
    const char *file, *label; /* in the text of the list */
    int64_t     line;
    int32_t     number; /* of the label */
};
struct cr_csv_list {
    char                 path[PATH_MAX];
    char                *text;
    size_t               bytes; /* of the file */
    struct cr_csv_entry *entry;
    int64_t              count, capacity;
    bool                 headed; /* the first line has headings */
};

/* Fills dataset->class_names with the different texts of label[count], which it sorts. CR_ERR_FORMAT: there are fewer
 * than two or too many. CR_ERR_MEMORY. */
CR_MUST cr_status cr_csv_make_classes(const char *path, const char **label, int64_t count, struct cr_dataset *dataset);
/* The number of a class by its name, or -1. */
int32_t cr_csv_class_of(const struct cr_dataset *dataset, const char *label);
/* The error for a label that no image of `train` has; returns CR_ERR_FORMAT. */
cr_status cr_csv_fail_label(const struct cr_dataset *dataset, const struct cr_csv_list *list,
                            const struct cr_csv_entry *entry, const char *train, const char *label);
/* A wrong folder is found before the run starts. */
CR_MUST cr_status cr_csv_check_first(const struct cr_dataset *dataset, const struct cr_csv_list *list);

struct cr_csv_twice {
    int64_t files; /* that are named more than once */
    struct cr_csv_place {
        const char                *list; /* its path */
        const struct cr_csv_entry *entry;
    } first, second; /* two lines of the first one */
};
/* Finds files that the lists name more than once; unless `same_label`, with different numbers of labels. `val` may be
 * NULL. CR_ERR_MEMORY. */
CR_MUST cr_status cr_csv_find_twice(const struct cr_csv_list *train, const struct cr_csv_list *val, bool same_label,
                                    struct cr_csv_twice *out);
/* data/source/csv_labels.c: with data.multi_label, fills a dataset from lists with lines file,label1;label2. `val` may
 * be NULL; the fraction `fraction` of the images, chosen by a hash of their names, is then held out. */
CR_MUST cr_status cr_csv_fill_several(struct cr_dataset *dataset, struct cr_csv_list *train, struct cr_csv_list *val,
                                      double fraction, enum cr_split split);

#endif
