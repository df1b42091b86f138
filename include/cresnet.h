/* cresnet.h: classifies images with networks that cresnet trained, pruned or imported. C99; C++ may include it.
 *
 *     cresnet_options options;
 *     cresnet_model  *model;
 *     cresnet_error   error;
 *     cresnet_options_init(&options);
 *     if (cresnet_open("checkpoints/flowers", &options, &model, &error) != CRESNET_OK) puts(error.text);
 *
 *     cresnet_image  image = {pixels, width, height, 0};
 *     int32_t        label[5];
 *     float          probability[5];
 *     cresnet_output output;
 *     cresnet_output_init(&output);
 *     output.top = 5, output.labels = label, output.probabilities = probability;
 *     if (cresnet_classify_images(model, &image, 1, &output, &error) == CRESNET_OK)
 *         printf("%s\n", cresnet_class_name(model, label[0]));
 *     cresnet_close(model);
 *
 * Rules
 *   - A function that can fail returns CRESNET_OK or another value of enum cresnet_status, and writes a sentence to
 *     *error: what is wrong, where, and what to do. `error` may be NULL.
 *   - The library never prints, exits or aborts. Log lines go to options.log. It starts no process, changes no
 *     environment variable and installs no signal handler. Results do not depend on the locale of the process, nor on
 *     rounding mode, floating-point traps and handling of subnormal numbers of the calling thread, which all stay as
 *     they are.
 *   - After an error the model can be used again. After CRESNET_ERROR_DEVICE and CRESNET_ERROR_BROKEN it can only be
 *     closed. After an "internal error", a bug in this library, cresnet_close cannot free the memory of the model; its
 *     threads sleep until the process ends.
 *   - Threads: any number of models may be used at the same time. Calls on one model from several threads are computed
 *     one after the other. Of calls for tensors on the device with at most max_batch images, the next one is given to
 *     the device before the one before has ended, so two callers keep the device busy. cresnet_close must be the last
 *     call on its model. A thread needs 512 KiB of stack.
 *   - A child process cannot use a model that its parent opened before fork(): the calls fail with
 *     CRESNET_ERROR_ARGUMENT, and cresnet_close does nothing. It can open its own; on a GPU only if its parent has not
 *     used one, as CUDA demands.
 *   - Arrays belong to the caller. The library reads and writes them only during the call. Pointers that it returns
 *     belong to the model and are valid until cresnet_close.
 *   - Structures begin with their size, which cresnet_..._init sets, so that later versions can add members at the end.
 *     The version of the interface is in the name of the shared library (libcresnet.so.0.4 of version 0.4.x). */
#ifndef CRESNET_H
#define CRESNET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CRESNET_API __attribute__((visibility("default")))
#else
#define CRESNET_API
#endif

/* ---- errors ---- */

typedef enum cresnet_status {
    CRESNET_OK               = 0,
    CRESNET_ERROR_ARGUMENT   = 1, /* a wrong argument: a null pointer, a size or a value out of range */
    CRESNET_ERROR_CONFIG     = 2, /* an invalid configuration, or one that this device cannot run */
    CRESNET_ERROR_IO         = 3, /* a file cannot be read */
    CRESNET_ERROR_FORMAT     = 4, /* invalid content of a file or an image; weights that do not fit the network */
    CRESNET_ERROR_MEMORY     = 5, /* not enough memory on the host or on the device */
    CRESNET_ERROR_DEVICE     = 6, /* no such device, or the device failed */
    CRESNET_ERROR_NOT_FINITE = 7, /* weights or results are NaN or infinite */
    CRESNET_ERROR_BROKEN     = 8  /* an earlier error has left this model unusable: close it */
} cresnet_status;

typedef struct cresnet_error {
    cresnet_status status;
    char           text[1024]; /* UTF-8, without a newline at the end; "" after CRESNET_OK */
} cresnet_error;

/* The version of the library, such as "0.4.0". */
CRESNET_API const char *cresnet_version(void);
/* A word for a status: "argument", "input/output", ... */
CRESNET_API const char *cresnet_status_name(cresnet_status status);

/* ---- opening ---- */

typedef struct cresnet_model cresnet_model;

