/* cli/common/option_table.c: the table of all command-line options, in the order of --help, and the table of the words
 * that options take. */
#include "cli/common/arguments.h"

#include <string.h>

#define ON(name) (1u << CR_CMD_##name)
enum {
    ON_ALL     = (1u << CR_CMD_COUNT) - 1,
    ON_CONFIG  = ON_ALL & ~ON(HELP) & ~ON(CONFIG) & ~ON(EXPORT),
    ON_TRAIN   = ON(TRAIN) | ON(FINETUNE) | ON(SWEEP),
    ON_DEVICES = ON_CONFIG & ~ON(DATA) & ~ON(CHECK),
    /* commands whose programs have the batch size of the configuration, and commands that read images */
    ON_BATCH =
        ON_TRAIN | ON(LR_FIND) | ON(EVAL) | ON(REPORT) | ON(PLAN) | ON(CHECK) | ON(BENCH) | ON(PROFILE) | ON(QUANTIZE),
    ON_WORKERS = ON_TRAIN | ON(LR_FIND) | ON(EVAL) | ON(FEATURES) | ON(REPORT) | ON(BENCH) | ON(DATA) | ON(QUANTIZE) |
                 ON(COMPRESS),
    ON_SEED =
        ON_TRAIN | ON(LR_FIND) | ON(EVAL) | ON(REPORT) | ON(CHECK) | ON(BENCH) | ON(PROFILE) | ON(DATA) | ON(QUANTIZE),
    ON_WEIGHTS = ON(LR_FIND) | ON(EVAL) | ON(PREDICT) | ON(FEATURES) | ON(EXPLAIN) | ON(REPORT) | ON(PRUNE) |
                 ON(EXPORT) | ON(QUANTIZE), /* commands that use trained weights */
    ON_JSON = ON(LR_FIND) | ON(EVAL) | ON(PREDICT) | ON(EXPLAIN) | ON(PLAN) | ON(CHECK) | ON(BENCH) | ON(PROFILE) |
              ON(DATA) | ON(PRUNE) | ON(QUANTIZE),
};

