/* data/data.h: datasets, preprocessing and augmentation, and a data loader that fills batches with worker threads.
 *
 * Invariants
 *   - A batch is in NHWC order, with the channels and bits of [data] channels and bits. Normalisation is an op of the
 *     program; the same op shifts and mirrors training images as their boxes describe.
 *   - Every random choice (order, crop, flip) is a function of (seed, epoch, sample). The number of workers, the
 *     prefetch depth and the batch at which a run resumes do not change a byte. With balanced sampling and with
 *     repeats, choices are a function of the place in the order of the epoch too, because a sample occurs several
 *     times.
 *   - A training batch is always full. An evaluation batch is padded with black images of label -1, which no metric
 *     counts. An evaluation delivers every sample exactly once.
 *   - Magic bytes select the decoder, not file names. Every image is converted to the format of its dataset: colours
 *     become grey as by PIL's convert("L"), a missing alpha is opaque, 8 bits become 16 by a factor of 257, and 16
 *     become 8 by leaving out the low byte.
 *   - This header does not depend on programs and devices. */
#ifndef CR_DATA_H
#define CR_DATA_H

#include "config/config.h"

enum cr_split { CR_SPLIT_TRAIN, CR_SPLIT_VAL };

/* ---- images ---- */

/* The channels of a pixel, and the bits of each. A sample of 16 bits is a uint16_t in the byte order of the host. */
enum cr_pixel_format { CR_RGB8, CR_GREY8, CR_RGBA8, CR_RGB16, CR_GREY16, CR_RGBA16 };
static inline int cr_format_channels(enum cr_pixel_format format) {
    return format == CR_GREY8 || format == CR_GREY16 ? 1 : format == CR_RGBA8 || format == CR_RGBA16 ? 4 : 3;
}
static inline int cr_format_bits(enum cr_pixel_format format) {
    return format >= CR_RGB16 ? 16 : 8;
}
static inline size_t cr_format_bytes(enum cr_pixel_format format) { /* of a pixel */
    return (size_t)(cr_format_channels(format) * cr_format_bits(format) / 8);
}
enum cr_pixel_format cr_format_of(const struct cr_config *config); /* by [data] channels and bits */

struct cr_image {
    int                  width, height;
    uint8_t             *rgb; /* [height][width] pixels of this format, owned; cr_image_free */
    enum cr_pixel_format format;
};
void cr_image_free(struct cr_image *image);

enum { CR_IMAGE_SIDE_MAX = 32768, CR_IMAGE_PIXELS_MAX = 1 << 28 };

/* The kinds of images that can be read, and the endings of their names, for messages. */
#define CR_IMAGE_KINDS "JPEG, PNG, WebP, TIFF and BMP"
#define CR_IMAGE_ENDINGS "jpg, jpeg, png, webp, tif, tiff, bmp"

/* Reads an image file as [data] channels, bits, exif and max_pixels say; the caller frees `out` with
 * cr_image_free. CR_ERR_FORMAT: the file is no such image, is damaged, or exceeds a limit of cr_image_admit
 * (data/decode.h). CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_read(const char *path, const struct cr_config *config, struct cr_image *out);
/* Replaces the pixels by RGB8, for pages and images that people look at: alpha is left out. CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_to_rgb(struct cr_image *image);
/* Writes the pixels rgb [height][width][3] to a PNG file. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_write_png(const char *path, const uint8_t *rgb, int width, int height);
/* Appends the bytes of such a file to `out`. It begins with the text chunk "Software", whose text is `software`,
 * unless that is NULL. CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_encode_png(const char *software, const uint8_t *rgb, int width, int height,
                                      struct cr_text *out);

/* Resizes the box (x, y, w, h; real numbers, inside the image) of src to out_w x out_h with PIL's antialiased
 * bilinear filter (the support scales with the reduction; 8-bit fixed-point passes, horizontal first). Each channel is
 * bitwise identical to PIL's result for this channel alone, of mode L, or I;16 for 16 bits. dst is [out_h][out_w] of
 * the format of src; `flip` mirrors it left to right. The only error is CR_ERR_MEMORY. */
CR_MUST cr_status cr_image_resize(const struct cr_image *src, double x, double y, double w, double h, uint8_t *dst,
                                  int out_w, int out_h, bool flip);

/* Does the name end as those of images do (jpg, jpeg, jpe, jfif, png, webp, tif, tiff, bmp)? */
bool cr_is_image_name(const char *name);
/* Lists the image files of a folder and of all folders below it, sorted by bytes. The ending of the name decides;
 * hidden files are skipped. Links are followed, and a folder that contains itself is entered once. The names and the
 * list are allocated in the arena. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_folder_images(const char *folder, struct cr_arena *arena, const char ***out, int64_t *count);

/* ---- preparation of one sample ---- */