typedef enum cresnet_log_level { CRESNET_LOG_WARNING = 1, CRESNET_LOG_INFO = 2 } cresnet_log_level;

typedef struct cresnet_options {
    size_t      size;        /* set by cresnet_options_init */
    const char *device;      /* "auto" (default): a GPU if there is one, else the CPU; "cpu"; "cuda"; "cuda:1" */
    const char *precision;   /* "auto" (default): fp16 on a GPU, fp32 on the CPU; "fp32", "tf32", "fp16", "bf16" */
    int         max_batch;   /* images that the device computes at once, 1 (default) to 65,536. A call may pass more */
    int         threads;     /* threads of the CPU device and of image decoding; 0 (default): one for each core */
    int         features;    /* not 0: cresnet_output.features may be used */
    int         f32_tensors; /* not 0: CRESNET_F32 tensors may be used. Images of bytes are then slower */
    const char *config;      /* INI file of the network, for weights without a config.ini next to them; NULL */
    const char *const *settings; /* further configuration, "section.key=value"; NULL (default) when there is none */
    int                setting_count;
    void (*log)(void *context, cresnet_log_level level, const char *line); /* NULL (default): log lines are dropped */
    void *log_context;
    int (*interrupt)(void *context); /* not 0 ends a download; called about once a second; may be NULL (default) */
    void *interrupt_context;
} cresnet_options;

/* Sets all members to their defaults. */
CRESNET_API void cresnet_options_init(cresnet_options *options);

/* Opens the network at `path`: a run folder (its best checkpoint, with the averaged weights if it has some), one
 * checkpoint (run/last, run/step-1000), a .safetensors, .pth or .pt file, or, with options.config, a name of published
 * weights such as resnet50, which may be downloaded. Reads the weights, chooses kernels and reserves all memory.
 * options may be NULL. *model is NULL after an error. The first call of a process reads CRESNET_CPU, which lowers the
 * vector instructions of the CPU (docs/reference/environment.md); a wrong value is an error of every call.
 * A download ends with CRESNET_ERROR_IO after six hours, when four attempts got less than 1 kB/s for 30 seconds
 * (CRESNET_DOWNLOAD_MAX_TIME and _TIMEOUT change both), and within about a second after options.interrupt, which the
 * thread of the model calls, returned something else than 0. The next call continues it. Nothing else that cresnet_open
 * does waits for another machine, and nothing else can be interrupted. */
CRESNET_API cresnet_status cresnet_open(const char *path, const cresnet_options *options, cresnet_model **model,
                                        cresnet_error *error);
/* Frees the model. NULL is allowed. */
CRESNET_API void cresnet_close(cresnet_model *model);

/* Memory that cresnet_open would reserve with these options, without reserving it. */
typedef struct cresnet_memory {
    uint64_t device_bytes; /* on the device; a GPU's driver and libraries need some 100 to 600 MB in addition */
    uint64_t host_bytes;   /* on the host, for batches */
} cresnet_memory;
CRESNET_API cresnet_status cresnet_memory_needed(const char *path, const cresnet_options *options,
                                                 cresnet_memory *memory, cresnet_error *error);

/* ---- properties ---- */