static const struct cr_cli_option options[CR_OPT_COUNT] = {
    [CR_OPT_RESUME]        = {"resume", 0, "auto|PATH", NULL, ON(TRAIN),
                              "resume from the newest checkpoint of the run folder (auto), or from PATH"},
    [CR_OPT_FORCE]         = {"force", 0, NULL, NULL, ON(TRAIN),
                              "resume although the model, the order of the data or the kernels changed"},
    [CR_OPT_REPLACE]       = {"force", 0, NULL, NULL,
                              ON(EVAL) | ON(PREDICT) | ON(FEATURES) | ON(EXPLAIN) | ON(REPORT) | ON(PLAN) | ON(EXPORT) |
                                  ON(DATA),
                              "replace an output file that exists and that cresnet did not write (data: pack, show)"},
    [CR_OPT_START_WEIGHTS] = {"weights", 0, "FILE|NAME|none", NULL, ON(FINETUNE),
                              "weights to start from: a file, a run, a name such as resnet18; none: from scratch"},
    [CR_OPT_MODEL]   = {"model", 0, "NAME", NULL, ON(FINETUNE), "network (default: by device and number of images)"},
    [CR_OPT_MINUTES] = {"minutes", 0, "N", NULL, ON(FINETUNE),
                        "fit image size and epochs to this time (default: by the number of images)"},
    [CR_OPT_JOBS]    = {"jobs", 0, "N", NULL, ON(SWEEP),
                        "runs at once (default: on the CPU as the cores allow, on a GPU 1)"},
    [CR_OPT_DRY_RUN] = {"dry-run", 0, NULL, NULL, ON(SWEEP) | ON(COMPRESS),
                        "check and list what would be done, and do nothing"},
    [CR_OPT_TRAIN_STEPS] = {"steps", 0, "N", "train.steps", ON(TRAIN) | ON(SWEEP),
                            "stop after N steps (schedules still span --epochs)"},
    [CR_OPT_LR_STEPS]    = {"steps", 0, "N", NULL, ON(LR_FIND), "number of steps at each rate (default: 60)"},
    [CR_OPT_MIN_LR]      = {"min-lr", 0, "LR", NULL, ON(LR_FIND), "smallest learning rate (default: 1e-4)"},
    [CR_OPT_MAX_LR]      = {"max-lr", 0, "LR", NULL, ON(LR_FIND), "largest learning rate (default: 10)"},
    [CR_OPT_GPUS]        = {"gpus", 0, "N|all", NULL, ON(TRAIN) | ON(BENCH), "start N processes, one per GPU"},
    [CR_OPT_RANKS]       = {"ranks", 0, "N", NULL, ON(TRAIN) | ON(BENCH) | ON(PLAN),
                            "start N processes; with --device cpu they share the cores (plan: plan one rank of N)"},
    [CR_OPT_SPLIT]       = {"split", 0, "val|train", NULL, ON(EVAL), "split to evaluate (default: val)"},
    [CR_OPT_TTA]         = {"tta", 0, "VIEWS", "data.tta", ON(EVAL) | ON(PREDICT) | ON(FEATURES),
                            "test-time augmentation: flip, five-crop, ten-crop (mean logits of 2, 5, 10 views)"},
    [CR_OPT_PER_CLASS]   = {"per-class", 0, NULL, NULL, ON(EVAL),
                            "also print one line per class, balanced accuracy, macro F1 and calibration error"},
    [CR_OPT_TEMPERATURE] = {"temperature", 0, NULL, NULL, ON(EVAL),
                            "also print the temperature that fits the probabilities to the labels"},
    [CR_OPT_CONFUSION] =
        {"confusion", 0, "FILE", NULL, ON(EVAL),
         "also write the confusion matrix as CSV (rows: labels, columns: predictions); - is standard output"},
    [CR_OPT_PREDICTIONS_CSV] =
        {"csv", 0, "FILE", NULL, ON(EVAL) | ON(PREDICT),
         "also write a table with the classes and probabilities of each image; - is standard output"},
    [CR_OPT_REJECT_RATE] = {"reject", 0, "RATE|auto", NULL, ON(EVAL),
                            "choose and store the score below which images are rejected, as RATE of these (0.05) are; "
                            "auto: by data.outliers"},
    [CR_OPT_REJECT]      = {"reject", 0, NULL, NULL, ON(PREDICT),
                            "also print the score of each image, and whether it is rejected (cresnet eval --reject)"},
    [CR_OPT_TOP]         = {"top", 'k', "N", NULL, ON(PREDICT),
                            "classes to print per image, up to all (default: 5; 1 for folders)"},
    [CR_OPT_CLASS]       = {"class", 0, "NAME|N", NULL, ON(EXPLAIN),
                            "class to explain: its name or its number (default: the predicted class)"},
    [CR_OPT_MAP_CSV]     = {"csv", 0, "FILE", NULL, ON(EXPLAIN),
                            "also write the map as numbers, one line per row of the last stage; - is standard output"},
    [CR_OPT_NO_EVAL] = {"no-eval", 0, NULL, NULL, ON(REPORT), "skip the evaluation: no confusion matrix, no images"},
    [CR_OPT_COMPARE] = {"compare", 0, NULL, NULL, ON(REPORT), "show 2 to 8 RUNs on one page (default: compare.html)"},
    [CR_OPT_LAST]   = {"last", 0, NULL, NULL, ON_WEIGHTS, "use the newest checkpoint of a RUN instead of the best one"},
    [CR_OPT_STEP]   = {"step", 0, "N", NULL, ON_WEIGHTS, "use the checkpoint step-N of a RUN instead of the best one"},
    [CR_OPT_EMA]    = {"ema", 0, NULL, NULL, ON_WEIGHTS,
                       "use the moving averages of a RUN ([ema]); the default for a RUN that has them"},
    [CR_OPT_NO_EMA] = {"no-ema", 0, NULL, NULL, ON_WEIGHTS, "use the weights of a RUN instead of its moving averages"},
    [CR_OPT_PROGRAM]   = {"program", 0, NULL, NULL, ON(PLAN), "print the compiled program, one line per op"},
    [CR_OPT_AFTER]     = {"after", 0, "PASS", NULL, ON(PLAN),
                          "print the program after a pass: grad, fuse, select, insert_waits, plan"},
    [CR_OPT_CHOICES]   = {"choices", 0, NULL, NULL, ON(PLAN),
                          "print the chosen fusions and the unfused cost; with --json one line per convolution"},
    [CR_OPT_LIFETIMES] = {"lifetimes", 0, NULL, NULL, ON(PLAN),
                          "print where each large tensor is between two uses (device, host, recomputed), and why"},
    [CR_OPT_WHICH]     = {"which", 0, "PROGRAM", NULL, ON(PLAN) | ON(PROFILE),
                          "step (default) or eval; plan: also micro_first, micro, micro_last"},
    [CR_OPT_CSV]       = {"csv", 0, NULL, NULL, ON(PLAN), "print the pool as CSV (id,lower,upper,size,offset)"},
    [CR_OPT_SVG]    = {"svg", 0, "FILE", NULL, ON(PLAN), "also draw the memory pool: ops to the right, addresses up"},
    [CR_OPT_TARGET] = {"target", 0, "GPU", NULL, ON(PLAN),
                       "plan for a GPU that this machine does not have: h200, a100, l4, rtx4090, ..."},
    [CR_OPT_KERNEL_TIMES] =
        {"kernel-times", 0, "FILE", NULL, ON(PLAN),
         "with --target: kernel times measured on such a GPU (its ~/.cache/cresnet/kernel-times-*.txt)"},
    [CR_OPT_DEVICES]       = {"devices", 0, "LIST", NULL, ON(CHECK),
                              "devices to check, e.g. cpu or cpu,cuda (default: all that are available)"},
    [CR_OPT_BENCH_STEPS]   = {"steps", 0, "N", NULL, ON(BENCH) | ON(PROFILE), "number of timed steps (default: 20)"},
    [CR_OPT_ORDER]         = {"order", 0, "ORDER", NULL, ON(PROFILE),
                              "order of the lines: time (slowest op first, default) or program (execution order)"},
    [CR_OPT_TRAINER_SPEED] = {"trainer-speed", 0, "N", NULL, ON(BENCH),
                              "data: also print how long a trainer of N images/s would wait for data"},
    [CR_OPT_RAW]           = {"raw", 0, "SIZE", NULL, ON(DATA),
                              "pack: store decoded pixels with the short side resized to SIZE, instead of files"},
    [CR_OPT_JPEG]          = {"jpeg", 0, "SIZE[,QUALITY]", NULL, ON(DATA),
                              "pack: store JPEGs with the short side resized to SIZE (quality: 90), instead of files"},
    [CR_OPT_SPARSITY] = {"sparsity", 0, "S", "prune.sparsity", ON(PRUNE), "fraction of the weights to prune, e.g. 0.9"},
    [CR_OPT_SCOPE]    = {"scope", 0, "SCOPE", "prune.scope", ON(PRUNE),
                         "global, uniform or erk: how the sparsity is distributed over the layers"},
    [CR_OPT_PATTERN]  = {"pattern", 0, "P", NULL, ON(PRUNE) | ON(COMPRESS),
                         "unstructured, 2:4, block, channel, or channels (a smaller network); with a target: auto or a "
                          "list"},
    [CR_OPT_BUDGET]   = {"budget", 0, "FILE.csv", "prune.budget", ON(PRUNE), "file with the sparsity of each layer"},
    [CR_OPT_EXEMPT]   = {"exempt", 0, "LAYERS", "prune.exempt", ON(PRUNE) | ON(COMPRESS),
                         "layers that stay dense (auto: conv1,fc; none with a budget)"},
    [CR_OPT_TARGET_MS]   = {"target-ms", 0, "MS", NULL, ON(PRUNE),
                            "choose widths and sparsities so that evaluating one batch takes at most MS milliseconds"},
    [CR_OPT_SPEEDUP]     = {"speedup", 0, "X", NULL, ON(PRUNE) | ON(COMPRESS),
                            "choose widths and sparsities so that evaluation is X times as fast, e.g. 2"},
    [CR_OPT_PRUNE_BATCH] = {"batch", 'b', "N", "train.eval_batch", ON(PRUNE) | ON(COMPRESS),
                            "number of images of the batch that is timed"},
    [CR_OPT_PRUNE_FLOPS] = {"flops", 0, "X", NULL, ON(PRUNE),
                            "with --pattern channels: X times fewer multiply-adds, e.g. 2"},
    [CR_OPT_IMPORTANCE] =
        {"importance", 0, "I", "prune.importance", ON(PRUNE) | ON(COMPRESS),
         "what to keep: l2 (norm of weights, the default), taylor (gradients), or for channels bn (BN scale)"},
    [CR_OPT_MULTIPLE]     = {"multiple", 0, "N", "prune.multiple", ON(PRUNE) | ON(COMPRESS),
                             "channels: numbers of channels are multiples of N (auto: 8, or 64 for a GPU)"},
    [CR_OPT_RECALIBRATE]  = {"recalibrate", 0, "N", NULL, ON(PRUNE),
                             "compute BN statistics again from N training batches after pruning"},
    [CR_OPT_KEEP_SHAPE]   = {"keep-shape", 0, NULL, NULL, ON(PRUNE),
                             "channels: set removed channels to 0 instead; training keeps them at 0"},
    [CR_OPT_QUANT_IMAGES] = {"images", 0, "N", "quant.images", ON(QUANTIZE), "training images to calibrate with (512)"},
    [CR_OPT_QUANT_METHOD] = {"method", 0, "M", "quant.method", ON(QUANTIZE),
                             "how scales are chosen: entropy (default) or max"},
    [CR_OPT_REDUCE_RANGE] = {"reduce-range", 0, NULL, "quant.reduce_range", ON(QUANTIZE),
                             "weights of 7 bits: for ONNX files on x86 processors without VNNI"},
    [CR_OPT_MAX_DROP]     = {"max-drop", 0, "POINTS", NULL, ON(QUANTIZE) | ON(COMPRESS),
                             "largest drop of top-1 in points, e.g. 0.3: keep layers in floating point (compress: try "
                                 "smaller speedups)"},
    [CR_OPT_INT8]         = {"int8", 0, NULL, NULL, ON(COMPRESS), "quantise the result; the speedup is that over int8"},
    [CR_OPT_EXPORT_FILE]  = {"output", 'o', "FILE", NULL, ON(EXPORT) | ON(REPORT),
                             "file to write; - is standard output (report: RUN/report.html by default)"},
    [CR_OPT_OVERLAY]      = {"output", 'o', "FILE.png", NULL, ON(EXPLAIN) | ON(DATA),
                             "image to write; - is standard output (data: show)"},
    [CR_OPT_ARRAYS]       = {"output", 'o', "FILE.npy", NULL, ON(FEATURES),
                             "array of features to write; the logits go to FILE.logits.npy, the names to FILE.csv"},
    [CR_OPT_ONNX] =
        {"onnx", 0, "FILE", NULL, ON(EXPORT),
         "write the network with its weights as ONNX (opset 17), for other runtimes; the same as -o FILE.onnx"},
    [CR_OPT_FOLD]    = {"fold", 0, NULL, NULL, ON(EXPORT),
                        "onnx: fold batch normalisation into the convolutions (inference only)"},
    [CR_OPT_PREPARE] = {"preprocess", 0, NULL, NULL, ON(EXPORT),
                        "onnx: the input is images of bytes [N,H,W,3]; the network's graph resizes and normalises"},
    [CR_OPT_DYNAMIC] = {"dynamic", 0, NULL, NULL, ON(EXPORT),
                        "onnx: images of any height and width (else of those of evaluations); N is always free"},
    [CR_OPT_JSON]    = {"json", 0, NULL, NULL, ON_JSON,
                        "print one JSON line (predict: one per image; profile: one per op) on standard output"},
    [CR_OPT_DEVICE]  = {"device", 0, "D", "train.device", ON_DEVICES, "auto, cpu or cuda"},
    [CR_OPT_WEIGHTS] = {"weights", 0, "FILE", "model.weights",
                        (ON_CONFIG & ~ON(DATA) & ~ON(FINETUNE) & ~ON(COMPRESS)) | ON(EXPORT),
                        "weights to load: safetensors or PyTorch file, checkpoint folder, or a name such as resnet50"},
    [CR_OPT_OUTPUT]  = {"output", 'o', "DIR", "train.output", ON_TRAIN | ON(PRUNE) | ON(QUANTIZE) | ON(COMPRESS),
                        "run folder (sweep: the folder that contains the run folders)"},
    [CR_OPT_BATCH]   = {"batch", 'b', "N", "train.batch", ON_BATCH, "batch size per GPU"},
    [CR_OPT_WORKERS] = {"workers", 'j', "N", "data.workers", ON_WORKERS, "threads that load images"},
    [CR_OPT_THREADS] = {"threads", 0, "N", "train.threads", ON_CONFIG & ~ON(DATA), "CPU threads that compute"},
    [CR_OPT_EPOCHS]  = {"epochs", 0, "N", "train.epochs", ON_TRAIN | ON(COMPRESS),
                        "length of the run and of its schedules"},
    [CR_OPT_LR]      = {"lr", 0, "X", "optim.lr", ON_TRAIN | ON(CHECK) | ON(COMPRESS), "learning rate after warm-up"},
    [CR_OPT_SEED]    = {"seed", 0, "N", "train.seed", ON_SEED, "seed of all random numbers"},
    [CR_OPT_SET]     = {"set", 0, "SECTION.KEY=VALUE", NULL, ON_CONFIG | ON(EXPORT),
                        "set any configuration key; also SECTION.KEY=VALUE, --SECTION.KEY=VALUE"},
    [CR_OPT_QUIET]   = {"quiet", 'q', NULL, NULL, ON_ALL, "print no progress, only results, warnings and errors"},
    [CR_OPT_VERSION] = {"version", 'V', NULL, NULL, ON_ALL, "print build options, library versions and devices"},
    [CR_OPT_HELP]    = {"help", 'h', NULL, NULL, ON_ALL, "print this text"},
};

