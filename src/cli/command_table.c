/* cli/command_table.c: the table of commands, cresnet help, --version. */
#include "cli/command.h"
#include "config/keys.h"
#include "device/device.h"

#include <png.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h> /* needs stdio.h before it */
#ifdef CR_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

/* ---- the commands ---- */

#define RUN_NOTE                                                                                                       \
    "RUN is the folder of a run (its newest checkpoint is taken) or one of its checkpoints,\n"                         \
    "e.g. checkpoints/demo/best: the configuration, class names and weights stored there are used.\n"

static const char about_train[] =
    "Trains the network of a configuration file. Checkpoints, the log and the best weights go to the\n"
    "run folder, checkpoints/<config name> unless train.output (-o) names another. A run folder that\n"
    "is in use is refused unless --resume is given. Ctrl-C finishes the step, saves and ends; a second\n"
    "one ends at once; SIGUSR1 saves and goes on.\n"
    "Several processes train together with --gpus (one a GPU), --ranks, or under torchrun (--no-python), mpirun or\n"
    "srun, whose variables say which rank a process is. On several hosts rank 0 is found at MASTER_ADDR, MASTER_PORT\n"
    "(or ranks.address, ranks.port). A signal to any of them counts for all.\n"
    "\n"
    "  cresnet train configs/demo.ini\n"
    "  cresnet train configs/cifar10-resnet20.ini data.root=DIR --epochs 5\n"
    "  cresnet train configs/demo.ini --resume auto\n"
    "  cresnet train configs/resnet50.ini data.root=DIR --gpus all\n";

static const char about_eval[] =
    "Counts how many pictures of the validation set the weights get right. Give a RUN, or a CONFIG with\n"
    "--weights FILE. Shares (top1, top5) are 0 to 1 in --json.\n" RUN_NOTE "\n"
    "  cresnet eval checkpoints/demo\n"
    "  cresnet eval checkpoints/demo --per-class --confusion matrix.csv\n"
    "  cresnet eval configs/cifar10-resnet20.ini --weights FILE data.root=DIR --json\n";

static const char about_predict[] = "Names the most probable classes of PNG and JPEG pictures, and of all that are in "
                                    "folders: a table with a line a picture\n"
                                    "then. Give a RUN, or a CONFIG with --weights FILE. Pictures that cannot be read "
                                    "are named; the rest goes on, the exit code is 1.\n" RUN_NOTE "\n"
                                    "  cresnet predict checkpoints/demo a.png b.jpg\n"
                                    "  cresnet predict checkpoints/demo holiday/ -k 2\n"
                                    "  cresnet predict checkpoints/demo holiday/ --json >holiday.jsonl\n";

static const char about_report[] =
    "Writes a run as one HTML page, RUN/report.html unless -o FILE names another: curves, learning rate, throughput, "
    "the memory\n"
    "plan, the profile (--profile FILE, or RUN/profile.jsonl), sparsity, and of an evaluation of its best weights "
    "classes, the\n"
    "confusion matrix and the pictures that went most wrong. The page needs neither network nor scripts.\n"
    "RUN is the folder of a run (its best checkpoint is taken, else the newest) or one of its checkpoints.\n"
    "\n"
    "  cresnet report checkpoints/demo\n"
    "  cresnet profile checkpoints/demo --json >checkpoints/demo/profile.jsonl\n"
    "  cresnet report checkpoints/demo --no-eval -o demo.html\n";

static const char about_plan[] =
    "Prints the layers with shapes, parameters and FLOPs, and the memory that the program needs beside\n"
    "the lower bound that no plan can beat. Needs neither data nor a GPU; on a GPU, kernels whose times are not\n"
    "known yet are timed, as a run would. --program and --after print the program, --csv the pool, --json the\n"
    "numbers, --choices what each convolution takes over of BN, ReLU and sums, beside the plain way, and of a pruned "
    "network\n"
    "what each takes sparse and dense; --choices --json a line a convolution (row, way, us, source of the time), then "
    "the totals.\n"
    "With memory.limit the plan keeps it as a run would. --lives: where each large tensor waits for its next use, and "
    "why;\n"
    "--curve: predicted time against memory by swapping alone.\n"
    "--target GPU: for one that is not there: what its kernels take and want as workspace is asked without it where "
    "CUDA and cuDNN\n"
    "are, else known by a list; costs are the roofline's; device memory beside what the GPU has.\n"
    "plan --csv FILE.csv: offsets for the lives in the file (id,lower,upper,size; half open), of whatever program: "
    "greedy, then\n"
    "a search for --time-limit S seconds at most. Exit 1 when no plan within --capacity N was found; sizes have no "
    "unit.\n"
    "plan --trace FILE: the memory log of any program (CSV: time,event,id,size; malloc, free, read, write): finds the "
    "iteration\n"
    "that repeats in it, what lives across, the bound, a plan, and what an online best-fit pool needs. --csv: the "
    "lives of an\n"
    "iteration until their last use; one whose upper is beyond the iteration goes on in the next. memory.trace=FILE "
    "makes\n"
    "cresnet train write such a log.\n";