typedef struct cresnet_info {
    size_t         size;       /* set by the caller to sizeof(cresnet_info) */
    int            classes;    /* length of a vector of logits */
    int            features;   /* length of a vector of pooled features */
    int            image_size; /* height of prepared images in pixels, and their width unless image_width differs */
    int            resize;     /* short side that images are resized to before the centre is cut out; 0: not resized */
    int            max_batch;
    float          mean[3], std[3]; /* f32 tensors hold (byte / 255 - mean) / std, in the order red, green, blue */
    const char    *network;         /* "resnet50" */
    const char    *weights;         /* path of the file or checkpoint of the weights */
    const char    *device;          /* "CPU, 2 threads, oneDNN 3.7.1" */
    const char    *precision;       /* "fp16" */
    cresnet_memory memory;
    int            image_width; /* width of prepared images in pixels */
    int            multi_label; /* not 0: an image has any number of labels, and probabilities are sigmoids */
    int            channels;    /* of images: 1 (grey: mean[0], std[0]), 3 (red, green, blue) or 4 (and alpha) */
    int            bits; /* of a channel: 8; or 16: the samples of images are uint16_t, and their largest 65535 */
    float          mean4, std4; /* of the fourth channel */
    const char    *fit; /* what images show: "crop": the centre; "squash": the whole image, resized to image_size and
                         * image_width; "letterbox": so too, with its shape, in a border of the mean colour */
    const char    *reject_score; /* what cresnet_output.scores are: "logit": the largest logit; "energy": log of the sum
                               * of exp(logit); "distance": minus the cosine distance of the features to the nearest
                               * mean of a class. NULL: cresnet eval --reject has chosen none for these weights */
    double         reject_threshold; /* images with a smaller score are rejected; 0 without a score */
} cresnet_info;
CRESNET_API cresnet_status cresnet_get_info(const cresnet_model *model, cresnet_info *info);
/* Name of a class, or NULL when the label is out of range or the network came without class names. */
CRESNET_API const char *cresnet_class_name(const cresnet_model *model, int label);
/* Networks with several labels per image: the probability above which an image has the label. Training chooses it on
 * the validation images so that F1 is largest; 0.5 without such a choice. -1 for other networks and labels. */
CRESNET_API double cresnet_threshold(const cresnet_model *model, int label);

/* ---- inputs ---- */

/* An image of any size. It is resized and cut as evaluation images are: cresnet_info.fit, resize, image_size. With the
 * setting data.tta=flip (five-crop, ten-crop), results are those of the mean logits of several views of each image;
 * tensors are classified as they are. */
typedef struct cresnet_image {
    const uint8_t *pixels; /* cresnet_info.channels samples each, of .bits bits; rows from top to bottom */
    int            width, height;
    size_t         stride; /* bytes from one row to the next; 0: rows without gaps */
} cresnet_image;

/* The bytes of a JPEG, PNG, WebP, TIFF or BMP file. */
typedef struct cresnet_encoded {
    const void *bytes;
    size_t      count;
} cresnet_encoded;

typedef enum cresnet_tensor_type { CRESNET_U8 = 0, CRESNET_F32 = 1, CRESNET_U16 = 2 } cresnet_tensor_type;
typedef enum cresnet_layout { CRESNET_NHWC = 0, CRESNET_NCHW = 1 } cresnet_layout;

/* Prepared images: cresnet_info.channels channels, image_size rows of image_width pixels, without gaps. */
typedef struct cresnet_tensor {
    const void         *data;
    cresnet_tensor_type type;      /* CRESNET_U8: bytes; CRESNET_U16: samples of 16 bits, if cresnet_info.bits is 16;
                               * CRESNET_F32: normalised values, needs options.f32_tensors */
    cresnet_layout      layout;    /* CRESNET_NCHW: in host memory only */
    int                 count;     /* images */
    int                 on_device; /* not 0: `data` is memory of the model's GPU */
    void *stream; /* on_device: the cudaStream_t whose earlier work writes `data`; NULL: the default one */
} cresnet_tensor;

/* ---- results ---- */

/* Where results are written. Every pointer may be NULL: that result is then not computed. */
typedef struct cresnet_output {
    size_t         size;          /* set by cresnet_output_init */
    int            top;           /* number of classes for labels and probabilities, 1 to cresnet_info.classes */
    int32_t       *labels;        /* [images][top]: the most probable classes, in descending order */
    float         *probabilities; /* [images][top]: their softmax probabilities (multi_label: sigmoids) */
    float         *logits;        /* [images][classes] */
    float         *features;      /* [images][features]: mean over all pixels of the last feature map */
    cresnet_error *image_errors;  /* [images]: see cresnet_classify_encoded */
    /* These two need cresnet_info.reject_score; else the call is CRESNET_ERROR_CONFIG. */
    double  *scores;   /* [images]: how well an image fits the classes; larger is better */
    uint8_t *rejected; /* [images]: 1: the score is less than cresnet_info.reject_threshold, the image is of none of the
                        * classes; 0: it is not */
} cresnet_output;

