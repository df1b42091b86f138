/* cli/common/command_help.c: what help, man pages and completion say about each command; `cresnet help`, `COMMAND
 * --help`. */
#include "cli/common/arguments.h"

#include <stdio.h>

/* ---- descriptions ---- */

#define RUN_NOTE                                                                                                       \
    "RUN is a run folder (its best checkpoint is used, else its newest) or one of its checkpoints, e.g.\n"             \
    "checkpoints/demo/last. The configuration, class names and weights stored there are used; if the run has\n"        \
    "moving averages of its weights ([ema]), these are used. --last, --step N and --no-ema choose others. One\n"       \
    "line names the weights.\n"

static const char about_train[] =
    "Trains the network of a configuration file. Checkpoints, the log and the best weights are written to\n"
    "the run folder, checkpoints/<config name> unless train.output (-o) names another. A run folder that is\n"
    "already in use is refused unless --resume is given. Ctrl-C finishes the current step, saves a\n"
    "checkpoint and exits; a second Ctrl-C exits at once. SIGUSR1 saves a checkpoint without stopping.\n"
    "Several processes train together (data parallel) with --gpus (one process per GPU), with --ranks, or under\n"
    "torchrun (--no-python), mpirun or srun, whose environment variables give each process its rank. Ranks on\n"
    "several hosts find rank 0 at MASTER_ADDR, MASTER_PORT (or ranks.address, ranks.port). A signal to one rank\n"
    "applies to all ranks.\n"
    "\n"
    "  cresnet train configs/demo.ini\n"
    "  cresnet train configs/cifar10-resnet20.ini data.root=DIR --epochs 5\n"
    "  cresnet train configs/demo.ini --resume auto\n"
    "  cresnet train --resume checkpoints/demo\n"
    "  cresnet train configs/resnet50.ini data.root=DIR --gpus all\n";

static const char about_eval[] =
    "Computes top-1 accuracy, top-5 accuracy and the loss of weights on the validation split. Give a RUN, or a\n"
    "CONFIG with --weights FILE. With --json, accuracies (top1, top5) are fractions from 0 to 1.\n"
    "--reject RATE gives each image a score, chooses the score that the fraction RATE of these images do not reach,\n"
    "and stores it in the run for cresnet predict --reject. With data.outliers=DIR, images of no class, it chooses\n"
    "the score (largest logit, energy, distance to the class means) that separates them best.\n" RUN_NOTE "\n"
    "  cresnet eval checkpoints/demo\n"
    "  cresnet eval checkpoints/demo --per-class --confusion matrix.csv\n"
    "  cresnet eval checkpoints/demo --csv predictions.csv\n"
    "  cresnet eval checkpoints/demo --reject 0.05\n"
    "  cresnet eval configs/cifar10-resnet20.ini --weights FILE data.root=DIR --json\n";

static const char about_predict[] =
    "Prints the most probable classes of JPEG, PNG, WebP, TIFF and BMP images. For folders it prints a table with one\n"
    "line per image. The name - is an image on standard input. Give a RUN, or a CONFIG with --weights FILE. "
    "Unreadable\n"
    "images are named and skipped; the exit code is then 1.\n" RUN_NOTE "\n"
    "  cresnet predict checkpoints/demo a.png b.jpg\n"
    "  cresnet predict checkpoints/demo holiday/ -k 2\n"
    "  cresnet predict checkpoints/demo holiday/ --json >holiday.jsonl\n"
    "  cresnet predict checkpoints/demo holiday/ --csv holiday.csv\n";

static const char about_features[] =
    "Writes the features of images, the input of the classifier, as an array of numpy: FILE.npy, float32 [images]\n"
    "[features], a row for each image. FILE.logits.npy has the logits, [images][classes], and FILE.csv the names, in\n"
    "the same order. DIR is a folder of images; a CSV file names them in its column file, relative to its own folder.\n"
    "Rows are written while images are computed. Images that cannot be read have no row.\n" RUN_NOTE "\n"
    "  cresnet features checkpoints/demo my-images -o features.npy\n"
    "  cresnet features checkpoints/demo list.csv -o features.npy\n";