static const char about_check[] =
    "Runs the training and evaluation programs on random pictures (-b N of them, 2 by default) and\n"
    "compares every op with the reference computed in double, within a bound that follows from the op.\n"
    "Names the first op out of its bound (exit 1).\n";

static const char about_bench[] =
    "bench step: the whole training step on random pictures, median and images/s.\n"
    "bench infer: the network alone, BN folded into the convolutions: images/s with batches in a row, and the time of "
    "one\n"
    "            batch from the host's picture to the end (train.eval_batch=N, 1 for latency).\n"
    "bench ops:  cresnet profile.\n"
    "bench data: the loader alone, as fast as it can: images/s, also a worker, MB/s of files, where the time goes "
    "(first\n"
    "            meetings are read to the end, later ones as far as the crop needs). --steps N: batches (20).\n"
    "            --against=IMG_PER_S: the share of its time that a trainer of this speed would wait.\n"
    "bench pools: the memory of a training step, planned and as pools need it that do not know the future: best fit, "
    "one\n"
    "call a tensor, and on a GPU cudaMallocAsync; MiB, and ms of their calls.\n"
    "bench init: how long initial values take: drawn on the device; by one thread, copied tensor by tensor; by all\n"
    "            cores into page-locked memory, copied once. Memory of each, and how far the values are apart. For\n"
    "            CONFIGs, or without any for ResNet-18, 50, 152 and one of 1.16e9 parameters (GPU). --steps N: repeats "
    "(3).\n"
    "bench sparse: every convolution of a network, pruned, on sparse kernels, beside im2col with cuBLAS and cuSPARSE "
    "and beside\n"
    "            dense kernels; what the bytes alone would take; totals (GPU; --nets, --batches, --sparsity, --budget, "
    "--types).\n"
    "bench spdnn: the Graph Challenge's sparse deep networks, made by their rule: inputs/s and TeraEdges/s beside "
    "published\n"
    "            rates; categories are compared with the CPU's. --steps N: repeats (3).\n";

static const char about_profile[] =
    "Runs some training steps on random pictures and times every op of the step on the device: time, share,\n"
    "bytes touched, FLOPs, rates, share of the device's roof, the kernel (row) that ran it; then the same summed\n"
    "by kind, and the sum of the ops beside the step run whole. --which eval: the evaluation's ops instead, of "
    "train.eval_batch pictures.\n";

static const char about_prune[] =
    "Sets the smallest weights to 0 and writes a run folder with what is left and the masks. Training that starts from "
    "it\n"
    "(model.weights=DIR) keeps them at 0; eval and predict take it as any other. Weights come from --weights FILE or a "
    "RUN.\n"
    "A budget's first column names layers (layer1.0.conv1, or their number), others have sparsities (prune.column); of "
    "several\n"
    "the one is taken whose overall sparsity is nearest to --sparsity. Training prunes step by step with prune.end; "
    "see help keys.\n"
    "--target-ms chooses each layer's sparsity (single weights, fp32) by what its kernels take on --device: an "
    "evaluation of --batch\n"
    "pictures is predicted to take at most MS milliseconds, and as little magnitude as can be goes. On the CPU times "
    "are estimates.\n"
    "\n"
    "  cresnet prune checkpoints/demo --sparsity 0.9 --scope erk -o checkpoints/demo-90\n"
    "  cresnet train configs/demo.ini model.weights=checkpoints/demo-90 -o checkpoints/demo-90-tuned\n"
    "  cresnet prune configs/resnet50.ini --weights FILE --pattern 2:4 -o DIR\n"
    "  cresnet prune configs/resnet50.ini --weights FILE --pattern block prune.block=64x64 --sparsity 0.7 -o DIR\n"
    "  cresnet prune configs/resnet50.ini --weights FILE --target-ms 8 --batch 32 train.precision=fp32 -o DIR\n";

