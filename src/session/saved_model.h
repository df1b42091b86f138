/* session/saved_model.h: the files of a trained network: its configuration, its weights and its class names. */
#ifndef CR_SAVED_MODEL_H
#define CR_SAVED_MODEL_H

#include "config/config.h"
#include "core/files.h"

struct cr_dataset; /* data/data.h */

struct cr_saved_model {
    char config[CR_PATH_MAX]; /* path of the INI file */
    char weights
        [CR_PATH_MAX]; /* path of a file of weights, or of a checkpoint folder whose model.safetensors is meant */
};
/* Finds the files of `path`: a run folder (its best checkpoint; the newest one without a best), a checkpoint folder, a
 * file of weights, or the name of published weights, which needs `config`. In a folder, the moving averages are taken
 * when it has some. `config` (may be NULL) is used in place of the config.ini next to the weights. CR_ERR_CONFIG,
 * CR_ERR_IO. */
CR_MUST cr_status cr_saved_model_find(const char *path, const char *config, struct cr_saved_model *out);

/* Number of classes of the classifier in the weights of config (model.weights). CR_ERR_FORMAT without a classifier. */
CR_MUST cr_status cr_saved_model_classes(const struct cr_config *config, int *classes);
/* Reads the names of the classes: those in the metadata of an exported file, else those in classes.txt next to the
 * weights; the arena owns them. Published weights have those of ImageNet without such a file; otherwise *count is 0. */
CR_MUST cr_status cr_saved_model_names(const char *weights, struct cr_arena *arena, const char ***names, int *count);
/* The same for a comparison with the classes of a dataset. ImageNet's names, which published weights and networks made
 * of them have, are not those of its folders (n01440764): *count is 0 where they are not the names of the dataset. */
CR_MUST cr_status cr_saved_model_names_for(const struct cr_dataset *dataset, const char *weights,
                                           struct cr_arena *arena, const char ***names, int *count);
/* Before a network is opened for the dataset: gives it the classes that only the weights have, so that a test set
 * without images of some classes can be scored. Weights that cannot be read or have no names change nothing. */
CR_MUST cr_status cr_saved_model_add_classes(const struct cr_config *config, struct cr_dataset *dataset);
/* Gives the classes of a dataset the labels that they have, by name, in config's weights (model.weights); logs the
 * lines of cr_dataset_adopt_classes. Does nothing with synthetic data, and when the numbers of classes differ, which
 * cr_session_load_weights reports. With `exact` (the network is used as it is) a line says that there are no names to
 * compare. CR_ERR_MEMORY, CR_ERR_IO. */
CR_MUST cr_status cr_saved_model_number_classes(const struct cr_config *config, struct cr_dataset *dataset, bool exact,
                                                const char *consequence);
/* Writes the path of a file `name` in the folder of the model file. CR_ERR_IO. */
CR_MUST cr_status cr_saved_model_path_beside(const char *weights, const char *name, char *path);
/* Networks with several labels per image: reads thresholds.txt next to the weights, the probability of each class, one
 * in a line in the order of classes.txt, above which its label is predicted. Without the file every threshold is 0.5.
 * out: [classes]. CR_ERR_FORMAT: the file has another number of lines, or a line is no number from 0 to 1. */
CR_MUST cr_status cr_saved_model_thresholds(const char *weights, int classes, double *out);
/* Writes this file into a checkpoint folder. */
CR_MUST cr_status cr_saved_model_put_thresholds(const char *folder, int classes, const double *thresholds);

#endif