/* Sets top to 1 and all pointers to NULL. */
CRESNET_API void cresnet_output_init(cresnet_output *output);

/* ---- classification ---- */

CRESNET_API cresnet_status cresnet_classify_images(cresnet_model *model, const cresnet_image *images, int count,
                                                   const cresnet_output *output, cresnet_error *error);
/* Decodes and classifies image files in memory. With output.image_errors, an image that cannot be
 * decoded has its error there and zeros in all results (labels: -1), and the call succeeds. Without it the first such
 * image fails the call. */
CRESNET_API cresnet_status cresnet_classify_encoded(cresnet_model *model, const cresnet_encoded *images, int count,
                                                    const cresnet_output *output, cresnet_error *error);
/* The same for files. A file that cannot be read is an error of its image (CRESNET_ERROR_IO). */
CRESNET_API cresnet_status cresnet_classify_files(cresnet_model *model, const char *const *paths, int count,
                                                  const cresnet_output *output, cresnet_error *error);
CRESNET_API cresnet_status cresnet_classify_tensor(cresnet_model *model, const cresnet_tensor *tensor,
                                                   const cresnet_output *output, cresnet_error *error);
/* The images of several tensors, in order, as if they were one tensor: for prepared images at different addresses, such
 * as those of a queue of requests. All tensors have the same type, and all or none are on the device. A GPU copies the
 * images of a batch with one kernel. */
CRESNET_API cresnet_status cresnet_classify_tensors(cresnet_model *model, const cresnet_tensor *tensors,
                                                    int tensor_count, const cresnet_output *output,
                                                    cresnet_error *error);

/* ---- tensors of other libraries ---- */

/* Classifies prepared images where another library has them, by its DLPack structures: `images` is a DLTensor (CPU,
 * page-locked or CUDA memory) of shape [N, H, W, C], or [N, C, H, W], without gaps; [N, C, H, W] with the strides of
 * N, H, W, C (torch.channels_last) is read in place too. Types as of cresnet_tensor: uint8, uint16 or float32. It is
 * only read, and not freed.
 *
 * *logits is a new DLManagedTensor [N, classes] on the device of the images. Its owner frees it with its deleter, on
 * any thread, also after cresnet_close; each cresnet_logits_retain needs one more call of the deleter. Work on the
 * logits is on `stream`, or has ended when they are freed. The model is freed when its last logits on a GPU are.
 *
 * Images in host memory: the logits are float32, and there when the call returns. Images on the model's GPU: the logits
 * have the type of cresnet_info.precision (tf32: float32). The GPU waits for the earlier work of `stream`, a
 * cudaStream_t (NULL: the default stream), and later work of `stream` waits for the logits. The call returns when the
 * GPU has got the work: change or free the images in work of `stream`, or after cresnet_synchronize. A call that needs
 * new memory for its logits also waits for the earlier work of `stream`: the first calls on a stream, and those after
 * logits that another stream has read. Such logits are not checked for values that are not finite. */
CRESNET_API cresnet_status cresnet_classify_dlpack(cresnet_model *model, const void *images, void *stream,
                                                   void **logits, cresnet_error *error);
/* Adds an owner, whose work on the logits is on `stream` ((void *)-1: any). */
CRESNET_API void cresnet_logits_retain(void *logits, void *stream);
/* Waits until the GPU has done all work of the model. Returns at once on the CPU. */
CRESNET_API cresnet_status cresnet_synchronize(cresnet_model *model, cresnet_error *error);

/* ---- preparation ---- */

/* Decodes and prepares files as cresnet_classify_files does, and does not classify them. Writes `out`
 * [count][image_size][image_width][channels]: the data of a CRESNET_U8 tensor (16 bits: CRESNET_U16) with the layout
 * CRESNET_NHWC. With image_errors
 * [count], a file that cannot be read or decoded has its error there and an image of zeros, and the call succeeds.
 * image_errors may be NULL: the first such file then fails the call. */
CRESNET_API cresnet_status cresnet_prepare_files(cresnet_model *model, const char *const *paths, int count,
                                                 uint8_t *out, cresnet_error *image_errors, cresnet_error *error);

#ifdef __cplusplus
}
#endif

#endif
