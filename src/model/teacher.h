/* model/teacher.h: a trained network whose outputs another one learns (knowledge distillation, [distill]).
 *
 * The teacher's forward ops are part of the student's training programs. Its values never change, so they are prepared
 * once, on the host, and lie in the buffers TEACHER and TEACHER_HALF of the student's parameter store. The scale of a
 * batch norm is multiplied into the filter of the convolution before it. The op bn_apply behind that filter reads a
 * constant, (1, bias) [2,C], and the pass fold makes it the bias of the convolution where the device has a kernel for
 * it. Grouped convolutions keep their filter, and the constant is (scale, bias). */
#ifndef CR_TEACHER_H
#define CR_TEACHER_H

#include "model/model.h"

struct cr_teacher {
    const struct cr_config *config; /* of the teacher's network */
    struct cr_model         model;  /* its store is the table of the constants */
    float                  *value;  /* [model.store.value_elems] the constants, in the layout of TEACHER */
    uint64_t                hash;   /* of the weights, the normalisation of images and the epsilon of batch norms */
};

/* Makes the constants of a network from its parameters and running statistics, in the layout of VALUE and RUNNING.
 * Takes *config over, which is NULL afterwards, also after a failure. `size`: side of the student's training images.
 * The caller frees *out with cr_teacher_close. CR_ERR_MEMORY, CR_ERR_CONFIG. */
CR_MUST cr_status cr_teacher_open(const struct cr_config **config, int classes, int64_t size, const float *value,
                                  float *running, struct cr_teacher **out);
void              cr_teacher_close(struct cr_teacher *teacher);

#endif