static const char about_explain[] =
    "Shows where in an image the network found evidence for a class: Grad-CAM (Selvaraju et al. 2017) at the output\n"
    "of the last stage. -o FILE.png is the image with the map over it, from dark (little) over red to yellow (most);\n"
    "grey parts have no evidence or were cut off before the network saw the image. --csv writes the map as numbers.\n"
    "Give a RUN, or a CONFIG with --weights FILE.\n" RUN_NOTE "\n"
    "  cresnet explain checkpoints/demo a.png -o why.png\n"
    "  cresnet explain checkpoints/demo a.png --class star -o star.png --csv star.csv\n";

static const char about_report[] =
    "Writes one HTML page about a run, RUN/report.html unless -o FILE names another: training curves, learning\n"
    "rate, throughput, the memory plan and the sparsity of each layer. An evaluation of the best weights adds\n"
    "precision, recall and F1 of each class, the confusion matrix and the images with the highest loss. The page\n"
    "needs neither a network connection nor scripts.\n"
    "--compare RUN RUN ...: 2 to 8 runs on one page (compare.html unless -o FILE names another), from their logs:\n"
    "results, curves over epochs, and the keys of their configurations that differ.\n" RUN_NOTE "\n"
    "  cresnet report checkpoints/demo\n"
    "  cresnet report checkpoints/demo --no-eval -o demo.html\n"
    "  cresnet report --compare checkpoints/demo checkpoints/demo-90-tuned -o both.html\n";

static const char about_plan[] =
    "Prints the layers with shapes, parameters and FLOPs, and the memory that the program needs together with its\n"
    "lower bound. Needs neither data nor a GPU. On a GPU, kernels whose times are not in the cache are timed\n"
    "first, as in training.\n"
    "--program and --after print the program, --csv prints the memory pool, --json prints the numbers.\n"
    "--choices prints the chosen fusions (BN, ReLU and sums that are fused into each convolution) and the unfused\n"
    "cost; for a pruned network it also prints the sparse and the dense time of each convolution.\n"
    "--lifetimes prints where each large tensor is between two uses (device, host, recomputed), and why. With\n"
    "memory.limit the plan respects the limit, as in training.\n"
    "--target GPU plans for a GPU that this machine does not have: supported kernels and their workspace sizes are\n"
    "computed offline, which needs a build with CUDA, CUDA and cuDNN 9.12 or newer, but no GPU. Times are roofline\n"
    "estimates unless --kernel-times FILE is given. Needed memory is compared with the memory of that GPU. The last\n"
    "lines list the kernels with the number and the time of their ops.\n";

static const char about_check[] =
    "Runs the training and evaluation programs on random images (-b N of them, 2 by default) and compares every op\n"
    "with an FP64 reference, within an error bound that is derived for the op. Stops at the first op outside its\n"
    "bound and names it (exit code 1).\n";

static const char about_bench[] =
    "bench step: a whole training step on random images: median time and images/s.\n"
    "bench infer: the network alone, BN folded into the convolutions: images/s for consecutive batches, and the\n"
    "            latency of one batch from host memory to the result: median, p95 and p99 (train.eval_batch=1).\n"
    "bench data: the data loader alone at full speed: images/s, images/s per worker, MB/s of files, and the\n"
    "            rate of each stage. An image that is read for the first time is decoded to its end, later only\n"
    "            as far as its crop needs. --steps N: batches (20). --trainer-speed=N: the cores that a trainer of\n"
    "            N images/s needs, and the fraction of its time that it would wait for data.\n";

static const char about_profile[] =
    "Runs training steps on random images and times every op of the step on the device: time, fraction of the\n"
    "step, bytes moved, FLOPs, achieved rates, percent of roofline (GPU), and the kernel. Then it prints the same\n"
    "numbers summed by kind of op, and the sum of all ops next to the time of the whole step. --which eval\n"
    "profiles the evaluation program instead, with train.eval_batch images.\n";

