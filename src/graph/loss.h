/* graph/loss.h: attributes of the ops loss, loss_grad and distill (label smoothing, class weights, focal loss, BCE,
 * temperature), and labels of samples with several labels. Included by graph/graph.h. */
#ifndef CR_GRAPH_LOSS_H
#define CR_GRAPH_LOSS_H

#include <stdbool.h>
#include <stdint.h>

struct cr_op;
struct cr_program;

struct cr_loss_attr {
    float smoothing; /* label smoothing, 0 to 1 */
    float weight;    /* loss_grad: 1 / (micro-batches * ranks), because gradients are summed and not averaged */
    float gamma;     /* exponent of the focal loss (Lin et al. 2017); 0: cross-entropy */
    float threshold; /* sigmoid: targets above it become 1, all other targets 0; 0: targets stay as they are */
    bool  sigmoid;   /* binary cross-entropy of each class instead of softmax */
    bool  several;   /* several labels per sample; implies sigmoid */
};

/* Attributes of the ops distill and distill_grad (graph/ops.def). */
struct cr_distill_attr {
    float weight; /* of the loss; of its gradient, divided by micro-batches * ranks */
    float temperature;
};

/* True for a loss or loss_grad without class weights, focal loss and binary cross-entropy. */
bool cr_loss_is_plain(const struct cr_op *op);
/* Asserts that the labels and class weights of a loss or loss_grad fit its logits. */
void cr_loss_check(const struct cr_program *program, const struct cr_op *op);

/* Labels of a sample in a program with attr.loss.several, as 32-bit words: the number of labels (-1: the sample does
 * not count), then one bit for each class. */
static inline int64_t cr_label_words(int64_t classes) {
    return 1 + (classes + 31) / 32;
}
static inline bool cr_label_has(const int32_t *labels, int64_t class_index) {
    return (uint32_t)labels[1 + class_index / 32] >> (class_index % 32) & 1;
}

#endif