static const char about_export[] =
    "Writes the weights of a run as one safetensors file that torchvision's models load: every tensor dense, pruned "
    "weights as 0.\n"
    "RUN is the folder of a run, one of its checkpoints, or a safetensors file; FILE must not be there.\n"
    "--onnx writes the network itself, graph and weights, as an ONNX file: input [batch, 3, H, W], normalised, output "
    "logits;\n"
    "mean, std and class names stand in its metadata. Of a RUN, or a CONFIG with --weights FILE.\n"
    "\n"
    "  cresnet export --dense checkpoints/demo-90-tuned -o demo.safetensors\n"
    "  cresnet export checkpoints/demo --onnx demo.onnx --fold\n";

static const char about_data[] =
    "data CONFIG:     how many pictures and classes the configured data set has.\n"
    "data shapes DIR: draws the built-in set of ten classes of figures as PNG files into DIR\n"
    "                 (data.train_images=N data.val_images=N; 4000 and 1000).\n"
    "data pack CONFIG|DIR OUT: packs the configured data set, or a folder of pictures, into OUT/train.crpk and\n"
    "                 OUT/val.crpk: one file a split with an index and checksums, read with data.kind=packed\n"
    "                 data.root=OUT. PNG and JPEG files are kept as they are; --raw=SIZE stores pixels, the short "
    "side\n"
    "                 reduced to SIZE. Pictures that cannot be read are left out (data.corrupt). -j N: threads.\n"
    "data stat CONFIG|DIR: reads every picture: classes, counts, sizes, mean and standard deviation, the same picture "
    "twice.\n"
    "data verify CONFIG|DIR|FILE ...: reads packed files to their end (checksums, index, every picture), or every "
    "picture of a\n"
    "                 data set: names those that cannot be read (exit 1) and those that are there twice. -j N: "
    "threads.\n";

static const char about_help[] = "Explains a command, or every key of the configuration.\n"
                                 "help keys optim, help optim.lr: one section of it, one key.\n"
                                 "help completion SHELL: completion for bash, zsh or fish, to be read by the shell (it "
                                 "is installed with the program).\n"
                                 "help man [COMMAND|keys]: the same text as a man page, as the build installs it.\n";

#define KEYS "[section.key=value ...] [options]"
static const struct cr_command commands[CR_CMD_COUNT] = {
    [CR_CMD_TRAIN]   = {"train", "train a network", "CONFIG " KEYS, about_train, cr_cmd_train},
    [CR_CMD_EVAL]    = {"eval", "score weights on a validation set", "CONFIG|RUN " KEYS, about_eval, cr_cmd_eval},
    [CR_CMD_PREDICT] = {"predict", "name what is in pictures", "RUN|CONFIG PICTURE|FOLDER ... [options]", about_predict,
                        cr_cmd_predict},
    [CR_CMD_REPORT]  = {"report", "a run as an HTML page: curves, evaluation, memory, profile", "RUN " KEYS,
                        about_report, cr_cmd_report},
    [CR_CMD_PLAN]  = {"plan", "show the network, its program, its memory", "CONFIG|RUN " KEYS, about_plan, cr_cmd_plan},
    [CR_CMD_CHECK] = {"check", "compare every op with the reference", "CONFIG|RUN " KEYS, about_check, cr_cmd_check},
    [CR_CMD_BENCH] = {"bench", "time a training step, inference, the loader, initialisation or memory pools",
                      "step|infer|ops|data|pools CONFIG|RUN " KEYS " | init [CONFIG|RUN ...] | sparse | spdnn",
                      about_bench, cr_cmd_bench},
    [CR_CMD_PROFILE] = {"profile", "time every op of the training step, or of an evaluation", "CONFIG|RUN " KEYS,
                        about_profile, cr_cmd_profile},
    [CR_CMD_PRUNE]   = {"prune", "set the smallest weights to 0", "CONFIG|RUN " KEYS, about_prune, cr_cmd_prune},
    [CR_CMD_EXPORT]  = {"export", "weights of a run for torchvision, or a network as ONNX",
                        "RUN -o FILE | RUN|CONFIG --onnx FILE [section.key=value ...]", about_export, cr_cmd_export},
    [CR_CMD_DATA]    = {"data", "describe, pack or verify a data set, draw the shapes set",
                        "CONFIG|RUN " KEYS
                        " | stat CONFIG|DIR | verify CONFIG|DIR|FILE ... | pack CONFIG|DIR OUT | shapes DIR",
                        about_data, cr_cmd_data},
    [CR_CMD_HELP]    = {"help", "this overview; help keys, help COMMAND",
                        "[COMMAND | keys [SECTION|KEY]] | completion bash|zsh|fish | man [COMMAND|keys]", about_help,
                        cr_cmd_help},
};