static const char about_prune[] =
    "Prunes weights by magnitude, or by gradients with --importance taylor, and writes a run folder with the "
    "remaining\n"
    "weights and the masks. Training that starts from it (model.weights=DIR) keeps pruned weights at 0; eval and\n"
    "predict read it like any other run. The weights come from --weights FILE or from a RUN.\n" RUN_NOTE
    "--budget FILE.csv: the first column names layers (layer1.0.conv1, or their number), the other columns hold\n"
    "sparsities. prune.column selects a column; by default it is the column whose overall sparsity is nearest to\n"
    "--sparsity. Training can also prune (prune.schedule); see cresnet help keys prune.\n"
    "--target-ms and --speedup choose the widths of all layers and their patterns from the times of kernels on\n"
    "--device: the predicted time to evaluate --batch images meets the target, and as little weight magnitude as\n"
    "possible is removed. --pattern limits the choice to some patterns.\n"
    "--pattern channels removes whole channels until the network has --flops X times fewer multiply-adds, and writes\n"
    "the weights of a smaller dense network; its config.ini holds the number of channels of each layer.\n"
    "--recalibrate N computes the running statistics of the batch norms again from N training batches: it recovers a\n"
    "part of the accuracy without training.\n"
    "\n"
    "  cresnet prune checkpoints/demo --sparsity 0.9 --scope erk -o checkpoints/demo-90\n"
    "  cresnet train configs/demo.ini model.weights=checkpoints/demo-90 -o checkpoints/demo-90-tuned\n"
    "  cresnet prune configs/resnet50.ini --weights FILE --pattern 2:4 -o DIR\n"
    "  cresnet prune configs/resnet50.ini --weights FILE --pattern block prune.block=64x64 --sparsity 0.7 -o DIR\n"
    "  cresnet prune configs/resnet50.ini --weights FILE --speedup 1.6 --batch 32 -o DIR\n"
    "  cresnet prune checkpoints/demo --pattern channels --flops 2 -o checkpoints/small\n"
    "  cresnet train checkpoints/small/last/config.ini model.weights=checkpoints/small -o checkpoints/small-tuned\n";

static const char about_compress[] =
    "Makes the network of a RUN X times as fast. Prunes it with each pattern alone and with all together to the same\n"
    "speedup, re-estimates the BN statistics of each, fine-tunes the best one with RUN as teacher, with --int8\n"
    "quantises it, evaluates and times every step, and prints accuracy, measured time and size of each. OUT/network\n"
    "is the result, a run folder that every command reads. OUT is RUN-compressed, or -o DIR.\n"
    "The same command continues after Ctrl-C or a crash. OUT/compress.ini is the configuration of the fine-tuning: "
    "edit\n"
    "it to change what has not begun. --epochs and other keys on the command line apply to it.\n"
    "--max-drop: when the accuracy drops by more, smaller speedups are tried, three at most; the exit code is 1 when\n"
    "the speedup that was demanded does not keep it. --batch: the number of images of the batch that is timed.\n"
    "\n"
    "  cresnet compress checkpoints/demo --speedup 1.5\n"
    "  cresnet compress checkpoints/resnet50 --speedup 2 --max-drop 0.5 --int8 --batch 32 -o compressed\n";

static const char about_quantize[] =
    "Quantises a trained network to 8-bit integers: weights by output channel, activations by tensor, symmetric.\n"
    "Writes a run folder that eval, predict, export and the library read like any other. The scales are calibrated\n"
    "with training images, prepared as in evaluation; then both networks are evaluated. The weights come from\n"
    "--weights FILE or from a RUN.\n" RUN_NOTE
    "--max-drop: when top-1 drops by more, each layer is quantised alone to measure its effect on the logits, and\n"
    "the layers with the largest effect stay in floating point (quant.keep) until the drop is small enough; the\n"
    "exit code is 1 if it never is.\n"
    "\n"
    "  cresnet quantize checkpoints/demo -o checkpoints/demo-int8\n"
    "  cresnet quantize configs/resnet50.ini --weights FILE --max-drop 0.3 -o DIR\n";

