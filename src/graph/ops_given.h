/* graph/ops_given.h: the ops of graph/ops.def whose outputs must exist before the op is emitted, because their shapes
 * do not follow from the inputs. graph/ops.c includes this list. */
#ifndef CR_OPS_GIVEN_H
#define CR_OPS_GIVEN_H

#define infer_blurpool_grad infer_given
#define infer_dense_wgrad infer_given
#define infer_dense_bgrad infer_given
#define infer_avgpool_grad infer_given
#define infer_avgpool2x2_grad infer_given
#define infer_maxpool_grad infer_given
#define infer_pad_shortcut_grad infer_given
#define infer_group_conv_dgrad infer_given
#define infer_group_conv_wgrad infer_given
#define infer_channel_conv_wgrad infer_given
#define infer_fused infer_given /* it has no slots of its own */
#define infer_head infer_given
#define infer_s2d_filter_grad infer_given
#define infer_sgd infer_given
#define infer_adamw infer_given
#define infer_lars infer_given
#define infer_lamb infer_given
#define infer_muon infer_given
#define infer_ema infer_given
#define infer_zero infer_given
#define infer_cast infer_given
#define infer_sparse_filter infer_given
#define infer_pack_filter infer_given
#define infer_qconv infer_given
#define infer_distill infer_given
#define infer_distill_grad infer_given

#endif