struct cr_prepare {                          /* built by cr_prepare_from_config */
    enum cr_pixel_format format;             /* of images and of the result */
    int                  size;               /* height of the result in pixels */
    int                  width;              /* its width; 0: the height */
    enum cr_fit          fit;                /* the centre of an image, or the whole image */
    uint8_t              border[8];          /* a pixel: the colour around an image that does not fill the result */
    int                  eval_resize;        /* short side in pixels before the centre crop; 0: no resize */
    enum cr_tta          tta;                /* evaluation: which views of an image there are, and */
    int                  view;               /* the view to prepare, from 0 */
    enum cr_crop         crop;               /* training only; never AUTO */
    int                  pad;                /* pixels of the border of CR_CROP_PAD */
    enum cr_pad_mode     pad_mode;           /* and what they show */
    double               scale[2], ratio[2]; /* ranges of area fraction and aspect of CR_CROP_RANDOM_RESIZED */
    double               hflip;              /* probability of a horizontal flip */
    enum cr_flip         flip;               /* whether each epoch draws it, or the first one only */
    enum cr_augment      augment;            /* training: policy of operations on pixels */
    int                  rand_ops, rand_magnitude; /* of CR_AUGMENT_RAND */
    double               rand_prob;
    uint8_t              fill[3];   /* colour of pixels that such an operation moves in */
    double               jitter[4]; /* training: range of brightness, contrast, saturation, hue; 0 disables one */
    bool                 mixes;     /* training: images are erased or mixed, as the next six members say */
    double               erase, erase_scale[2], mixup, cutmix, mix_prob, cutmix_prob;
};
/* Fills `out` with the sizes, crop and augmentation of this configuration and split; `auto` and 0 are replaced by
 * their values. CR_ERR_CONFIG: a range is invalid. */
CR_MUST cr_status cr_prepare_from_config(const struct cr_config *config, enum cr_split split, struct cr_prepare *out);
/* The same for training images of another size than [data] image_size, in pixels. */
CR_MUST cr_status cr_prepare_of_size(const struct cr_config *config, int size, struct cr_prepare *out);
int               cr_prepare_width(const struct cr_prepare *prep); /* in pixels */
size_t            cr_prepare_bytes(const struct cr_prepare *prep); /* of a prepared image, [size][width] */
/* Writes "224" or "192x320". */
void cr_prepare_size_text(const struct cr_prepare *prep, char text[32]);
/* Number of views of an evaluation image: 1, 2, 5 or 10. */
int cr_prepare_views(enum cr_tta tta);
/* CR_ERR_CONFIG, about the key `key` (data.tta or train.final_tta): the images are too small for the views of `tta`. */
CR_MUST cr_status cr_prepare_check_views(const struct cr_config *config, const char *key, enum cr_tta tta,
                                         const struct cr_prepare *prep);
/* Fills one entry of cr_batch.mixes: how the device erases and mixes the image at index `at` of a batch of `batch`
 * images, with the random numbers of (seed, epoch, sample). The partner of image `at` is its neighbour at ^ 1 (timm
 * counts from the end of the batch; the order is random in both). A batch that several ranks divide is therefore
 * mixed as one rank would mix it, if every rank has an even number of images. The last image of an odd batch uses
 * the image before it. */
void cr_prepare_mix(const struct cr_prepare *prep, uint64_t seed, int64_t epoch, int64_t sample, int64_t at,
                    int64_t batch, int32_t *mix);
/* Prepares an evaluation image: resizes the short side to eval_resize and crops the centre with torchvision's
 * rounding; with prep->tta, view prep->view of torchvision's FiveCrop or TenCrop, or the mirrored image. out is
 * [size][width]. A rectangle is cut from an image that covers a rectangle of this shape and height eval_resize.
 * squash resizes the whole image to the result; letterbox does so with the image's shape, and centres it (both sides
 * are rounded down). */
CR_MUST cr_status cr_prepare_eval(const struct cr_prepare *prep, const struct cr_image *image, uint8_t *out);
/* The part x, y, width, height of an image of width x height pixels that cr_prepare_eval shows, in pixels of the image.
 * It reaches beyond an image that is padded. */
void cr_prepare_eval_box(const struct cr_prepare *prep, int width, int height, double box[4]);

/* ---- datasets ---- */