static const char about_export[] =
    "Writes the weights of a run as one safetensors file that torchvision models can load. Every tensor is dense;\n"
    "pruned weights are 0. RUN may also be a file of weights (safetensors, .pth, .pt) or a name such as "
    "resnet50.\n" RUN_NOTE
    "FILE may be -, standard output. Messages are on standard error. Names of PyTorch files are refused. An\n"
    "existing FILE is replaced if it is an earlier export; --force replaces any file. Devices are written in place.\n"
    "--onnx, or -o FILE.onnx, writes the network (graph and weights) as an ONNX file with the input\n"
    "[batch, 3, H, W] (normalised) and the output logits. Its metadata holds mean, std and class names. Give a RUN,\n"
    "or a CONFIG with --weights FILE. With --preprocess --dynamic the input is images of any size, as decoded.\n"
    "\n"
    "  cresnet export checkpoints/demo-90-tuned -o demo.safetensors\n"
    "  cresnet export checkpoints/demo --onnx demo.onnx --fold\n"
    "  cresnet export checkpoints/demo --onnx demo.onnx --preprocess --dynamic\n";

static const char about_data[] =
    "data CONFIG:     prints the number of images and classes of the configured dataset.\n"
    "data DIR:        the same as data stat DIR.\n"
    "data shapes DIR: writes the built-in dataset, ten classes of geometric shapes, as PNG files to DIR\n"
    "                 (data.train_images=N data.val_images=N; 4000 and 1000).\n"
    "data pack CONFIG|DIR OUT: packs the configured dataset, or a folder of images, into OUT/train.crpk and\n"
    "                 OUT/val.crpk: one file per split with an index and checksums, read with data.kind=packed\n"
    "                 data.root=OUT. Image files are stored unchanged; --jpeg=SIZE stores JPEGs with the short side\n"
    "                 resized to SIZE, --raw=SIZE decoded pixels. Unreadable images are skipped (data.corrupt).\n"
    "                 -j N: threads.\n"
    "data stat CONFIG|DIR: reads every image; prints classes, counts, image sizes, mean, standard deviation and\n"
    "                 duplicates.\n"
    "data show CONFIG|DIR -o PAGE.png: draws the first images that a training sees, with their classes: after crop,\n"
    "                 flip, augmentation, erasing and mixing, by train.seed (--seed).\n"
    "data verify CONFIG|DIR|FILE ...: verifies packed files (checksums, index, every image), or decodes every image\n"
    "                 of a dataset. Names unreadable images (exit code 1) and duplicates. -j N: threads.\n";

static const char about_config_copy[] =
    "Copies a configuration that is installed with cresnet into the current folder, to be changed there; the\n"
    "configurations that it includes are copied too. A file of that name is not replaced. Without a name it lists\n"
    "the installed configurations. Other commands find them by name without a copy: cresnet train demo.ini.\n"
    "\n"
    "  cresnet config\n"
    "  cresnet config demo.ini\n";

static const char about_help[] =
    "Explains a command, or the keys of the configuration.\n"
    "help keys optim, help optim.lr: one section, one key.\n"
    "help completion SHELL: completion for bash or zsh, which the shell reads (it is installed with the program).\n"
    "fish makes its completion of the installed man pages: fish_update_completions.\n"
    "help man [COMMAND|keys]: the same text as a man page, as the build installs it.\n";

static const char about_finetune[] =
    "Trains a classifier for the images in DIR, which has one folder per class, or train/ and val/. Without val/ a\n"
    "fifth of each class is held out. The command chooses a network that fits the device and the number of images,\n"
    "pretrained weights, image size, epochs and learning rates; says what it chose; writes the choices to RUN.ini,\n"
    "which cresnet train reads too; and trains. The same command continues a run that was stopped.\n"
    "--minutes N: chooses the image size and the epochs by the measured speed, so that the training takes about N\n"
    "minutes. --weights takes a file (its network is recognised), a run, or the name of published weights, which are\n"
    "downloaded once. Keys (optim.lr=0.01) replace choices. RUN is checkpoints/finetune-NAME unless -o names it.\n"
    "finetune OLD_RUN DIR: trains the network of a run further. Classes that both have keep their part of the\n"
    "classifier, by name; model.rename=old=new says which names have changed. Classes that DIR lacks are dropped.\n"
    "\n"
    "  cresnet finetune my-images\n"
    "  cresnet finetune my-images --minutes 5 --device cpu -o checkpoints/quick\n"
    "  cresnet finetune my-images --weights checkpoints/other-images\n"
    "  cresnet finetune checkpoints/finetune-my-images more-images\n";