const struct cr_cli_option *cr_cli_option(enum cr_option_id id) {
    return &options[id];
}

bool cr_cli_option_belongs(enum cr_option_id id, enum cr_command_id command) {
    return options[id].commands >> command & 1;
}

/* ---- words ---- */

/* The first word is the default of an option that has one. Words of the options that stand for a configuration key are
 * in config/config.def. */
static const struct {
    enum cr_command_id command;
    enum cr_option_id  option;
    const char        *words;
} option_words[] = {
    {CR_CMD_TRAIN, CR_OPT_RESUME, "auto"},
    {CR_CMD_TRAIN, CR_OPT_GPUS, "all"},
    {CR_CMD_BENCH, CR_OPT_GPUS, "all"},
    {CR_CMD_PROFILE, CR_OPT_WHICH, "step eval"},
    {CR_CMD_PROFILE, CR_OPT_ORDER, "time program"},
    {CR_CMD_PLAN, CR_OPT_WHICH, "step micro_first micro micro_last eval"},
    {CR_CMD_PLAN, CR_OPT_AFTER, "plan insert_waits select fuse grad"},
    {CR_CMD_EVAL, CR_OPT_SPLIT, "val train"},
    {CR_CMD_CHECK, CR_OPT_DEVICES, "cpu cuda"},
    {CR_CMD_PRUNE, CR_OPT_PATTERN, "auto channels 2:4 block unstructured channel"},
    {CR_CMD_COMPRESS, CR_OPT_PATTERN, "auto channels 2:4 block unstructured"},
};

const char *cr_option_words(enum cr_command_id command, enum cr_option_id id) {
    for (size_t i = 0; i < CR_COUNT(option_words); i++)
        if (option_words[i].command == command && option_words[i].option == id) return option_words[i].words;
    return NULL;
}

int cr_word_index(const char *words, const char *text, size_t length) {
    for (int index = 0; *words; index++) {
        const size_t one = strcspn(words, " ");
        if (one == length && strncmp(words, text, length) == 0) return index;
        words += one + (words[one] == ' ');
    }
    return -1;
}

void cr_words_list(const char *words, struct cr_text *out) {
    while (*words) {
        const size_t one = strcspn(words, " ");
        cr_text_add(out, "%.*s%s", (int)one, words, words[one] ? ", " : "");
        words += one + (words[one] == ' ');
    }
}