/* Read-only once open: any number of threads may call cr_dataset_get. The members from `ops` on are for data/ only. */
struct cr_dataset {
    int64_t      count; /* of the images */
    int          classes;
    const char **class_names;  /* [classes] in the arena, until it is renumbered */
    int64_t     *class_counts; /* [classes] in the arena: the images of each class; NULL when unknown (synthetic) */
    uint64_t     fingerprint;  /* of names, labels and sizes: a resumed run refuses another dataset */

    const struct cr_dataset_ops *ops; /* NULL until the function of the format has set it */
    int32_t *renumbered; /* in the arena: the label of each class of the format, which `label` returns; NULL: the same
                            (cr_dataset_renumber) */
    /* data/source/edits.c: the sample of the format behind each sample, [count], and the label of each sample of the
     * format, both in the arena; NULL: as the format has them. The functions of `ops` take samples of the format. */
    int64_t *kept;
    int32_t *edited_labels;
    /* With data.multi_label: the labels of each sample, [count][label_words] in the arena, as graph/loss.h describes
     * them; the number that `label` returns is then a hash of these. Else NULL and 0. */
    int32_t             *label_rows;
    int                  label_words;
    bool                 exif;       /* the value of cr_stored.exif */
    enum cr_pixel_format format;     /* of its images: the value of cr_stored.format */
    int64_t              max_pixels; /* the value of cr_stored.max_pixels */
    bool                 one_file;   /* one file has all samples, or each file has many */
    bool                 generated;  /* cresnet draws the images; their files depend on the version of zlib */
    _Atomic uint8_t     *logged;     /* in the arena, one bit per sample: the log has named its corrupt image */
    struct cr_arena      arena;
    void                *state;
};

/* Opens a split of the dataset that [data] describes; the caller closes it. For the kind `shapes`, the images are
 * first written to data.root if they are not there (an empty root: a folder in the user's cache). Messages name
 * file, folder and key. CR_ERR_CONFIG, CR_ERR_FORMAT, CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_open(const struct cr_config *config, enum cr_split split, struct cr_dataset **out);
void              cr_dataset_close(struct cr_dataset *dataset); /* NULL is allowed */
/* Opens image files without labels: files[count], at least one, below the folder `root` or absolute. All have the label
 * 0, of one class without a name. CR_ERR_CONFIG, CR_ERR_FORMAT, CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_open_files(const struct cr_config *config, const char *root, const char *const *files,
                                        int64_t count, struct cr_dataset **out);
/* Keeps at most `most` images of each class, spread evenly over its images. CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_thin(struct cr_dataset *dataset, int64_t most);
/* True if a folder, or the folder train in it, has archives (*.tar) and no folders, which might be classes. */
bool cr_dataset_is_of_archives(const char *folder);
/* Whether cr_dataset_open logs warnings about skipped files and contradicting labels (default: yes). Of the ranks of
 * one host, one logs them. */
void cr_dataset_warnings(bool on);
int  cr_dataset_class_of(const struct cr_dataset *dataset, const char *name); /* its label, or -1 */
/* Gives class k of the dataset the label to[k], in the names, the counts and the labels of all samples: `to` [classes]
 * has each label once. The order of the samples and the fingerprint stay. Before any loader is opened.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_renumber(struct cr_dataset *dataset, const int *to);
/* A test set may lack classes of a network, names[classes]: if the network has all classes of the dataset, the missing
 * ones are added to it, without images, and a line says so. Otherwise nothing changes. CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_add_missing_classes(struct cr_dataset *dataset, const char *const *names, int classes);
/* The label of the class that had this label when the dataset was opened, as in the list of `cresnet data stat`. */
int cr_dataset_renumbered(const struct cr_dataset *dataset, int first_label);
/* Compares the classes of a dataset with those of a trained network, names[classes]. The same names in another order:
 * renumbers the dataset as the network is, and says so. Other names: a warning that ends with `consequence` (NULL: no
 * warning); the labels stay. `network` names the owner of the names in messages. CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_adopt_classes(struct cr_dataset *dataset, const char *const *names, int classes,
                                           const char *network, const char *consequence);
/* With data.multi_label the labels of a sample: their number, then one bit for each class, cr_dataset_label_words words
 * in all (graph/loss.h); borrowed. NULL, and 1 word, when each sample has one label. */