static const char about_sweep[] =
    "Trains CONFIG once for every combination of the listed values. A list has commas (optim.lr=0.05,0.1), a range\n"
    "of integers has two dots (train.seed=1..8), and a value with a comma is in double quotes:\n"
    "'model.widths=\"8,16\",\"16,32\"'. Each run is an ordinary run folder in checkpoints/NAME-sweep (or -o DIR), "
    "named\n"
    "after its varied keys, and equals `cresnet train` with the same keys. Its messages are in DIR/RUN.txt.\n"
    "A failed run does not stop the others; the exit code is then 1. Ctrl-C stops all runs after a checkpoint, and\n"
    "the same command continues. At the end: a table, and DIR/compare.html with up to 8 runs, the best ones.\n"
    "On the CPU a run has one thread unless train.threads says otherwise. On a GPU the runs are processes that "
    "share\n"
    "the device in turns; its memory must hold --jobs runs (cresnet plan).\n"
    "\n"
    "  cresnet sweep configs/demo.ini optim.lr=0.05,0.1,0.2 train.seed=1..4\n"
    "  cresnet sweep configs/demo.ini optim.lr=0.05,0.1 --dry-run\n";

static const char about_lr_find[] =
    "Suggests a learning rate. Trains in memory for a few steps at each of up to 8 rates from --min-lr to --max-lr,\n"
    "every time from the same weights on the same images, and suggests the rate that lowers the loss most. Nothing is\n"
    "written to a run folder; a RUN gives its weights. With --json, the losses of all rates are printed.\n" RUN_NOTE
    "\n"
    "  cresnet lr-find configs/demo.ini\n"
    "  cresnet lr-find checkpoints/demo data.kind=folder data.root=DIR\n";

#define KEYS "[section.key=value ...] [options]"
#define COMMAND(id, function, name, summary, operands, words) {name, summary, operands, about_##function, words},
static const struct cr_command commands[] = {
#include "cli/common/commands.def"
};
#undef COMMAND

const struct cr_command *cr_command(enum cr_command_id id) {
    return &commands[id];
}

/* ---- help texts ---- */

void cr_command_usage(enum cr_command_id id, struct cr_text *out) {
    cr_text_add(out, "usage: cresnet %s %s\n", commands[id].name, commands[id].operands);
}

void cr_command_help(enum cr_command_id id, struct cr_text *out) {
    cr_command_usage(id, out);
    cr_text_add(out, "\n%s\nOptions (anywhere on the line; --x V and --x=V are the same):\n", commands[id].about);
    for (int i = 0; i < CR_OPT_COUNT; i++) {
        const struct cr_cli_option *o = cr_cli_option((enum cr_option_id)i);
        char                        left[64], letter[8] = "    ";
        if (!cr_cli_option_belongs((enum cr_option_id)i, id)) continue;
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
        cr_text_add(out, "  %-28s  %s%s%s%s\n", left, o->help, o->key ? " [" : "", o->key ? o->key : "",
                    o->key ? "]" : "");
    }
    if (id != CR_CMD_HELP && id != CR_CMD_CONFIG && id != CR_CMD_DATA && id != CR_CMD_EXPORT)
        cr_text_add(out, "\nAll configuration keys: cresnet help keys\n");
}

void cr_help_overview(struct cr_text *out) {
    cr_text_add(out, "cresnet " CR_VERSION ": trains ResNets from a configuration file\n\n");
    cr_text_add(out, "usage: cresnet COMMAND ...\n\n");
    for (int i = 0; i < CR_CMD_COUNT; i++) cr_text_add(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    cr_text_add(out,
                "\n  cresnet train configs/demo.ini            train a first network in minutes, on synthetic images\n"
                "  cresnet predict checkpoints/demo a.png    classify an image\n"
                "\n"
                "Any configuration key can be set as section.key=value: train.batch=64 optim.lr=0.05\n"
                "cresnet COMMAND --help explains a command, cresnet help keys all configuration keys,\n"
                "cresnet --version the build.\n"
                "Exit codes: 0 success, 1 failure, 2 wrong command line or configuration, 128+n ended by signal n.\n"
                "CRESNET_TRACE=1 adds the places in the source that an error passed through.\n");
}