const struct cr_command *cr_command(enum cr_command_id id) {
    return &commands[id];
}

void cr_help_overview(struct cr_text *out) {
    cr_text_add(out, "cresnet " CR_VERSION ": trains ResNets from a configuration file\n\n");
    cr_text_add(out, "usage: cresnet COMMAND ...\n\n");
    for (int i = 0; i < CR_CMD_COUNT; i++) cr_text_add(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    cr_text_add(out, "\n  cresnet train configs/demo.ini            a first network in minutes, on drawn pictures\n"
                     "  cresnet predict checkpoints/demo a.png    what is in the picture?\n"
                     "\n"
                     "Any value of the configuration can be given as section.key=value: train.batch=64 optim.lr=0.05\n"
                     "cresnet COMMAND --help explains a command, cresnet help keys every configuration key,\n"
                     "cresnet --version the build.\n"
                     "Exit codes: 0 done, 1 failed, 2 wrong command line or configuration, 128+n ended by signal n.\n"
                     "Set CRESNET_TRACE=1 to see where in the source an error came from.\n");
}

/* ---- version ---- */

static void add_libraries(struct cr_text *out) {
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
    cr_text_add(out, "libpng         %s (running with %u)\n", PNG_LIBPNG_VER_STRING,
                (unsigned)png_access_version_number());
#ifdef LIBJPEG_TURBO_VERSION
    cr_text_add(out, "libjpeg-turbo  " TEXT(LIBJPEG_TURBO_VERSION) "\n");
#else
    cr_text_add(out, "libjpeg        API %d\n", JPEG_LIB_VERSION);
#endif
#ifdef CR_INIPARSER_VERSION
    cr_text_add(out, "iniparser      %s\n", CR_INIPARSER_VERSION);
#else
    cr_text_add(out, "iniparser      yes (the library does not tell its version)\n");
#endif
#undef TEXT
#undef TEXT_
}

static void add_compute(struct cr_text *out) {
#ifdef CR_WITH_ONEDNN
    const dnnl_version_t *v = dnnl_version();
    cr_text_add(out, "oneDNN         %d.%d.%d\n", v->major, v->minor, v->patch);
#else
    cr_text_add(out, "oneDNN         no\n");
#endif
#ifdef _OPENMP
    cr_text_add(out, "OpenMP         %d\n", _OPENMP);
#else
    cr_text_add(out, "OpenMP         no\n");
#endif
#ifdef CR_CUDA_TEXT /* what CMake found */
    cr_text_add(out, "CUDA           " CR_CUDA_TEXT "\n");
    cr_text_add(out, "NCCL           " CR_NCCL_TEXT "\n");
#endif
}

static void add_devices(struct cr_text *out) {
    for (const struct cr_backend *const *b = cr_backends(); *b; b++) {
        const char              *why     = NULL;
        struct cr_device_options options = {0};
        struct cr_device        *device;
        cr_text_add(out, "device %-7s ", (*b)->name);
        if (!(*b)->available(&why)) {
            cr_text_add(out, "not available: %s\n", why ? why : "no reason given");
        } else if ((*b)->open(&options, &device) != CR_OK) {
            cr_text_add(out, "does not open: %s\n", cr_error_message());
            cr_error_clear();
        } else {
            cr_text_add(out, "%s\n", device->caps.text);
            cr_device_close(device);
        }
    }
}

void cr_help_version(struct cr_text *out) {
    cr_text_add(out, "cresnet        " CR_VERSION "\n");
    cr_text_add(out, "licence        MIT, Copyright (c) 2026 the cresnet authors\n");
#ifdef __clang__
    cr_text_add(out, "compiler       %s\n", __VERSION__);
#else
    cr_text_add(out, "compiler       GCC %s\n", __VERSION__);
#endif
#ifdef CR_BUILD_TYPE
    cr_text_add(out, "build          %s\n", CR_BUILD_TYPE);
#endif
    add_compute(out);
    add_libraries(out);
    add_devices(out);
}

/* ---- the command ---- */

static cr_status unknown_topic(const char *word, const char *hint) {
    return CR_FAIL(CR_ERR_USAGE, "there is no command %s%s%s%s; see cresnet help", word, hint ? " (did you mean " : "",
                   hint ? hint : "", hint ? "?)" : "");
}

/* help man [COMMAND | keys] */
static cr_status help_man(const struct cr_args *args, struct cr_text *out) {
    const char *hint, *topic = args->operands > 1 ? args->operand[1] : "";
    if (!*topic)
        cr_doc_man_overview(out);
    else if (strcmp(topic, "keys") == 0)
        cr_doc_man_keys(out);
    else {
        enum cr_command_id id = cr_command_find(topic, &hint);
        if (id == CR_CMD_COUNT) return unknown_topic(topic, hint);
        cr_doc_man_command(id, out);
    }
    return CR_OK;
}

/* help completion SHELL */
static cr_status help_completion(const struct cr_args *args, struct cr_text *out) {
    static const struct {
        const char *name;
        void (*write)(struct cr_text *out);
    } shells[] = {{"bash", cr_doc_bash}, {"zsh", cr_doc_zsh}, {"fish", cr_doc_fish}};
    for (size_t i = 0; args->operands > 1 && i < CR_COUNT(shells); i++) {
        if (strcmp(args->operand[1], shells[i].name) != 0) continue;
        shells[i].write(out);
        return CR_OK;
    }
    return cr_args_fail(args, "completion for which shell? bash, zsh or fish");
}

/* help keys [SECTION | KEY | SECTION.KEY] */
static cr_status help_keys(const char *topic, struct cr_text *out) {
    char hint[200] = "";
    if (!topic) {
        cr_config_help(out);
        return CR_OK;
    }
    if (cr_config_help_of(topic, out)) return CR_OK;
    const char *dot = strchr(topic, '.');
    char        section[64];
    snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - topic) : 60, topic);
    if (dot && cr_key_has_section(section))
        cr_key_hint(hint, sizeof hint, section, dot + 1);
    else
        cr_key_section_hint(hint, sizeof hint, section);
    return CR_FAIL(CR_ERR_USAGE, "there is no key and no section %s%s; see cresnet help keys", topic, hint);
}