const int32_t *cr_dataset_labels(const struct cr_dataset *dataset, int64_t sample);
int            cr_dataset_label_words(const struct cr_dataset *dataset);
/* True if these labels, which begin with their number, have the class. */
static inline bool cr_dataset_row_has(const int32_t *labels, int class_index) {
    return (uint32_t)labels[1 + class_index / 32] >> (class_index % 32) & 1;
}
/* data/class_weights.c: resolves [loss] class_weights for the training set `dataset` (NULL: all weights are 1). *out
 * [classes] is allocated, or NULL without this key. CR_ERR_CONFIG, CR_ERR_FORMAT, CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_class_weights(const struct cr_config *config, const struct cr_dataset *dataset,
                                           int classes, float **out);
/* Writes the name of a sample for messages into buf: a path, or "data_batch_2.bin[117]". */
void cr_dataset_sample_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size);
/* Reads a sample: pixels (the caller frees them with cr_image_free) and label. CR_ERR_FORMAT or CR_ERR_IO: the
 * sample is corrupt. */
CR_MUST cr_status cr_dataset_get(const struct cr_dataset *dataset, int64_t sample, struct cr_image *out,
                                 int32_t *label);
/* Adds a one-line description for the start of a run: "5000 images, 10 classes, 480-520 per class". */
void cr_dataset_describe(const struct cr_dataset *dataset, struct cr_text *out);
/* Writes a hash of the contents to *out: up to 64 images, evenly spread over the split, of each its size and its first
 * 64 KiB. Reads files in milliseconds. 0: unknown, because an image cannot be read (data.corrupt decides whether that
 * ends the run), or because the images are a function of the configuration (shapes, synthetic).
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_contents(const struct cr_dataset *dataset, uint64_t *out);

/* CR_ERR_FORMAT when a class has images and none of them can be read, with the error of one of them. Usually reads one
 * image of each class, of a JPEG only the header: damage in its pixels is found when it is used. Checks nothing when
 * images have several labels. CR_ERR_MEMORY. */
CR_MUST cr_status cr_dataset_check_readable(const struct cr_dataset *dataset);
/* Is one of a few images, evenly spread over the split, a JPEG? */
bool cr_dataset_has_jpegs(const struct cr_dataset *dataset);

/* Writes the shapes dataset into `root`: ten classes of drawn figures as PNG files of 32x32 pixels, in train/ and
 * val/ by class. The files depend on nothing but the counts and are the same on every machine. Does nothing if the
 * dataset is complete. The files are written to a temporary folder next to `root`, which is then renamed. */
CR_MUST cr_status cr_shapes_make(const char *root, int64_t train_images, int64_t val_images);

/* ---- loader ---- */

/* Where the images of batches are. A device gives page-locked memory and copies from it after a batch was released. */
struct cr_loader_memory {
    void *owner;
    cr_status (*reserve)(void *owner, size_t bytes, void **out); /* NULL: ordinary memory. CR_ERR_MEMORY */
    void (*release)(void *owner, void *memory);
};
/* With memory of a device: so many released batches keep their memory, because copies from them may still run. */
enum { CR_LOADER_IN_FLIGHT = 2 };

struct cr_loader_options {
    enum cr_split     split;
    struct cr_prepare prepare;
    int64_t           batch; /* images of this rank per batch */
    uint64_t          seed;
    int               workers;       /* threads; 0: cr_loader_next prepares the samples itself */
    int               prefetch;      /* batches that are prepared ahead, at least 1 */
    bool              drop_last;     /* training: leave out the incomplete last batch */
    bool              corrupt_fatal; /* a corrupt image is an error */
    bool              balanced;      /* training: every class occurs equally often in an epoch */
    int               repeats;       /* training: images per epoch that show one sample; 0 and 1: each sample once */
    /* The processes of a run divide each batch, see below: number of this process, and of all; ranks 0: one process. */
    int rank, ranks;
    /* Training on images of several sizes: prepare_sizes[k] from epoch sizes->epoch[k] on, in place of `prepare`. NULL:
     * one size. Only cr_loader_open reads them. */
    const struct cr_size_schedule *sizes;
    const struct cr_prepare       *prepare_sizes;
    int64_t                        epoch, first_batch; /* where to start (training); evaluation starts at 0, 0 */
    struct cr_loader_memory        memory;
    /* Training: a device decodes JPEG images, and each batch has room for so many bytes of their data. 0: no device. */
    size_t jpeg_bytes;
    /* The device decodes only what the workers cannot decode in time; else, all that it can. */
    bool jpeg_auto;
};

