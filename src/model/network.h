/* model/network.h: appends a network's, or a teacher's, forward ops to a program. Private to model/. */
#ifndef CR_NETWORK_H
#define CR_NETWORK_H

#include "layers/layer.h"
#include "model/teacher.h"

/* Appends the input and the forward ops of the network up to its logits, whose tensor id it returns. */
int cr_model_emit(struct cr_net *net, const struct cr_model *model, int64_t batch, int64_t size);

/* model/teacher.c: appends the forward ops of student->teacher behind the student's input `x`, and sets
 * net->teacher_logits. */
void cr_teacher_emit(struct cr_net *net, const struct cr_model *student, int x);

#endif