static cr_status help_topic(const struct cr_args *args, struct cr_text *out) {
    const char *hint, *topic = args->operands ? args->operand[0] : "";
    bool takes_more = strcmp(topic, "man") == 0 || strcmp(topic, "completion") == 0 || strcmp(topic, "keys") == 0;
    CR_TRY(cr_args_most(args, takes_more ? 2 : 1));
    if (!*topic)
        cr_help_overview(out);
    else if (strcmp(topic, "keys") == 0)
        return help_keys(args->operands > 1 ? args->operand[1] : NULL, out);
    else if (strchr(topic, '.'))
        return help_keys(topic, out);
    else if (strcmp(topic, "man") == 0)
        return help_man(args, out);
    else if (strcmp(topic, "completion") == 0)
        return help_completion(args, out);
    else if (strcmp(topic, "markdown") == 0)
        cr_doc_markdown_keys(out);
    else {
        enum cr_command_id id = cr_command_find(topic, &hint);
        if (id == CR_CMD_COUNT) return unknown_topic(topic, hint);
        if (id == CR_CMD_HELP)
            cr_help_overview(out);
        else
            cr_command_help(id, out);
    }
    return CR_OK;
}

cr_status cr_cmd_help(const struct cr_args *args, int *signal_taken) {
    struct cr_text text = {0};
    (void)signal_taken;
    cr_status status = help_topic(args, &text);
    if (status == CR_OK) return cr_cmd_print(&text);
    cr_text_free(&text);
    return status;
}