struct cr_batch {
    const uint8_t *images; /* [batch][size][width] pixels of prepare.format; of the size of the epoch */
    /* [batch][cr_dataset_label_words]; the first is -1: padding, or a corrupt image in evaluation */
    const int32_t *labels;
    const int32_t *boxes; /* [batch][4], how the device shifts and mirrors each image; NULL in evaluation */
    const int32_t *mixes; /* [batch][CR_MIX_NUMBERS], indexed by enum cr_mix; NULL when nothing is erased or mixed */
    /* Samples of the dataset in this batch, corrupt ones included; padding follows them. With prepare.tta: views of
     * samples, those of one sample in a row. */
    int64_t count;
    int64_t epoch, index;
    bool    page_locked; /* the images are in the memory of options.memory */
    /* The device has to decode the image of each place of scans [batch] that has bytes (formats/jpeg_scan.h): it is not
     * in `images`. NULL: there are none. jpeg_data: their data, jpeg_bytes bytes in the memory of options.memory. */
    const struct cr_jpeg_scan *scans;
    const uint8_t             *jpeg_data;
    size_t                     jpeg_bytes;
    int                        width, height; /* of the images, in pixels */
    int                        slot;          /* for cr_loader_release only */
};

/* Ranks: the batches of all ranks are cut from one order of samples. Global batch g has ranks * batch places,
 * [g*ranks*batch, (g+1)*ranks*batch) of the order of the epoch, and rank r fills the r-th `batch` of them. The same
 * size of the global batch therefore gives the same batches for any number of ranks. In evaluation, exactly one rank
 * delivers each image, and a rank whose places lie after the last image has fewer batches. */
struct cr_loader;
/* What the configuration decides for every loader: seed, workers and prefetch, with this split, batch and preparation.
 * The caller sets what its order of images needs in addition. */
struct cr_loader_options cr_loader_options_from(const struct cr_config *config, enum cr_split split,
                                                const struct cr_prepare *prepare, int64_t batch);
/* The same for the order of images in which a run trains: with drop_last, corrupt_fatal, balanced and repeats. */
struct cr_loader_options cr_loader_options_of_training(const struct cr_config *config, const struct cr_prepare *prepare,
                                                       int64_t batch);
/* Number of batches per epoch and rank: floor(count/(batch*ranks)) when training with drop_last, else the ceiling. */
int64_t cr_loader_batches(const struct cr_dataset *dataset, const struct cr_loader_options *options);
/* Opens a loader and starts its workers; the caller closes it with cr_loader_close. The dataset must outlive the
 * loader. CR_ERR_CONFIG: the dataset is empty or does not fit the options. CR_ERR_MEMORY. */
CR_MUST cr_status cr_loader_open(const struct cr_dataset *dataset, const struct cr_loader_options *options,
                                 struct cr_loader **out);
/* Stops the workers, also in the middle of a batch, and frees everything. NULL is allowed. */
void cr_loader_close(struct cr_loader *loader);
/* Returns the next batch and waits until it is ready. Training continues into the next epoch without end; evaluation
 * returns batch.count = 0 after the last batch. A corrupt image: with corrupt_fatal the call fails with an error
 * that names the image. Otherwise, in training the next readable sample of the order takes its place (in addition to
 * its own place), and in evaluation its label is -1. Batches before an error are delivered; after an error every
 * call fails. A batch is valid until cr_loader_release, and up to `prefetch` batches may be held at a time (1
 * without workers). Memory is allocated only for the first batch and for images larger than all before. */
CR_MUST cr_status cr_loader_next(struct cr_loader *loader, struct cr_batch *batch);
void              cr_loader_release(struct cr_loader *loader, struct cr_batch *batch);
/* To be called before a batch is used whose scans a device has decoded: decodes the images of the places whose
 * failed[place] is set, as the workers do, and clears the scans of these places. Errors as of cr_loader_next. */
CR_MUST cr_status cr_loader_decode_failed(struct cr_loader *loader, struct cr_batch *batch, const uint8_t *failed);
/* Call when no copy from a released batch is running any more, before batches are released without having been copied:
 * the memory of all released batches may be filled again. */
void    cr_loader_settle(struct cr_loader *loader);
int64_t cr_loader_wait_ns(const struct cr_loader *loader); /* time spent in cr_loader_next so far */
int64_t cr_loader_corrupt(const struct cr_loader *loader); /* number of different corrupt images so far */

struct cr_load_counts { /* sums over all workers since the loader was opened */
    int64_t images;
    int64_t jpegs;      /* images that are JPEG files */
    int64_t device;     /* images that a device decodes */
    int64_t verified;   /* images known to be sound, so that a JPEG is decoded only as far as its crop needs */
    int64_t file_bytes; /* encoded bytes, or bytes of pixels where the dataset stores pixels */
    int64_t fetch_ns, decode_ns, resize_ns, other_ns; /* other: random boxes, copies */
    int64_t cpu_ns;                                   /* CPU time of the workers */
};
void cr_loader_counts(const struct cr_loader *loader, struct cr_load_counts *out);
/* now - before */
struct cr_load_counts cr_load_counts_since(const struct cr_load_counts *now, const struct cr_load_counts *before);

#endif
